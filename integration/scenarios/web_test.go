//go:build integration

package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// bridged is a configuration of the gateway system that asks for a network.
const bridged = `{"tools": {"bash": {"enabled": true}, "sandbox": {"networkMode": "bridge"}}}`

// TestWeb holds the tools of the web to what they promise, against a site on
// loopback that is not always friendly.
func TestWeb(t *testing.T) {
	t.Parallel()
	eachKernel(t, func(t *testing.T, k kernel) {
		w := harness.NewWebsite(t, "")
		dir := harness.TempDir(t)
		harness.WriteFile(t, filepath.Join(dir, "bridged.json"), bridged)
		s := harness.Run(t, harness.Options{Runtime: k.runtime, Config: k.of(roomy) + w.Config + "\nprofiles: {dir: '" + dir + "'}\n", Seed: &seed})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, *harness.Website)
		}{
			{"pages", webPages},
			{"two callers", webTwoCallers},
			{"refusals", webRefusals},
			{"hostile pages", webHostile},
			{"requests", webRequests},
			{"search", webSearches},
			{"sessions get nothing of it", webSessions},
			{"its sandbox is nobody's", webPrivate},
			{"bridge", webBridge},
			{"records", webRecords},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, w)
			})
		}
	})
}

// web calls a tool and gives its output with the result.
func web(t *testing.T, s *harness.Server, tool string, in map[string]any) (map[string]any, v1.ToolResult) {
	t.Helper()
	r := call(t, s, tool, v1.ToolCall{Input: input(t, in)}, client.CallOptions{})
	out := map[string]any{}
	if r.Output != nil {
		if err := json.Unmarshal(r.Output, &out); err != nil {
			t.Fatal(err)
		}
	}
	return out, r
}

// fetch wants a page.
func fetch(t *testing.T, s *harness.Server, in map[string]any) map[string]any {
	t.Helper()
	out, r := web(t, s, "web.fetch", in)
	if r.Ending != "ok" {
		t.Fatalf("%v: %+v", in, r)
	}
	return out
}

func webPages(t *testing.T, s *harness.Server, w *harness.Website) {
	page := w.URL("a", "/page")
	out := fetch(t, s, map[string]any{"url": strings.Replace(page, "https:", "http:", 1) + "#top"})
	text := fmt.Sprint(out["content"])
	for _, part := range []string{"# Prices", "blue lamp", "[more](" + w.URL("a", "/more") + ")", "| B"} {
		contains(t, text, part)
	}
	if out["url"] != page || out["title"] != "Lamps" || out["cached"] != false || out["extraction"] != "none" || strings.Contains(text, "alert") {
		t.Errorf("%v", out)
	}
	out = fetch(t, s, map[string]any{"url": page, "prompt": "What does the blue lamp cost?"})
	if text = fmt.Sprint(out["content"]); out["cached"] != true || out["extraction"] != "passages" || !strings.Contains(text, "twelve crowns") || w.Hits("/page") != 1 {
		t.Errorf("asked %d times: %v", w.Hits("/page"), out)
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/same")})
	if out["final_url"] != page || out["redirect_url"] != nil {
		t.Errorf("a redirect within the host: %v", out)
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/cross")})
	if to := w.URL("b", "/page"); out["redirect_url"] != to || !strings.Contains(fmt.Sprint(out["content"]), to) || w.Hits("/page") != 2 {
		t.Errorf("a redirect to another host: %v", out)
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/long")})
	if text = fmt.Sprint(out["content"]); out["truncated"] != true || !strings.HasSuffix(text, "\n... (content truncated)") || len([]rune(text)) != 10_000+len("\n... (content truncated)") {
		t.Errorf("%d characters, truncated %v", len([]rune(text)), out["truncated"])
	}
	if out = fetch(t, s, map[string]any{"url": w.URL("a", "/missing")}); out["status"] != 404.0 || !strings.Contains(fmt.Sprint(out["content"]), "nothing here") {
		t.Errorf("a page that is not there: %v", out)
	}
	if out = fetch(t, s, map[string]any{"url": w.URL("a", "/text")}); out["content"] != "just <text>\n" && out["content"] != "just <text>" {
		t.Errorf("plain text: %v", out)
	}
	for range 2 {
		if out = fetch(t, s, map[string]any{"url": w.URL("a", "/cookie")}); out["cached"] != false {
			t.Errorf("what is for one visitor was cached: %v", out)
		}
	}
}

// webTwoCallers: what one caller fetched is for no other.
func webTwoCallers(t *testing.T, s *harness.Server, w *harness.Website) {
	page := w.URL("a", "/article")
	for i, who := range []string{"ann", "bob", "ann"} {
		tok, err := s.Client.CreateToken(within(t), v1.TokenRequest{Caller: who, Profile: "phase2", Trust: 1})
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: tok.Secret})
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		r, err := theirs.CallTool(within(t), "web.fetch", v1.ToolCall{Input: input(t, map[string]any{"url": page})}, client.CallOptions{})
		if err != nil || r.Ending != "ok" || !strings.Contains(string(r.Output), `"cached":false`) || w.Hits("/article") != i+1 {
			t.Errorf("%s: asked %d times: %+v %v", who, w.Hits("/article"), r, err)
		}
	}
}

// webRefusals are told with the reason, whoever decided.
func webRefusals(t *testing.T, s *harness.Server, w *harness.Website) {
	for _, c := range []struct{ tool, url, says string }{
		{"web.fetch", w.URL("denied", "/page"), "denied.site.test"},
		{"web.fetch", "https://a.site.test/", "a.site.test:443"},
		{"web.fetch", fmt.Sprintf("https://x.other.test:%d/page", w.TLS), "egress.private"},
		{"web.fetch", fmt.Sprintf("https://127.0.0.1:%d/", w.TLS), "127.0.0.1"},
		{"http.request", w.Plain("denied", "/page"), "denied.site.test"},
		{"http.request", w.Plain("a", "/inward"), "egress.private"},
		{"http.request", w.Plain("a", "/metadata"), "169.254.169.254"},
		{"http.request", "http://169.254.169.254/latest/", "169.254.169.254"},
	} {
		_, r := web(t, s, c.tool, map[string]any{"url": c.url})
		if r.Ending != "failed" || r.Error == nil || !strings.Contains(r.Error.Message, c.says) || strings.Contains(r.Error.Message, "\n") {
			t.Errorf("%s %s: %+v %+v; want %q", c.tool, c.url, r, r.Error, c.says)
		}
	}
	for in, field := range map[string]string{
		`{"url": "ftp://a.site.test/"}`: "url", `{"url": "https://u:p@a.site.test/"}`: "url", `{"url": "https://2130706433/"}`: "url", `{"url": "https://0177.0.0.1/"}`: "url",
		`{"url": "https://a.site.test/", "headers": {"X": "a\r\nb: c"}}`: "headers.X", `{"url": "https://a.site.test/", "headers": {"Host": "b"}}`: "headers.Host",
	} {
		s.Ask(t, "POST", "/v1/tools/http.request/call", `{"input": `+in+`}`).Problem(t, 400, "invalid_argument", field)
	}
}

// webPrivate: while a call has its sandbox, which reaches what the service lets
// its tools reach, nobody else gets into that.
func webPrivate(t *testing.T, s *harness.Server, w *harness.Website) {
	done, before := make(chan struct{}), w.Hits("/slow")
	ctx, leave := context.WithCancel(within(t))
	go func() { // waited for below
		defer close(done)
		_, _ = s.Client.CallTool(ctx, "web.fetch", v1.ToolCall{Input: input(t, map[string]any{"url": w.URL("a", "/slow"), "timeout_ms": 100_000})}, client.CallOptions{})
	}()
	defer func() { leave(); <-done }()
	id := ""
	harness.Eventually(t, harness.Short, "the call has its sandbox", func() bool {
		all, err := s.Client.Sandboxes(within(t), false)
		if err == nil && len(all) > 0 {
			id = all[0].ID
		}
		state, _ := s.Client.Sandbox(within(t), id)
		return id != "" && state.State == "leased" && w.Hits("/slow") > before
	})
	at := "/v1/sandboxes/" + id
	for _, c := range [][3]string{
		{"POST", at + "/exec", `{"command": "env"}`}, {"POST", at + "/shells", `{"command": "env"}`}, {"POST", at + "/sessions", `{}`},
		{"GET", at + "/files?path=/tmp", ""}, {"GET", at + "/egress", ""}, {"PUT", at + "/egress", `{"rules": [{"host": "a.site.test"}]}`}, {"GET", at + "/ports/80/", ""},
		{"POST", "/v1/tools/system.bash/call", `{"sandbox": "` + id + `", "input": {"command": "env"}}`},
	} {
		if got := s.Ask(t, c[0], c[1], c[2]); got.Status != 403 || !strings.Contains(string(got.Body), "belongs to a tool call") {
			t.Errorf("%s %s: %d %s", c[0], c[1], got.Status, got.Body)
		}
	}
}

// webHostile: pages that do not end, lie, or unfold end as errors or are cut,
// and nothing of them is left.
func webHostile(t *testing.T, s *harness.Server, w *harness.Website) {
	for path, want := range map[string][2]string{
		"/slow": {"timeout", ""}, "/lies": {"failed", ""}, "/loop": {"failed", "redirect"}, "/image": {"failed", "image/png"},
		"/circle.pdf": {"failed", "the program that converts it failed"}, // the program ends over it
	} {
		in := map[string]any{"url": w.URL("a", path)}
		if path == "/slow" { // the only one that does not end by itself
			in["timeout_ms"] = 2000
		}
		_, r := web(t, s, "web.fetch", in)
		if said := fmt.Sprint(r.Detail, r.Error); r.Ending != want[0] || !strings.Contains(said, want[1]) || r.Output != nil {
			t.Errorf("%s: %+v %+v", path, r, r.Error)
		}
	}
	if out := fetch(t, s, map[string]any{"url": w.URL("a", "/bomb")}); out["truncated"] != true || out["bytes"].(float64) > 11<<20 {
		t.Errorf("a bomb: %v bytes, truncated %v", out["bytes"], out["truncated"])
	}
	out, r := web(t, s, "web.fetch", map[string]any{"url": w.URL("a", "/deep")})
	if r.Ending != "ok" && r.Ending != "failed" {
		t.Errorf("a deep page: %+v %v", r, out)
	}
	noLease(t, s)
}

func webRequests(t *testing.T, s *harness.Server, w *harness.Website) {
	for _, address := range []string{w.URL("a", "/echo"), w.Plain("a", "/echo")} {
		out, r := web(t, s, "http.request", map[string]any{"url": address, "method": "PUT", "headers": map[string]any{"X-Mine": "1", "Authorization": "Bearer own"}, "body": "bödy"})
		var seen struct {
			Method, X, Host, Body string
			All                   map[string][]string
		}
		if err := json.Unmarshal([]byte(fmt.Sprint(out["body"])), &seen); err != nil || r.Ending != "ok" {
			t.Fatalf("%s: %v %+v %+v", address, err, r, r.Error)
		}
		if seen.Method != "PUT" || seen.X != "1" || seen.Body != "bödy" || fmt.Sprint(seen.All["Authorization"]) != "[Bearer own]" || seen.All["Proxy-Connection"] != nil {
			t.Errorf("%+v", seen)
		}
		if h := out["headers"].(map[string]any); h["x-twice"] != "1, 2" || out["status"] != 200.0 {
			t.Errorf("%v", out)
		}
	}
	out, r := web(t, s, "http.request", map[string]any{"url": w.URL("a", "/bytes")})
	if out["body_base64"] != "/wD+" || out["body"] != "" {
		t.Errorf("bytes: %v %+v", out, r)
	}
	if out, _ = web(t, s, "http.request", map[string]any{"url": w.URL("a", "/long"), "max_bytes": 100}); len(fmt.Sprint(out["body"])) > 100 || out["truncated"] != true {
		t.Errorf("a long answer: %v", out)
	}
	if out, _ = web(t, s, "http.request", map[string]any{"url": w.URL("a", "/cross")}); out["url"] != w.URL("b", "/page") || out["status"] != 200.0 {
		t.Errorf("a redirect: %v", out)
	}
	if out, _ = web(t, s, "http.request", map[string]any{"url": w.URL("a", "/cross"), "redirects": "none"}); out["redirect_url"] != w.URL("b", "/page") || out["status"] != 302.0 {
		t.Errorf("a redirect that is not followed: %v", out)
	}
}

func webSearches(t *testing.T, s *harness.Server, w *harness.Website) {
	out, r := web(t, s, "web.search", map[string]any{"query": "blue lamps & more"})
	if r.Ending != "ok" || out["count"] != 1.0 || out["dropped"] != 1.0 || fmt.Sprint(out["results"]) != "[map[snippet:found title:About blue lamps & more url:https://a.example/]]" {
		t.Errorf("%v %+v %+v", out, r, r.Error)
	}
	if _, r = web(t, s, "web.search", map[string]any{"query": "too many"}); r.Ending != "failed" || !strings.Contains(r.Error.Message, "429 Too Many Requests: try again in 7s") {
		t.Errorf("%+v %+v", r, r.Error)
	}
}

// webSessions: a call of the web in a session gives the session's own sandbox
// neither a proxy nor a way out.
func webSessions(t *testing.T, s *harness.Server, w *harness.Website) {
	bash := func(command string) string {
		r := call(t, s, "system.bash", v1.ToolCall{Session: "work", Input: input(t, map[string]any{"command": command})}, client.CallOptions{})
		var out struct{ Stdout string }
		if err := json.Unmarshal(r.Output, &out); err != nil {
			t.Fatal(err)
		}
		return out.Stdout
	}
	look := "env | grep -ci _proxy; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>&1 | grep -q refused && echo shut; " + interfaces
	before := bash(look)
	r := call(t, s, "web.fetch", v1.ToolCall{Session: "work", Input: input(t, map[string]any{"url": w.URL("a", "/page"), "fresh": true})}, client.CallOptions{})
	if after := bash(look); r.Ending != "ok" || before != "0\nshut\nlo\n" || after != before {
		t.Errorf("%q, then %q: %+v", before, after, r)
	}
	if err := s.Client.EndSession(within(t), "work"); err != nil {
		t.Error(err)
	}
}

// webBridge: networkMode bridge is all public egress by way of the gateway, and
// still no interface.
func webBridge(t *testing.T, s *harness.Server, w *harness.Website) {
	r := call(t, s, "bash", v1.ToolCall{Profile: "bridged", Session: "wide", Input: input(t, map[string]any{"command": "bash", "args": []string{"-c", fmt.Sprintf(
		interfaces+"; curl -sS -m 20 http://nowhere.example/; curl -sS -m 20 http://x.other.test/; curl -sS -m 20 http://a.site.test:%d/", w.HTTP)}})}, client.CallOptions{})
	var out struct{ Stdout, Stderr string }
	if err := json.Unmarshal(r.Output, &out); err != nil {
		t.Fatalf("%v %+v %+v", err, r, r.Error)
	}
	lines := strings.SplitN(out.Stdout, "\n", 2)
	if lines[0] != "lo" || !strings.Contains(lines[1], "nowhere.example") || !strings.Contains(lines[1], "egress.private") || !strings.Contains(lines[1], fmt.Sprint(w.HTTP)) {
		t.Errorf("%+v", out)
	}
	if err := s.Client.EndSession(within(t), "wide"); err != nil {
		t.Error(err)
	}
}

// webRecords: each connection is in the audit log with its sandbox, and the
// provider's key is nowhere.
func webRecords(t *testing.T, s *harness.Server, w *harness.Website) {
	want := map[string]bool{"a.site.test allow": false, "search.site.test allow": false, "x.other.test deny": false}
	harness.Eventually(t, harness.Short, "connections are recorded", func() bool {
		records, err := s.Client.Audit(within(t), client.AuditFilter{Action: "egress", Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Egress == nil || r.Sandbox == "" || r.Egress.Reason == "" {
				t.Errorf("%+v", r)
				continue
			}
			want[r.Egress.Host+" "+r.Verdict] = true
		}
		return want["a.site.test allow"] && want["search.site.test allow"] && want["x.other.test deny"]
	})
	s.Term()
	for _, name := range []string{"state.db", "state.db-wal", "audit.db", "audit.db-wal"} {
		b, err := os.ReadFile(filepath.Join(s.Dir(), name))
		if err == nil && strings.Contains(string(b), harness.SearchKey) {
			t.Errorf("%s holds the provider's key", name)
		}
	}
	if strings.Contains(s.Log(), harness.SearchKey) {
		t.Error("the log holds the provider's key")
	}
}
