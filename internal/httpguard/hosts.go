package httpguard

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// maxHostText bounds what an error repeats of a header, in bytes.
const maxHostText = 100

// Hosts are the names by which clients reach the service through a reverse proxy, as HOST or
// HOST:PORT. HOST allows every port.
type Hosts []string

// Allows reports whether HOST or HOST:PORT is one of the names.
func (h Hosts) Allows(address string) bool {
	host := address
	if name, _, err := net.SplitHostPort(address); err == nil {
		host = name
	}
	return slices.ContainsFunc(h, func(allowed string) bool {
		return strings.EqualFold(allowed, address) || strings.EqualFold(allowed, host)
	})
}

// CheckHost refuses a request over loopback whose Host is neither a loopback name nor allowed. Web
// pages can send such requests: their own host name can resolve to this host.
func (h Hosts) CheckHost(r *http.Request) error {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !IsLoopback(local.String()) || IsLoopback(r.Host) || h.Allows(r.Host) {
		return nil
	}
	return usererror.Errorf(errdefs.ErrPermissionDenied,
		"Host %s is not a loopback name: if a reverse proxy sends it, add it to allowed_hosts",
		quoteHost(r.Host))
}

// CheckOrigin refuses web pages of other origins. It accepts programs, pages of the requested host,
// and pages of allowed hosts.
func (h Hosts) CheckOrigin(r *http.Request) error {
	origins := r.Header.Values("Origin")
	for _, origin := range origins {
		u, err := url.Parse(origin)
		if err == nil && u.Host != "" && (strings.EqualFold(u.Host, r.Host) || h.Allows(u.Host)) && len(origins) == 1 {
			continue
		}
		return usererror.Errorf(errdefs.ErrPermissionDenied,
			"Origin %s is not allowed: if it is this service's behind a reverse proxy, add its host to allowed_hosts",
			quoteHost(origin))
	}
	return nil
}

// quoteHost returns a header's value for an error.
func quoteHost(s string) string { return strconv.QuoteToGraphic(clip.Text(s, maxHostText)) }

// IsLoopback reports whether HOST or HOST:PORT is a loopback address or localhost.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
