package ui

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Header has the page's secret of a session. Browsers send cookies to every port of a host, but
// keep the storage of pages, where the secret is, apart by port. WebSockets, whose header a page
// cannot set, offer SubprotocolPrefix and the secret as a subprotocol.
const (
	Header            = "Orchestrator-UI"
	SubprotocolPrefix = "orchestrator.ui."
)

// CheckRequest returns an error of class PermissionDenied unless a request with a session's cookie
// comes from the service's own origin. Requests that can change something must say so. Pages of
// another port of the same host are another origin, although they are the same site for the cookie.
func CheckRequest(r *http.Request) error {
	refused := usererror.Errorf(errdefs.ErrPermissionDenied,
		"a session is only for the pages of /ui: send a token in the Authorization header")
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin": // browsers leave it out where there is neither TLS nor a loopback address
	case "none": // typed by the person
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return refused
		}
	default:
		return refused
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch origins := r.Header.Values("Origin"); {
	case len(origins) == 0:
		if !reads {
			return refused
		}
	case len(origins) > 1 || !sameOrigin(origins[0], r.Host):
		return refused
	}
	return nil
}

// pageSecretOf returns the page's secret in a request, or "".
func pageSecretOf(r *http.Request) string {
	if secret := r.Header.Get(Header); secret != "" {
		return secret
	}
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for offered := range strings.SplitSeq(line, ",") {
			if secret, ok := strings.CutPrefix(strings.TrimSpace(offered), SubprotocolPrefix); ok {
				return secret
			}
		}
	}
	return ""
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
