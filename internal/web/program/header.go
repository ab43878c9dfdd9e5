package program

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Default header fields, and bounds of headers.
const (
	userAgent = "Mozilla/5.0 (compatible; orchestrator-web/1)"
	accept    = "text/html,application/xhtml+xml,application/xml;q=0.9,text/plain;q=0.9,application/pdf;q=0.9," +
		"*/*;q=0.5"
	maxFields    = 100 // fields of a request
	maxAnswered  = 200 // fields of a response; the rest is dropped
	maxFieldSize = 64 << 10
)

// token reports whether s is a token of HTTP.
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

// ownField reports whether the connection sets a field, so that callers may not.
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
		return faultf(web.FaultRequest, "header: %d fields, more than %d", len(fields), maxFields)
	}
	size := 0
	for i, f := range fields {
		size += len(f[0]) + len(f[1])
		switch {
		case !token(f[0]):
			return faultf(web.FaultRequest, "header[%d]: invalid field name %q", i, oneLine(f[0], 60))
		case ownField(f[0]):
			return faultf(web.FaultRequest, "header[%d]: %s is set by the connection: remove it", i, f[0])
		case strings.ContainsFunc(f[1], func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return faultf(web.FaultRequest, "header[%d]: value of %s contains a control character",
				i, f[0])
		}
	}
	if size > maxFieldSize {
		return faultf(web.FaultRequest, "header: %d bytes, more than %d", size, maxFieldSize)
	}
	return nil
}

// headerOf returns the header of a request, with defaults and names as written.
func headerOf(req *web.Request) http.Header {
	h := http.Header{}
	for _, f := range req.Header {
		h[f[0]] = append(h[f[0]], f[1])
	}
	packings := "gzip, deflate, br, zstd"
	if hasField(h, "Range") {
		packings = "identity" // a range of compressed data cannot be decompressed
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

// dropFields removes the fields for which drop returns true. drop gets names in lower case.
func dropFields(h http.Header, drop func(name string) bool) {
	for k := range h {
		if drop(strings.ToLower(k)) {
			delete(h, k)
		}
	}
}

// secretField reports whether a field may contain a credential. Only known harmless fields do not:
// hosts accept keys under any name.
func secretField(name string) bool {
	return !slices.Contains([]string{
		"accept", "accept-charset", "accept-encoding", "accept-language", "cache-control",
		"content-encoding", "content-language", "content-type", "pragma", "range", "user-agent",
	}, name)
}

// bodyField reports whether a field describes the body.
func bodyField(name string) bool {
	return strings.HasPrefix(name, "content-")
}

// fieldsOf returns the fields of a response, sorted by name.
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
