package harness

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// SearchKey is the key of a Website's search provider.
const SearchKey = "k3y-of-the-search-provider"

// Website is a site on loopback with friendly and hostile pages, over TLS and plain HTTP, under
// every name below "site.test". Names below "other.test" resolve to it too, but no egress exception
// allows them.
type Website struct {
	TLS, HTTP int // ports
	// Config is the egress and web configuration that a service needs to reach the site.
	Config string

	stop chan struct{}
	mu   sync.Mutex
	hits map[string]int
}

// NewWebsite serves the site until the test ends. extra is added to the section web of the
// configuration, with lines indented by two; {HTTP} in them is replaced by the plain HTTP port.
func NewWebsite(tb testing.TB, extra string) *Website {
	tb.Helper()
	w := &Website{stop: make(chan struct{}), hits: map[string]int{}}
	secure, plain := httptest.NewUnstartedServer(w), httptest.NewServer(w)
	leaf, ca := Authority(tb, "*.site.test", "*.other.test")
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{leaf}}
	secure.StartTLS()
	tb.Cleanup(func() { close(w.stop); secure.Close(); plain.Close() })
	w.TLS, w.HTTP = secure.Listener.Addr().(*net.TCPAddr).Port, plain.Listener.Addr().(*net.TCPAddr).Port
	dir := TempDir(tb)
	WriteFile(tb, filepath.Join(dir, "ca.pem"), ca)
	WriteFile(tb, filepath.Join(dir, "key"), SearchKey+"\n")
	w.Config = fmt.Sprintf(`
egress:
  resolver: ["%s"]
  private: [{hosts: ["*.site.test"], ranges: ["127.0.0.0/8"]}]
  ca_file: "%s"
web:
  fetch: {ports: [%d], deny: ["denied.site.test"]}
  request: {ports: [%d], http_ports: [%d], deny: ["denied.site.test"]}
  search: {provider: brave, url: "https://search.site.test:%d/res/v1", key_file: "%s"}
%s`, Names(tb), filepath.Join(dir, "ca.pem"), w.TLS, w.TLS, w.HTTP, w.TLS, filepath.Join(dir, "key"),
		strings.ReplaceAll(extra, "{HTTP}", strconv.Itoa(w.HTTP)))
	return w
}

// URL returns an https URL of the site.
func (w *Website) URL(host, path string) string {
	return fmt.Sprintf("https://%s.site.test:%d%s", host, w.TLS, path)
}

// Plain returns an http URL of the site.
func (w *Website) Plain(host, path string) string {
	return fmt.Sprintf("http://%s.site.test:%d%s", host, w.HTTP, path)
}

// Hits returns how often a path was requested.
func (w *Website) Hits(path string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hits[path]
}

// lamp is the text on the page that prompts ask for.
const lamp = "The blue lamp costs twelve crowns."

// ServeHTTP serves all pages.
func (w *Website) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.hits[r.URL.Path]++
	w.mu.Unlock()
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	switch r.URL.Path {
	case "/page", "/article":
		fmt.Fprintf(rw, `<!doctype html><html><head><title>Lamps</title>
<script>alert("no")</script><style>p{}</style></head><body>
<h1>Prices</h1><p>%s See <a href="/more">more</a>.</p><h2>History</h2><p>%s</p>
<table><tr><th>A</th></tr><tr><td>B</td></tr></table></body></html>`,
			lamp, strings.Repeat("Nothing of note happened in those years. ", 40))
	case "/long":
		fmt.Fprintf(rw, "<html><body><p>%s</p></body></html>", strings.Repeat("wörd ", 6000))
	case "/text":
		rw.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(rw, "just <text>\n")
	case "/cookie":
		rw.Header().Set("Set-Cookie", "who=you")
		_, _ = io.WriteString(rw, "<p>for you alone</p>")
	case "/echo":
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Add("X-Twice", "1")
		rw.Header().Add("X-Twice", "2")
		_ = json.NewEncoder(rw).Encode(map[string]any{
			"method": r.Method,
			"x":      r.Header.Get("X-Mine"),
			"host":   r.Host,
			"body":   string(body),
			"all":    r.Header,
		})
	case "/bytes":
		rw.Header().Set("Content-Type", "application/octet-stream")
		_, _ = rw.Write([]byte{0xff, 0x00, 0xfe})
	case "/missing":
		rw.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(rw, "<p>nothing here</p>")
	case "/v1/chat/completions":
		w.model(rw, r)
	case "/res/v1/web/search":
		w.search(rw, r)
	default:
		w.hostile(rw, r)
	}
}

// model answers like OpenAI's chat completions. It fails for prompts about an outage.
func (w *Website) model(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	rw.Header().Set("Content-Type", "application/json")
	switch {
	case bytes.Contains(body, []byte("be away")):
		rw.WriteHeader(http.StatusServiceUnavailable)
	case bytes.Contains(body, []byte(lamp)):
		_, _ = io.WriteString(rw, `{"choices": [{"message": {"role": "assistant", "content": "The model says: twelve."}}]}`)
	default:
		_, _ = io.WriteString(rw, `{"choices": [{"message": {"role": "assistant", "content": "The page does not say."}}]}`)
	}
}

// search answers like Brave's search API.
func (w *Website) search(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Content-Type", "application/json")
	switch {
	case r.Header.Get("X-Subscription-Token") != SearchKey:
		rw.WriteHeader(http.StatusUnprocessableEntity)
	case r.FormValue("q") == "too many":
		rw.Header().Set("Retry-After", "7")
		rw.WriteHeader(http.StatusTooManyRequests)
	default:
		fmt.Fprintf(rw, `{"web": {"results": [{"title": "About %s", "url": "https://a.example/", "description": "found"},
{"title": "without a source"}]}}`, r.FormValue("q"))
	}
}

// hostile serves redirects and pages without end.
func (w *Website) hostile(rw http.ResponseWriter, r *http.Request) {
	to := func(address string) { http.Redirect(rw, r, address, http.StatusFound) }
	switch r.URL.Path {
	case "/same":
		to("/page")
	case "/cross":
		to(w.URL("b", "/page"))
	case "/loop":
		to("/loop")
	case "/inward":
		to(fmt.Sprintf("http://x.other.test:%d/page", w.HTTP))
	case "/blocked":
		to(w.Plain("blocked", "/page"))
	case "/metadata":
		to("http://169.254.169.254/latest/meta-data/")
	case "/slow":
		_, _ = io.WriteString(rw, "<p>soon")
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-w.stop:
		case <-r.Context().Done():
		}
	case "/lies":
		rw.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(rw, "<p>short</p>")
	case "/bomb":
		rw.Header().Set("Content-Encoding", "gzip")
		_, _ = rw.Write(bomb())
	case "/deep":
		_, _ = io.WriteString(rw, strings.Repeat("<div>", 100_000)+"the core")
	case "/circle.pdf":
		rw.Header().Set("Content-Type", "application/pdf")
		_, _ = io.WriteString(rw, circle)
	case "/image":
		rw.Header().Set("Content-Type", "image/png")
		_, _ = io.WriteString(rw, "\x89PNG\r\n\x1a\n")
	default:
		rw.WriteHeader(http.StatusNotFound)
	}
}

// circle is a PDF whose first object contains itself.
const circle = "%PDF-1.5\n2 0 obj\n<< /Type /XRef /Size 3 /W [1 2 1] /Root 1 0 R /Length 12 >>\nstream\n" +
	"\x00\x00\x00\x00\x02\x00\x01\x00\x01\x00\x09\x00\nendstream\nendobj\nstartxref\n9\n%%EOF\n"

// bomb returns a page of 200 MiB compressed to less than 1 MiB.
var bomb = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	block := bytes.Repeat([]byte("<p>boom boom boom "), 1<<16)
	for range 200 {
		_, _ = z.Write(block)
	}
	_ = z.Close()
	return b.Bytes()
})
