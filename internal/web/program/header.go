package program

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// What is asked with unless the request says otherwise.
const (
	userAgent    = "Mozilla/5.0 (compatible; orchestrator-web/1)"
	accept       = "text/html,application/xhtml+xml,application/xml;q=0.9,text/plain;q=0.9,application/pdf;q=0.9,*/*;q=0.5"
	maxFields    = 100 // of a request
	maxAnswered  = 200 // of an answer, more are left out
	maxFieldSize = 64 << 10
)

// token reports whether s is one in the sense of HTTP.
func token(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return true
}

// ownField reports whether a field belongs to the connection and not to who asks.
func ownField(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive",
		"Te", "Trailer", "Upgrade", "Expect", web.RefusalHeader:
		return true
	}
	return strings.HasPrefix(http.CanonicalHeaderKey(name), "Proxy-")
}

func checkHeader(fields [][2]string) error {
	if len(fields) > maxFields {
		return faultf(web.FaultRequest, "header: %d fields are more than %d", len(fields), maxFields)
	}
	size := 0
	for i, f := range fields {
		size += len(f[0]) + len(f[1])
		switch {
		case !token(f[0]):
			return faultf(web.FaultRequest, "header[%d]: %q is no name of a field", i, oneLine(f[0], 60))
		case ownField(f[0]):
			return faultf(web.FaultRequest, "header[%d]: %s is set by the connection: leave it out", i, f[0])
		case strings.ContainsFunc(f[1], func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return faultf(web.FaultRequest, "header[%d]: the value of %s has a line end or another control character", i, f[0])
		}
	}
	if size > maxFieldSize {
		return faultf(web.FaultRequest, "header: %d bytes are more than %d", size, maxFieldSize)
	}
	return nil
}

// headerOf is what req asks with, names as written.
func headerOf(req *web.Request) http.Header {
	h := http.Header{}
	for _, f := range req.Header {
		h[f[0]] = append(h[f[0]], f[1])
	}
	packings := "gzip, deflate, br, zstd"
	if hasField(h, "Range") {
		packings = "identity" // a part of what is packed cannot be unpacked
	}
	for name, value := range map[string]string{
		"User-Agent": userAgent, "Accept": accept, "Accept-Encoding": packings,
	} {
		if !hasField(h, name) {
			h[name] = []string{value}
		}
	}
	return h
}

func hasField(h http.Header, name string) bool {
	for k := range h {
		if strings.EqualFold(k, name) {
			return true
		}
	}
	return false
}

// dropFields removes those for which drop says so; names come in lower case.
func dropFields(h http.Header, drop func(name string) bool) {
	for k := range h {
		if drop(strings.ToLower(k)) {
			delete(h, k)
		}
	}
}

// secretField reports whether a field may hold a credential: all may but those
// that are known not to, since hosts take keys by any name.
func secretField(name string) bool {
	return !slices.Contains([]string{
		"accept", "accept-charset", "accept-encoding", "accept-language", "cache-control",
		"content-encoding", "content-language", "content-type", "pragma", "range", "user-agent",
	}, name)
}

// bodyField reports whether a field is about a body that is not sent again.
func bodyField(name string) bool {
	return strings.HasPrefix(name, "content-")
}

// fieldsOf are an answer's fields in the order of their names.
func fieldsOf(h http.Header) [][2]string {
	var fields [][2]string
	for name, values := range h {
		for _, v := range values {
			fields = append(fields, [2]string{name, v})
		}
	}
	slices.SortStableFunc(fields, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return fields[:min(len(fields), maxAnswered)]
}
