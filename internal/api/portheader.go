package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
)

// A server in a sandbox is hostile, and what it answers comes from the origin
// that this interface has. Who looks at it in a browser must not lend it that
// origin's rights:
//
//   - Its pages could call the interface with whatever the browser adds by
//     itself, read what other pages keep in the origin's storage, and stay as a
//     service worker. So each answer has the policy "sandbox": its pages have an
//     origin of their own that equals no other.
//   - It could set cookies for the whole origin, or read those that are there.
//     So no cookie passes, in either direction.
//   - Some fields speak for the whole origin: they would clear its storage, force
//     it to TLS, or lead it elsewhere. They are dropped.
//   - It could learn the address of the interface and a sandbox's id from where
//     its pages link to. So nothing is told of where a request came from.
//   - The bearer token is ours. It does not pass.
//   - A trailer can hold any of these fields, and what is between may merge it into
//     the header. So no trailer passes, in either direction.
//
// What needs an origin with cookies or storage is for `orchestrator forward`,
// whose ports are origins of their own.

// pagePolicy leaves a page what cannot reach beyond itself.
const pagePolicy = "sandbox allow-scripts allow-forms allow-modals allow-downloads allow-popups"

// ours are fields of a request that are not for a server inside.
var ours = []string{"Authorization", "Cookie", "Proxy-Authorization", "Idempotency-Key", "Forwarded", "X-Forwarded-For", "X-Real-Ip", "Referer", "Te"}

// originWide are fields of an answer that speak for a whole origin.
var originWide = []string{
	"Set-Cookie", "Set-Cookie2", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Expect-Ct", "Alt-Svc", "Service-Worker-Allowed",
	"Access-Control-Allow-Credentials", "Origin-Agent-Cluster", "Nel", "Report-To", "Reporting-Endpoints", "Accept-Ch", "Critical-Ch", "Set-Login", "Www-Authenticate", "Refresh",
}

// outward makes a request one for the server inside.
func outward(pr *httputil.ProxyRequest, prefix string, port int) {
	out := pr.Out
	rest := afterSegments(pr.In.URL.EscapedPath(), 5)
	path, err := url.PathUnescape(rest)
	if err != nil { // net/http has parsed it before
		path, rest = rest, ""
	}
	host := fmt.Sprintf("localhost:%d", port)
	out.URL = &url.URL{Scheme: "http", Host: host, Path: path, RawPath: rest, RawQuery: pr.In.URL.RawQuery, ForceQuery: pr.In.URL.ForceQuery}
	out.Host = host
	out.Trailer = nil
	for _, name := range ours {
		out.Header.Del(name)
	}
	out.Header.Set("X-Forwarded-Prefix", prefix)
	out.Header.Set("X-Forwarded-Host", pr.In.Host)
	out.Header.Set("X-Forwarded-Proto", "http")
	if pr.In.TLS != nil {
		out.Header.Set("X-Forwarded-Proto", "https")
	}
}

// afterSegments is a path behind its first n segments, from the slash on.
func afterSegments(path string, n int) string {
	for range n {
		_, path, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
		path = "/" + path
	}
	return path
}

// inward takes out of an answer what would reach beyond its page.
func inward(h http.Header, prefix string, port int) {
	for _, name := range originWide {
		h.Del(name)
	}
	h.Add("Content-Security-Policy", pagePolicy) // beside its own: both count
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if to := h.Get("Location"); to != "" {
		h.Set("Location", located(to, prefix, port))
	}
}

// dropTrailers removes the trailers that were announced, and those that come
// behind the body.
func dropTrailers(resp *http.Response) {
	resp.Trailer = nil
	if resp.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection
		resp.Body = &untrailed{resp.Body, resp}
	}
}

// untrailed is a body whose trailers are dropped as they come.
type untrailed struct {
	io.ReadCloser
	resp *http.Response
}

// Read implements io.Reader. net/http sets trailers before it reports io.EOF.
func (b *untrailed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.resp.Trailer = nil
	}
	return n, err
}

// Close implements io.Closer. net/http may read the rest of the body here.
func (b *untrailed) Close() error {
	err := b.ReadCloser.Close()
	b.resp.Trailer = nil
	return err
}

// located is where a redirect of the server inside leads from outside.
func located(to, prefix string, port int) string {
	u, err := url.Parse(to)
	if err != nil {
		return prefix + "/"
	}
	own := []string{fmt.Sprintf("localhost:%d", port), fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("[::1]:%d", port)}
	if u.Host != "" && !(u.Scheme == "http" && slices.Contains(own, strings.ToLower(u.Host))) {
		return to // to elsewhere, as any link may
	}
	if u.Host == "" && !strings.HasPrefix(to, "/") {
		return to // from where the page is
	}
	u.Scheme, u.Host, u.User = "", "", nil
	return prefix + "/" + strings.TrimPrefix(u.String(), "/")
}
