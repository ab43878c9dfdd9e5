//go:build integration

package contracts

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// get asks by the http tool.
func (a agent) get(t *testing.T, url string) v1.ToolResult {
	t.Helper()
	return a.call(t, fields{"method": "GET", "url": url})
}

// http are the lines about the http tool. The profile web has what a
// configuration can say of it.
func (g *gateway) http() table {
	w := g.site
	plain := func(s *harness.Server) agent { return operator(s, "gateway", "http") }
	limited := func(s *harness.Server) agent { return operator(s, "web", "http") }
	blocked := func(urls map[string]string, says string) func(t *testing.T, s *harness.Server, l line) {
		return func(t *testing.T, s *harness.Server, l line) {
			like(t, limited(s).get(t, urls[lastOf(l)]), "failed", "DomainBlocked", says)
		}
	}
	given := func(fields fields) func(t *testing.T, s *harness.Server, l line) {
		return func(t *testing.T, s *harness.Server, l line) {
			gives(t, limited(s).get(t, w.Plain(lastOf(l), "/page")), fields)
		}
	}
	return table{
		"http-method": func(t *testing.T, s *harness.Server, l line) {
			method, body := strings.ToUpper(lastOf(l)), ""
			in := fields{"method": method, "url": w.URL("a", "/echo")}
			if method != "GET" {
				body = "sent"
				in["body"] = body
			}
			seen := echoed(t, plain(s).call(t, in))
			if seen["method"] != method || seen["body"] != body {
				t.Errorf("%v", seen)
			}
		},
		"http-method-other": func(t *testing.T, s *harness.Server, _ line) {
			s.Ask(t, "POST", "/v1/tools/http/call", `{"profile": "gateway", "input": {"method": "PATCH", "url": "https://a.site.test/"}}`).Problem(t, 400, "invalid_argument", "method")
		},
		"http-methods": func(t *testing.T, s *harness.Server, _ line) {
			like(t, limited(s).call(t, fields{"method": "DELETE", "url": w.Plain("a", "/echo")}), "failed", "DomainBlocked", "method DELETE is not allowed: use GET, POST, PUT")
		},
		"http-result": func(t *testing.T, s *harness.Server, _ line) {
			r := plain(s).get(t, w.URL("a", "/missing"))
			gives(t, r, fields{"status": 404, "body": "<p>nothing here</p>", "encoding": "utf-8", "url": w.URL("a", "/missing"), "truncated": false})
			if out := outputOf(t, r); len(out) != 6 || out["headers"].(fields)["content-type"] != "text/html; charset=utf-8" {
				t.Errorf("%v", out)
			}
		},
		"http-bytes": func(t *testing.T, s *harness.Server, _ line) {
			gives(t, plain(s).get(t, w.URL("a", "/bytes")), fields{"body": base64.StdEncoding.EncodeToString([]byte{0xff, 0, 0xfe}), "encoding": "base64"})
		},
		"http-domains/exact": func(t *testing.T, s *harness.Server, _ line) {
			// The name itself is allowed, and the name servers have no address of it.
			if r := limited(s).get(t, fmt.Sprintf("http://site.test:%d/page", w.HTTP)); r.Error != nil && strings.Contains(r.Error.Message, "no rule allows") {
				t.Errorf("%+v", r.Error)
			}
		},
		"http-domains/below": given(fields{"status": 200}),
		"http-domains/other": blocked(map[string]string{"other": fmt.Sprintf("http://a.example:%d/", w.HTTP)}, "no rule allows a.example"),
		"http-domains/like":  blocked(map[string]string{"like": fmt.Sprintf("http://evilsite.test:%d/", w.HTTP)}, "no rule allows evilsite.test"),
		"http-blocked":       blocked(map[string]string{"exact": w.Plain("blocked", "/page"), "below": w.Plain("x.blocked", "/page")}, "is denied"),
		"http-private":       g.httpPrivate,
		"http-resolved":      blocked(map[string]string{"http-resolved": fmt.Sprintf("http://x.other.test:%d/page", w.HTTP)}, "x.other.test is at 127.0.0.1"),
		"http-redirect": func(t *testing.T, s *harness.Server, l line) {
			if l.id == "http-redirect" {
				gives(t, plain(s).get(t, w.URL("a", "/cross")), fields{"status": 200, "url": w.URL("b", "/page")})
				return
			}
			path := map[string]string{"private": "/metadata", "blocked": "/blocked"}[lastOf(l)]
			says := map[string]string{"private": "169.254.169.254", "blocked": "blocked.site.test"}[lastOf(l)]
			like(t, limited(s).get(t, w.Plain("a", path)), "failed", "DomainBlocked", says)
		},
		"http-timeout": func(t *testing.T, s *harness.Server, _ line) {
			ends(t, operator(s, "web-hasty", "http").get(t, w.Plain("a", "/slow")), "timeout", "Timeout", "Request timed out after 2500ms")
		},
		"http-size": func(t *testing.T, s *harness.Server, _ line) {
			r := limited(s).get(t, w.Plain("a", "/long"))
			gives(t, r, fields{"truncated": true})
			if n := len(fmt.Sprint(outputOf(t, r)["body"])); n > 1000 || n < 990 {
				t.Errorf("%d bytes", n)
			}
		},
		"http-headers": func(t *testing.T, s *harness.Server, _ line) {
			seen := echoed(t, plain(s).call(t, fields{"method": "GET", "url": w.URL("a", "/echo"), "headers": fields{"X-Mine": "this one"}}))
			if seen["x"] != "this one" {
				t.Errorf("%v", seen)
			}
		},
		"http-header": func(t *testing.T, s *harness.Server, l line) {
			s.Ask(t, "POST", "/v1/tools/http/call", fmt.Sprintf(`{"profile": "gateway", "input": {"method": "GET", "url": "https://a.site.test/", "headers": {%q: "x"}}}`, lastOf(l))).
				Problem(t, 400, "invalid_argument", "headers."+lastOf(l))
		},
		"http-header-lines": func(t *testing.T, s *harness.Server, _ line) {
			s.Ask(t, "POST", "/v1/tools/http/call", `{"profile": "gateway", "input": {"method": "GET", "url": "https://a.site.test/", "headers": {"X-A": "a\r\nHost: b"}}}`).
				Problem(t, 400, "invalid_argument", "headers.X-A")
		},
	}
}

// httpPrivate: none of these is asked, whatever the lists say.
func (g *gateway) httpPrivate(t *testing.T, s *harness.Server, l line) {
	url := fmt.Sprintf("http://%s:%d/page", lastOf(l), g.site.HTTP)
	for _, profile := range []string{"gateway", "web"} {
		got := s.Ask(t, "POST", "/v1/tools/http/call", fmt.Sprintf(`{"profile": %q, "input": {"method": "GET", "url": %q}}`, profile, url))
		if strings.Contains(lastOf(l), "0177") || strings.Contains(lastOf(l), "2130706433") {
			got.Problem(t, 400, "invalid_argument", "url")
			continue
		}
		var r v1.ToolResult
		got.Into(t, &r)
		// localhost is no name that the name servers know, or one at a loopback address.
		if r.Ending != "failed" || r.Error == nil || r.Output != nil {
			t.Errorf("%s: %+v %+v", profile, r, r.Error)
		}
	}
}

// echoed is what the site saw of a request.
func echoed(t *testing.T, r v1.ToolResult) (seen fields) {
	t.Helper()
	if err := json.Unmarshal([]byte(fmt.Sprint(outputOf(t, r)["body"])), &seen); err != nil {
		t.Fatalf("%v in %+v %+v", err, r, r.Error)
	}
	return seen
}
