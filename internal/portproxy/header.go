package portproxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
)

// A server in a sandbox is untrusted, and its answers come from the origin of this interface. A
// browser that shows them must not give them the rights of that origin:
//
//   - Its pages could call the interface with the browser's credentials, read the origin's storage,
//     and stay as a service worker. So each answer gets the policy "sandbox", which gives its pages
//     an opaque origin.
//   - It could set cookies for the whole origin, or read existing ones. So cookies do not pass in
//     either direction.
//   - Some fields affect the whole origin: they clear its storage, force TLS, or redirect it. They
//     are dropped.
//   - Links of its pages could reveal the address of the interface and a sandbox's id. So the
//     referrer is never sent.
//   - The bearer token belongs to the interface. It does not pass.
//   - A trailer can hold any of these fields, and a proxy may merge it into the header. So trailers
//     do not pass in either direction.
//
// Pages that need cookies or storage can use `orchestrator forward`: each forwarded port is a
// separate origin.

// pagePolicy allows a page only what stays within the page.
const pagePolicy = "sandbox allow-scripts allow-forms allow-modals allow-downloads allow-popups"

// privateFields are request fields that are not forwarded to a server in a sandbox.
var privateFields = []string{"Authorization", "Cookie", "Proxy-Authorization", "Idempotency-Key", "Forwarded",
	"X-Forwarded-For",
	"X-Real-Ip", "Referer", "Te"}

// originWide are response fields that affect a whole origin.
var originWide = []string{
	"Set-Cookie", "Set-Cookie2", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Expect-Ct",
	"Alt-Svc", "Service-Worker-Allowed",
	"Access-Control-Allow-Credentials", "Origin-Agent-Cluster", "Nel", "Report-To", "Reporting-Endpoints", "Accept-Ch",
	"Critical-Ch", "Set-Login", "Www-Authenticate", "Refresh",
}

// rewriteRequest rewrites a request for the server in the sandbox.
func rewriteRequest(pr *httputil.ProxyRequest, prefix string, port int) {
	out := pr.Out
	rest := afterSegments(pr.In.URL.EscapedPath(), 5)
	path, err := url.PathUnescape(rest)
	if err != nil { // cannot happen: net/http has parsed the path
		path, rest = rest, ""
	}
	host := fmt.Sprintf("localhost:%d", port)
	out.URL = &url.URL{Scheme: "http", Host: host, Path: path, RawPath: rest, RawQuery: pr.In.URL.RawQuery,
		ForceQuery: pr.In.URL.ForceQuery}
	out.Host = host
	out.Trailer = nil
	for _, name := range privateFields {
		out.Header.Del(name)
	}
	out.Header.Set("X-Forwarded-Prefix", prefix)
	out.Header.Set("X-Forwarded-Host", pr.In.Host)
	out.Header.Set("X-Forwarded-Proto", "http")
	if pr.In.TLS != nil {
		out.Header.Set("X-Forwarded-Proto", "https")
	}
}

// afterSegments returns the part of a path after its first n segments, with the leading slash.
func afterSegments(path string, n int) string {
	for range n {
		_, path, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
		path = "/" + path
	}
	return path
}

// rewriteResponse removes response fields that affect more than their page, and adds the page
// policy.
func rewriteResponse(h http.Header, prefix string, port int) {
	for _, name := range originWide {
		h.Del(name)
	}
	h.Add("Content-Security-Policy", pagePolicy) // in addition to the server's own: both apply
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if to := h.Get("Location"); to != "" {
		h.Set("Location", rewriteLocation(to, prefix, port))
	}
}

// dropTrailers removes announced trailers, and those that follow the body.
func dropTrailers(resp *http.Response) {
	resp.Trailer = nil
	if resp.StatusCode != http.StatusSwitchingProtocols { // its body is the connection
		resp.Body = &bodyWithoutTrailers{resp.Body, resp}
	}
}

// bodyWithoutTrailers is a body that drops its trailers when they arrive.
type bodyWithoutTrailers struct {
	io.ReadCloser
	resp *http.Response
}

// Read implements io.Reader. net/http sets trailers before it returns io.EOF.
func (b *bodyWithoutTrailers) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.resp.Trailer = nil
	}
	return n, err
}

// Close implements io.Closer. net/http may read the rest of the body here.
func (b *bodyWithoutTrailers) Close() error {
	err := b.ReadCloser.Close()
	b.resp.Trailer = nil
	return err
}

// rewriteLocation translates a redirect of the server in the sandbox to a path of this interface.
func rewriteLocation(to, prefix string, port int) string {
	u, err := url.Parse(to)
	if err != nil {
		return prefix + "/"
	}
	own := []string{fmt.Sprintf("localhost:%d", port), fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("[::1]:%d", port)}
	if u.Host != "" && !(u.Scheme == "http" && slices.Contains(own, strings.ToLower(u.Host))) {
		return to // another host: pass it like any link
	}
	if u.Host == "" && !strings.HasPrefix(to, "/") {
		return to // relative to the page
	}
	u.Scheme, u.Host, u.User = "", "", nil
	return prefix + "/" + strings.TrimPrefix(u.String(), "/")
}
