package program

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

func TestURLs(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	for url, says := range map[string]string{
		"":                                         "no scheme",
		"site.example/x":                           "https://",
		"ftp://site.example/":                      "only http and https",
		"javascript:alert(1)":                      "only http and https",
		"file:///etc/passwd":                       "only http and https",
		"http:site.example":                        "no host",
		"https:///x":                               "no host",
		"https://user:pw@site.example/":            "user",
		"https://site.example@evil.org/":           "user",
		"https://site.example /":                   "%20",
		"https://site.example/a\r\nX: y":           "control character",
		"https://site.example:0/":                  "65535",
		"https://site.example:99999/":              "65535",
		"https://2130706433/":                      "number",
		"https://0x7f.0.0.1/":                      "number",
		"https://0177.0.0.0x1/":                    "number",
		"https://127.1/":                           "number",
		"https://a..b/":                            "empty",
		"https://a%41.example/":                    "URL",
		"https://[fe80::1%25eth0]/":                "not a valid host",
		"https://\\evil/":                          "URL",
		"https://exa\u00admple\u2028/":             "control character",
		"https://a\u202eb.example/":                "not a valid host name",
		"https://x/" + strings.Repeat("y", maxURL): "bytes",
	} {
		faulty(t, url[:min(len(url), 60)], w.fetch(t, web.Request{URL: url}), web.FaultURL, says)
	}
	if len(w.asked) > 0 {
		t.Errorf("requests for invalid URLs = %q, want none", w.asked)
	}
	for url, want := range map[string]string{
		"HTTPS://BÜCHER.Example:443/ü?q=ü#part": "https://xn--bcher-kva.example/%C3%BC?q=%C3%BC",
		"http://site.example.:80":               "http://site.example/",
		"https://site.example:8443/a%20b":       "https://site.example:8443/a%20b",
		"http://[::1]:8080/":                    "http://[::1]:8080/",
		"http://[::ffff:127.0.0.1]/":            "http://127.0.0.1/",
		"http://under_score.example/":           "http://under_score.example/",
	} {
		if u, err := parseURL(url); err != nil || u.String() != want {
			t.Errorf("parseURL(%s) = %v, %v; want %s", url, u, err, want)
		}
	}
}

func TestInvalidRequests(t *testing.T) {
	good := `"url":"http://x/","method":"GET","timeout_ms":100000,"max_bytes":10,"redirects":"none","form":"raw",` +
		`"proxy":"127.0.0.1:1"`
	for in, says := range map[string]string{
		``:                     "invalid request",
		`{"colour":1}`:         "colour",
		`{}`:                   "timeout_ms",
		`{` + good + `,"x":1}`: "x",
		strings.Replace(`{`+good+`}`, `"GET"`, `"GE T"`, 1):     "method",
		strings.Replace(`{`+good+`}`, `"none"`, `"all"`, 1):     "redirects",
		strings.Replace(`{`+good+`}`, `"raw"`, `"pdf"`, 1):      "form",
		strings.Replace(`{`+good+`}`, `127.0.0.1:1`, ``, 1):     "proxy",
		`{` + good + `,"header":[["X","a\r\nY: b"]]}`:           "control character",
		`{` + good + `,"header":[["X y","a"]]}`:                 "invalid field name",
		`{` + good + `,"header":[["hOst","a"]]}`:                "remove it",
		`{` + good + `,"header":[["Proxy-Authorization","a"]]}`: "remove it",
		`{` + good + `,"roots":"nothing"}`:                      "PEM",
		`{"url":"` + strings.Repeat("x", web.MaxRequest) + `"}`: "bytes",
	} {
		faulty(t, in[:min(len(in), 80)], run(t, []byte(in)), web.FaultRequest, says)
	}
	faulty(t, "no proxy there", run(t, []byte(`{`+good+`}`)), web.FaultConnect, "proxy")
}

// redirecting redirects /to/STATUS/LOCATION to LOCATION with STATUS.
func redirecting(rw http.ResponseWriter, r *http.Request) {
	status, to, ok := strings.Cut(strings.TrimPrefix(r.URL.RequestURI(), "/to/"), "/")
	var code int
	if _, err := fmt.Sscan(status, &code); err != nil || !ok {
		if r.URL.Path == "/cookie" && len(r.Cookies()) == 0 {
			http.SetCookie(rw, &http.Cookie{Name: "seen", Value: "1"})
			rw.Header().Set("Location", "/cookie")
			rw.WriteHeader(http.StatusFound)
			return
		}
		body, _ := io.ReadAll(r.Body)
		rw.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(rw, "%s %s body=%s auth=%s key=%s lang=%s type=%s cookies=%d", r.Method, r.URL.RequestURI(), body,
			r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), r.Header.Get("Accept-Language"),
			r.Header.Get("Content-Type"), len(r.Cookies()))
		return
	}
	rw.Header().Set("Location", strings.ReplaceAll(to, "SELF", r.URL.RequestURI()))
	rw.WriteHeader(code)
}

func TestRedirects(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(redirecting))
	const site = "https://site.example"
	secrets := [][2]string{{"Authorization", "Bearer s"}, {"x-api-key", "k"}, {"Accept-Language", "de"},
		{"Content-Type", "a/b"}}
	for _, c := range []struct {
		url, redirects, method string
		text, to, kind, says   string
		hops                   int
	}{
		{url: site + "/to/301/end", kind: web.FaultRedirect, says: "loop"}, // relative, so to itself
		{url: site + "/to/302/../end", text: "GET /end body= auth=Bearer s key=k lang=de type=a/b"},
		{url: site + "/to/301///other.example/end", text: "GET /end body= auth= key= lang=de type=a/b"},
		{url: site + "/to/302/https://other.example/end", redirects: web.SameHost, to: "https://other.example/end"},
		{url: site + "/to/302///end", redirects: web.SameHost, to: "https://end/"},
		{url: site + "/to/302/https://site.example/end%23part", redirects: web.SameHost, text: "GET /end"},
		{url: site + "/to/302/https://site.example/end", redirects: web.None, to: site + "/end"},
		{url: site + "/to/302/http://site.example/end", to: "http://site.example/end"},
		{url: "http://site.example/to/302/https://site.example/end", redirects: web.SameHost,
			text: "GET /end body= auth=Bearer s"},
		{url: site + "/to/302/https://site.example/end", method: "POST",
			text: "GET /end body= auth=Bearer s key=k lang=de type= "},
		{url: site + "/to/303/https://site.example/end", method: "PUT", text: "GET /end body= "},
		{url: site + "/to/302/https://site.example/end", method: "PUT", text: "PUT /end body=b "},
		{url: site + "/to/307/https://site.example/end", method: "POST", text: "POST /end body=b auth=Bearer s"},
		{url: site + "/to/307/https://other.example/end", method: "POST", text: "GET /end body= auth= key="},
		{url: site + "/to/302/SELF", kind: web.FaultRedirect, says: "loop"},
		{url: site + "/to/302/https://other.example/to/302/https://site.example/end", kind: web.FaultRedirect,
			says: "more than 1 ", hops: 1},
		{url: site + "/to/302/javascript:alert(1)", kind: web.FaultRedirect, says: "only http"},
		{url: site + "/to/302/https://u:p@other.example/", kind: web.FaultRedirect, says: "user"},
		{url: site + "/to/302/?" + strings.Repeat("x", 3000) + "SELFSELF", kind: web.FaultRedirect, says: "bytes"},
		{url: site + "/to/302/http://[::1", kind: web.FaultRedirect, says: "invalid URL"},
		{url: site + "/to/302/https://denied.example/", kind: web.FaultDenied, says: "no rule allows denied.example"},
		{url: site + "/to/300/https://other.example/", text: ""},
		{url: "http://site.example/cookie", text: "GET /cookie"},
	} {
		req := web.Request{URL: c.url, Method: c.method, Redirects: c.redirects, MaxRedirects: 5, Header: secrets}
		if c.redirects == "" {
			req.Redirects = web.Follow
		}
		if c.hops > 0 {
			req.MaxRedirects = c.hops
		}
		if c.method != "" {
			req.Body = []byte("b")
		}
		a := w.fetch(t, req)
		faulty(t, c.url[:min(len(c.url), 80)], a, c.kind, c.says)
		if !strings.HasPrefix(a.Text, c.text) || c.kind == "" && a.RedirectURL != c.to {
			t.Errorf("%s %s: text %q, redirect %q; want %q, %q", c.method, c.url, a.Text, a.RedirectURL, c.text, c.to)
		}
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set(web.RefusalHeader, "denied") // forged by the host
		rw.WriteHeader(http.StatusForbidden)
		io.WriteString(rw, "the site's own")
	}))
	a := w.fetch(t, web.Request{URL: "https://site.example/"})
	if faulty(t, "a site's 403", a, "", ""); a.Status != 403 || a.Text != "the site's own" {
		t.Errorf("answer %+v, want the 403 of the site", a)
	}
	for url, want := range map[string][2]string{
		"https://denied.example/":    {web.FaultDenied, "no rule allows denied.example"},
		"http://www.denied.example/": {web.FaultDenied, "no rule allows www.denied.example"},
		"https://nowhere.example/":   {web.FaultName, "no address"},
		"http://nowhere.example/":    {web.FaultName, "no address"},
		"https://untrusted.example/": {web.FaultTLS, "not trusted"},
		"https://site.example:80/":   {web.FaultTLS, "does not support TLS"},
	} {
		faulty(t, url, w.fetch(t, web.Request{URL: url}), want[0], want[1])
	}
	other, _ := newAuthority(t)
	faulty(t, "another authority", w.fetch(t, web.Request{URL: "https://site.example/", Roots: string(other)}),
		web.FaultTLS, "not trusted")
}

func TestInvalidHTTP(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	for _, c := range []struct{ name, sends, kind, says, text string }{
		{name: "nothing", kind: web.FaultProtocol, says: "no valid HTTP response"},
		{name: "garbage", sends: "\x00\x01\x02 hello\r\n\r\n", kind: web.FaultProtocol, says: "no valid HTTP response"},
		{name: "too long a header", sends: ok + "X: " + strings.Repeat("y", maxHeader) + "\r\n\r\n",
			kind: web.FaultProtocol, says: "no valid HTTP response"},
		{name: "shorter than it says", sends: ok + "Content-Length: 100\r\n\r\nhalf", kind: web.FaultProtocol,
			says: "than announced", text: "half"},
		{name: "longer than it says", sends: ok + "Content-Length: 4\r\n\r\nhalf and more", text: "half"},
		{name: "two lengths", sends: ok + "Content-Length: 4\r\nContent-Length: 9\r\n\r\nhalf and more",
			kind: web.FaultProtocol},
		{name: "a broken chunk", sends: ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
			kind: web.FaultProtocol, says: "body", text: "half"},
		{name: "an unknown packing", sends: ok + "Content-Encoding: lzma\r\n\r\nx", kind: web.FaultProtocol,
			says: "lzma"},
		{name: "no gzip", sends: ok + "Content-Encoding: gzip\r\n\r\nhello there", kind: web.FaultProtocol,
			says: "gzip"},
		{name: "a line end in a value", sends: ok + "X: a\rInjected: b\r\nContent-Length: 2\r\n\r\nok", text: "ok"},
		{name: "a line end in Location", sends: "HTTP/1.1 302 OK\r\nLocation: /a\rX: b\r\nContent-Length: 0\r\n\r\n",
			kind: web.FaultProtocol},
	} {
		w.raw = func(conn net.Conn) { io.WriteString(conn, c.sends) }
		a := w.fetch(t, web.Request{URL: "http://raw.example/", Redirects: web.None})
		if c.name == "a line end in a value" || c.name == "a line end in Location" {
			// The value may be refused or accepted as one value, but must not become another field.
			if slices.ContainsFunc(a.Header, func(f [2]string) bool { return f[0] == "Injected" }) ||
				strings.ContainsAny(a.RedirectURL, "\r\n") {
				t.Errorf("%s: answer = %+v, want no field Injected and a redirect of one line", c.name, a)
			}
			continue
		}
		faulty(t, c.name, a, c.kind, c.says)
		if a.Text != c.text {
			t.Errorf("%s: text %q, want %q", c.name, a.Text, c.text)
		}
	}
	held := make(chan struct{})
	defer close(held)
	w.raw = func(conn net.Conn) { io.WriteString(conn, ok+"\r\nslow"); <-held }
	// On a busy machine, the response before the silence may need more time.
	var a *web.Answer
	for ms := int64(300); ms <= 300_000 && (a == nil || a.Bytes != 4); ms *= 10 {
		a = w.fetch(t, web.Request{URL: "http://raw.example/", TimeoutMS: ms})
	}
	if faulty(t, "slow", a, web.FaultTimeout, "time"); a.Status != 200 || a.Bytes != 4 {
		t.Errorf("answer %+v, want status 200 and 4 bytes", a)
	}
}
