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

// get sends a GET request with the http tool.
func (a agent) get(t *testing.T, url string) v1.ToolResult {
	t.Helper()
	return a.call(t, fields{"method": "GET", "url": url})
}

// http returns the tests of the http tool. Profile web has every setting of the tool.
func (g *gateway) http() table {
	w := g.site
	plain := func(s *harness.Server) agent { return operator(s, "gateway", "http") }
	limited := func(s *harness.Server) agent { return operator(s, "web", "http") }
	blocked := func(urls map[string]string, says string) func(t *testing.T, s *harness.Server, l line) {
		return func(t *testing.T, s *harness.Server, l line) {
			assertError(t, limited(s).get(t, urls[lastOf(l)]), "failed", "DomainBlocked", says)
		}
	}
	given := func(fields fields) func(t *testing.T, s *harness.Server, l line) {
		return func(t *testing.T, s *harness.Server, l line) {
			assertFields(t, limited(s).get(t, w.Plain(lastOf(l), "/page")), fields)
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
			seen := echoedRequest(t, plain(s).call(t, in))
			if seen["method"] != method || seen["body"] != body {
				t.Errorf("the site got %v, want method %s and body %q", seen, method, body)
			}
		},
		"http-method-other": func(t *testing.T, s *harness.Server, _ line) {
			input := `{"method": "PATCH", "url": "https://a.site.test/"}`
			s.Ask(t, "POST", "/v1/tools/http/call", `{"profile": "gateway", "input": `+input+`}`).
				Problem(t, 400, "invalid_argument", "method")
		},
		"http-methods": func(t *testing.T, s *harness.Server, _ line) {
			assertError(t, limited(s).call(t, fields{"method": "DELETE", "url": w.Plain("a", "/echo")}), "failed",
				"DomainBlocked", "method DELETE is not allowed: use GET, POST, PUT")
		},
		"http-result": func(t *testing.T, s *harness.Server, _ line) {
			r := plain(s).get(t, w.URL("a", "/missing"))
			assertFields(t, r, fields{
				"status":    404,
				"body":      "<p>nothing here</p>",
				"encoding":  "utf-8",
				"url":       w.URL("a", "/missing"),
				"truncated": false,
			})
			if out := outputOf(t, r); len(out) != 6 || out["headers"].(fields)["content-type"] != "text/html; charset=utf-8" {
				t.Errorf("output %v, want six fields with the header", out)
			}
		},
		"http-bytes": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, plain(s).get(t, w.URL("a", "/bytes")),
				fields{"body": base64.StdEncoding.EncodeToString([]byte{0xff, 0, 0xfe}), "encoding": "base64"})
		},
		"http-domains/exact": func(t *testing.T, s *harness.Server, _ line) {
			// The name itself is allowed, but the name servers have no address for it.
			if r := limited(s).get(t, fmt.Sprintf("http://site.test:%d/page", w.HTTP)); r.Error != nil &&
				strings.Contains(r.Error.Message, "no rule allows") {
				t.Errorf("error %+v, want none about rules", r.Error)
			}
		},
		"http-domains/below": given(fields{"status": 200}),
		"http-domains/other": blocked(map[string]string{"other": fmt.Sprintf("http://a.example:%d/", w.HTTP)},
			"no rule allows a.example"),
		"http-domains/like": blocked(map[string]string{"like": fmt.Sprintf("http://evilsite.test:%d/", w.HTTP)},
			"no rule allows evilsite.test"),
		"http-blocked": blocked(map[string]string{
			"exact": w.Plain("blocked", "/page"), "below": w.Plain("x.blocked", "/page"),
		}, "is denied"),
		"http-private": g.testHTTPPrivate,
		"http-resolved": blocked(map[string]string{"http-resolved": fmt.Sprintf("http://x.other.test:%d/page", w.HTTP)},
			"x.other.test is at 127.0.0.1"),
		"http-redirect": func(t *testing.T, s *harness.Server, l line) {
			if l.id == "http-redirect" {
				assertFields(t, plain(s).get(t, w.URL("a", "/cross")), fields{"status": 200, "url": w.URL("b", "/page")})
				return
			}
			path := map[string]string{"private": "/metadata", "blocked": "/blocked"}[lastOf(l)]
			says := map[string]string{"private": "169.254.169.254", "blocked": "blocked.site.test"}[lastOf(l)]
			assertError(t, limited(s).get(t, w.Plain("a", path)), "failed", "DomainBlocked", says)
		},
		"http-timeout": func(t *testing.T, s *harness.Server, _ line) {
			assertEnding(t, operator(s, "web-hasty", "http").get(t, w.Plain("a", "/slow")), "timeout", "Timeout",
				"Request timed out after 2500ms")
		},
		"http-size": func(t *testing.T, s *harness.Server, _ line) {
			r := limited(s).get(t, w.Plain("a", "/long"))
			assertFields(t, r, fields{"truncated": true})
			if n := len(fmt.Sprint(outputOf(t, r)["body"])); n > 1000 || n < 990 {
				t.Errorf("body of %d bytes, want 990 to 1000", n)
			}
		},
		"http-headers": func(t *testing.T, s *harness.Server, _ line) {
			seen := echoedRequest(t,
				plain(s).call(t, fields{"method": "GET", "url": w.URL("a", "/echo"), "headers": fields{"X-Mine": "this one"}}))
			if seen["x"] != "this one" {
				t.Errorf("the site got %v, want header X-Mine", seen)
			}
		},
		"http-header": func(t *testing.T, s *harness.Server, l line) {
			input := fmt.Sprintf(`{"method": "GET", "url": "https://a.site.test/", "headers": {%q: "x"}}`, lastOf(l))
			s.Ask(t, "POST", "/v1/tools/http/call", `{"profile": "gateway", "input": `+input+`}`).
				Problem(t, 400, "invalid_argument", "headers."+lastOf(l))
		},
		"http-header-lines": func(t *testing.T, s *harness.Server, _ line) {
			input := `{"method": "GET", "url": "https://a.site.test/", "headers": {"X-A": "a\r\nHost: b"}}`
			s.Ask(t, "POST", "/v1/tools/http/call", `{"profile": "gateway", "input": `+input+`}`).
				Problem(t, 400, "invalid_argument", "headers.X-A")
		},
	}
}

// testHTTPPrivate checks that private addresses are refused, whatever the lists allow.
func (g *gateway) testHTTPPrivate(t *testing.T, s *harness.Server, l line) {
	url := fmt.Sprintf("http://%s:%d/page", lastOf(l), g.site.HTTP)
	for _, profile := range []string{"gateway", "web"} {
		got := s.Ask(t, "POST", "/v1/tools/http/call", fmt.Sprintf(`{"profile": %q, "input": {"method": "GET", "url": %q}}`,
			profile, url))
		if strings.Contains(lastOf(l), "0177") || strings.Contains(lastOf(l), "2130706433") {
			got.Problem(t, 400, "invalid_argument", "url")
			continue
		}
		var r v1.ToolResult
		got.Into(t, &r)
		// The name servers either do not know localhost, or return a loopback address.
		if r.Ending != "failed" || r.Error == nil || r.Output != nil {
			t.Errorf("profile %s: %+v, error %+v; want failed without output", profile, r, r.Error)
		}
	}
}

// echoedRequest returns the request as the site received it.
func echoedRequest(t *testing.T, r v1.ToolResult) (seen fields) {
	t.Helper()
	if err := json.Unmarshal([]byte(fmt.Sprint(outputOf(t, r)["body"])), &seen); err != nil {
		t.Fatalf("decode the echoed request: %v in %+v %+v", err, r, r.Error)
	}
	return seen
}
