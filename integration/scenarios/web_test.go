//go:build integration

package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// bridged is a configuration of the gateway that asks for a network.
const bridged = `{"tools": {"bash": {"enabled": true}, "sandbox": {"networkMode": "bridge"}}}`

// TestWeb tests the web tools against a site on loopback with friendly and hostile pages.
func TestWeb(t *testing.T) {
	t.Parallel()
	onAllKernels(t, func(t *testing.T, k kernel) {
		w := harness.NewWebsite(t, "")
		dir := harness.TempDir(t)
		harness.WriteFile(t, filepath.Join(dir, "bridged.json"), bridged)
		config := k.config(roomy) + w.Config + "\nprofiles: {dir: '" + dir + "'}\n"
		s := harness.Run(t, harness.Options{Runtime: k.runtime, Config: config, Seed: &seed})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, *harness.Website)
		}{
			{"pages", testWebPages},
			{"two callers", testWebTwoCallers},
			{"refusals", testWebRefusals},
			{"hostile pages", testWebHostile},
			{"requests", testWebRequests},
			{"search", testWebSearches},
			{"sessions get no network", testWebSessions},
			{"its sandbox is private", testWebPrivate},
			{"bridge", testWebBridge},
			{"records", testWebRecords},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, w)
			})
		}
	})
}

// web calls a tool and returns its decoded output and the result.
func web(t *testing.T, s *harness.Server, tool string, in map[string]any) (map[string]any, v1.ToolResult) {
	t.Helper()
	r := callTool(t, s, tool, v1.ToolCall{Input: input(t, in)}, client.CallOptions{})
	out := map[string]any{}
	if r.Output != nil {
		if err := json.Unmarshal(r.Output, &out); err != nil {
			t.Fatal(err)
		}
	}
	return out, r
}

// fetch fetches a page, which must succeed.
func fetch(t *testing.T, s *harness.Server, in map[string]any) map[string]any {
	t.Helper()
	out, r := web(t, s, "web.fetch", in)
	if r.Ending != "ok" {
		t.Fatalf("web.fetch %v = %+v, want ok", in, r)
	}
	return out
}

// testWebPages fetches pages: conversion, prompts, redirects, limits and caching.
func testWebPages(t *testing.T, s *harness.Server, w *harness.Website) {
	page := w.URL("a", "/page")
	out := fetch(t, s, map[string]any{"url": strings.Replace(page, "https:", "http:", 1) + "#top"})
	text := fmt.Sprint(out["content"])
	for _, part := range []string{"# Prices", "blue lamp", "[more](" + w.URL("a", "/more") + ")", "| B"} {
		assertContains(t, text, part)
	}
	if out["url"] != page || out["title"] != "Lamps" || out["cached"] != false || out["extraction"] != "none" ||
		strings.Contains(text, "alert") {
		t.Errorf("/page = %v, want it converted, with its URL and title, and not cached", out)
	}
	out = fetch(t, s, map[string]any{"url": page, "prompt": "What does the blue lamp cost?"})
	text = fmt.Sprint(out["content"])
	if out["cached"] != true || out["extraction"] != "passages" || !strings.Contains(text, "twelve crowns") ||
		w.Hits("/page") != 1 {
		t.Errorf("/page with a prompt = %v after %d requests, want the cached passages after 1", out, w.Hits("/page"))
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/same")})
	if out["final_url"] != page || out["redirect_url"] != nil {
		t.Errorf("redirect within the host = %v, want %s followed", out, page)
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/cross")})
	to := w.URL("b", "/page")
	if out["redirect_url"] != to || !strings.Contains(fmt.Sprint(out["content"]), to) || w.Hits("/page") != 2 {
		t.Errorf("redirect to another host = %v, want it reported as %s", out, to)
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/long")})
	const cut = "\n... (content truncated)"
	text = fmt.Sprint(out["content"])
	if out["truncated"] != true || !strings.HasSuffix(text, cut) || len([]rune(text)) != 10_000+len(cut) {
		t.Errorf("/long has %d characters, truncated %v; want 10,000 and the note", len([]rune(text)), out["truncated"])
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/missing")})
	if out["status"] != 404.0 || !strings.Contains(fmt.Sprint(out["content"]), "nothing here") {
		t.Errorf("missing page = %v, want status 404 with its content", out)
	}
	out = fetch(t, s, map[string]any{"url": w.URL("a", "/text")})
	if out["content"] != "just <text>\n" && out["content"] != "just <text>" {
		t.Errorf("plain text = %v, want it unchanged", out)
	}
	for range 2 {
		if out = fetch(t, s, map[string]any{"url": w.URL("a", "/cookie")}); out["cached"] != false {
			t.Errorf("/cookie = %v, want it not cached", out)
		}
	}
}

// testWebTwoCallers checks that what one caller fetched is not cached for another.
func testWebTwoCallers(t *testing.T, s *harness.Server, w *harness.Website) {
	page := w.URL("a", "/article")
	for i, who := range []string{"ann", "bob", "ann"} {
		tok, err := s.Client.Tokens.Create(within(t), v1.TokenRequest{Caller: who, Profile: "phase2", Trust: 1})
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: tok.Secret})
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		r, err := theirs.Tools.Call(within(t), "web.fetch", v1.ToolCall{
			Input: input(t, map[string]any{"url": page}),
		}, client.CallOptions{})
		if err != nil || r.Ending != "ok" || !strings.Contains(string(r.Output), `"cached":false`) ||
			w.Hits("/article") != i+1 {
			t.Errorf("web.fetch of %s = %+v, %v after %d requests; want it not cached after %d",
				who, r, err, w.Hits("/article"), i+1)
		}
	}
}

// testWebRefusals checks that refusals give the reason.
func testWebRefusals(t *testing.T, s *harness.Server, w *harness.Website) {
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
		message := ""
		if r.Error != nil {
			message = r.Error.Message
		}
		if r.Ending != "failed" || !strings.Contains(message, c.says) || strings.Contains(message, "\n") {
			t.Errorf("%s %s: ending %s, error %q; want failed with %q on one line", c.tool, c.url, r.Ending, message, c.says)
		}
	}
	for in, field := range map[string]string{
		`{"url": "ftp://a.site.test/"}`:                                  "url",
		`{"url": "https://u:p@a.site.test/"}`:                            "url",
		`{"url": "https://2130706433/"}`:                                 "url",
		`{"url": "https://0177.0.0.1/"}`:                                 "url",
		`{"url": "https://a.site.test/", "headers": {"X": "a\r\nb: c"}}`: "headers.X",
		`{"url": "https://a.site.test/", "headers": {"Host": "b"}}`:      "headers.Host",
	} {
		s.Ask(t, "POST", "/v1/tools/http.request/call", `{"input": `+in+`}`).
			Problem(t, 400, "invalid_argument", field)
	}
}

// testWebPrivate checks that no caller gets into the sandbox of a running call, which reaches what
// the service allows its tools.
func testWebPrivate(t *testing.T, s *harness.Server, w *harness.Website) {
	done, before := make(chan struct{}), w.Hits("/slow")
	ctx, leave := context.WithCancel(within(t))
	slow := v1.ToolCall{Input: input(t, map[string]any{"url": w.URL("a", "/slow"), "timeout_ms": 100_000})}
	go func() { // the end is received from done
		defer close(done)
		_, _ = s.Client.Tools.Call(ctx, "web.fetch", slow, client.CallOptions{})
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
		{"POST", at + "/exec", `{"command": "env"}`},
		{"POST", at + "/shells", `{"command": "env"}`},
		{"POST", at + "/sessions", `{}`},
		{"GET", at + "/files?path=/tmp", ""},
		{"GET", at + "/egress", ""},
		{"PUT", at + "/egress", `{"rules": [{"host": "a.site.test"}]}`},
		{"GET", at + "/ports/80/", ""},
		{"POST", "/v1/tools/system.bash/call", `{"sandbox": "` + id + `", "input": {"command": "env"}}`},
	} {
		if got := s.Ask(t, c[0], c[1], c[2]); got.Status != 403 ||
			!strings.Contains(string(got.Body), "belongs to a tool call") {
			t.Errorf("%s %s: status %d, want 403 because of the tool call: %s", c[0], c[1], got.Status, got.Body)
		}
	}
}

// testWebHostile fetches pages that are endless, lie about their size, or unfold. Each must end
// with an error or be cut, and leave no lease.
func testWebHostile(t *testing.T, s *harness.Server, w *harness.Website) {
	for path, want := range map[string][2]string{
		"/slow":       {"timeout", ""},
		"/lies":       {"failed", ""},
		"/loop":       {"failed", "redirect"},
		"/image":      {"failed", "image/png"},
		"/circle.pdf": {"failed", "the program that converts it failed"}, // the program crashes
	} {
		in := map[string]any{"url": w.URL("a", path)}
		if path == "/slow" { // the only page without an end
			in["timeout_ms"] = 2000
		}
		_, r := web(t, s, "web.fetch", in)
		message := fmt.Sprint(r.Detail, r.Error)
		if r.Ending != want[0] || !strings.Contains(message, want[1]) || r.Output != nil {
			t.Errorf("fetch %s: %+v, error %+v; want %s with %q", path, r, r.Error, want[0], want[1])
		}
	}
	out := fetch(t, s, map[string]any{"url": w.URL("a", "/bomb")})
	if out["truncated"] != true || out["bytes"].(float64) > 11<<20 {
		t.Errorf("compressed page: %v bytes, truncated %v; want at most 11 MiB, truncated", out["bytes"], out["truncated"])
	}
	out, r := web(t, s, "web.fetch", map[string]any{"url": w.URL("a", "/deep")})
	if r.Ending != "ok" && r.Ending != "failed" {
		t.Errorf("deeply nested page: %+v, %v; want ok or failed", r, out)
	}
	awaitNoLease(t, s)
}

// testWebRequests sends requests with http.request: method, header and body, bytes, limits and
// redirects.
func testWebRequests(t *testing.T, s *harness.Server, w *harness.Website) {
	for _, address := range []string{w.URL("a", "/echo"), w.Plain("a", "/echo")} {
		out, r := web(t, s, "http.request", map[string]any{
			"url":     address,
			"method":  "PUT",
			"headers": map[string]any{"X-Mine": "1", "Authorization": "Bearer own"},
			"body":    "bödy",
		})
		var seen struct {
			Method, X, Host, Body string
			All                   map[string][]string
		}
		if err := json.Unmarshal([]byte(fmt.Sprint(out["body"])), &seen); err != nil || r.Ending != "ok" {
			t.Fatalf("http.request %s: %v, %+v, error %+v; want ok with the echoed request", address, err, r, r.Error)
		}
		if seen.Method != http.MethodPut || seen.X != "1" || seen.Body != "bödy" ||
			fmt.Sprint(seen.All["Authorization"]) != "[Bearer own]" || seen.All["Proxy-Connection"] != nil {
			t.Errorf("the site got %+v, want the request's method, header and body", seen)
		}
		if h := out["headers"].(map[string]any); h["x-twice"] != "1, 2" || out["status"] != 200.0 {
			t.Errorf("http.request = %v, want status 200 with both values of x-twice", out)
		}
	}
	out, r := web(t, s, "http.request", map[string]any{"url": w.URL("a", "/bytes")})
	if out["body_base64"] != "/wD+" || out["body"] != "" {
		t.Errorf("/bytes = %v, %+v; want the bytes in base64", out, r)
	}
	out, _ = web(t, s, "http.request", map[string]any{"url": w.URL("a", "/long"), "max_bytes": 100})
	if len(fmt.Sprint(out["body"])) > 100 || out["truncated"] != true {
		t.Errorf("/long with max_bytes 100 = %v, want it truncated", out)
	}
	out, _ = web(t, s, "http.request", map[string]any{"url": w.URL("a", "/cross")})
	if out["url"] != w.URL("b", "/page") || out["status"] != 200.0 {
		t.Errorf("redirect to another host = %v, want it followed", out)
	}
	out, _ = web(t, s, "http.request", map[string]any{"url": w.URL("a", "/cross"), "redirects": "none"})
	if out["redirect_url"] != w.URL("b", "/page") || out["status"] != 302.0 {
		t.Errorf("redirect with redirects none = %v, want it reported with status 302", out)
	}
}

// testWebSearches searches, also when the provider refuses.
func testWebSearches(t *testing.T, s *harness.Server, w *harness.Website) {
	out, r := web(t, s, "web.search", map[string]any{"query": "blue lamps & more"})
	const results = "[map[snippet:found title:About blue lamps & more url:https://a.example/]]"
	if r.Ending != "ok" || out["count"] != 1.0 || out["dropped"] != 1.0 || fmt.Sprint(out["results"]) != results {
		t.Errorf("web.search = %v, %+v, error %+v; want one result and one dropped", out, r, r.Error)
	}
	_, r = web(t, s, "web.search", map[string]any{"query": "too many"})
	if r.Ending != "failed" || !strings.Contains(r.Error.Message, "429 Too Many Requests: try again in 7s") {
		t.Errorf("web.search that the provider refuses: %+v, error %+v; want failed with the time to retry", r, r.Error)
	}
}

// testWebSessions checks that a web call in a session gives the session's sandbox neither a proxy
// nor a network.
func testWebSessions(t *testing.T, s *harness.Server, w *harness.Website) {
	bash := func(command string) string {
		in := input(t, map[string]any{"command": command})
		r := callTool(t, s, "system.bash", v1.ToolCall{Session: "work", Input: in}, client.CallOptions{})
		var out struct{ Stdout string }
		if err := json.Unmarshal(r.Output, &out); err != nil {
			t.Fatal(err)
		}
		return out.Stdout
	}
	look := "env | grep -ci _proxy; (exec 3<>/dev/tcp/127.0.0.1/3128) 2>&1 | grep -q refused && echo shut; " +
		interfaces
	before := bash(look)
	in := input(t, map[string]any{"url": w.URL("a", "/page"), "fresh": true})
	r := callTool(t, s, "web.fetch", v1.ToolCall{Session: "work", Input: in}, client.CallOptions{})
	if after := bash(look); r.Ending != "ok" || before != "0\nshut\nlo\n" || after != before {
		t.Errorf("the session's network was %q and is %q, web.fetch %+v; want no proxy and only loopback", before, after, r)
	}
	if err := s.Client.Tools.EndSession(within(t), "work"); err != nil {
		t.Error(err)
	}
}

// testWebBridge checks that networkMode bridge gives a sandbox public egress through the gateway,
// and no network interface.
func testWebBridge(t *testing.T, s *harness.Server, w *harness.Website) {
	look := interfaces + "; curl -sS -m 20 http://nowhere.example/; curl -sS -m 20 http://x.other.test/; " +
		"curl -sS -m 20 http://a.site.test:%d/"
	in := input(t, map[string]any{"command": "bash", "args": []string{"-c", fmt.Sprintf(look, w.HTTP)}})
	r := callTool(t, s, "bash", v1.ToolCall{Profile: "bridged", Session: "wide", Input: in}, client.CallOptions{})
	var out struct{ Stdout, Stderr string }
	if err := json.Unmarshal(r.Output, &out); err != nil {
		t.Fatalf("tool bash: %v, %+v, error %+v; want JSON output", err, r, r.Error)
	}
	lines := strings.SplitN(out.Stdout, "\n", 2)
	for _, part := range []string{"nowhere.example", "egress.private", fmt.Sprint(w.HTTP)} {
		if lines[0] != "lo" || !strings.Contains(lines[1], part) {
			t.Errorf("the sandbox printed %+v, want only loopback, and answers with %s", out, part)
		}
	}
	if err := s.Client.Tools.EndSession(within(t), "wide"); err != nil {
		t.Error(err)
	}
}

// testWebRecords checks that every connection is recorded with its sandbox, and that no file has
// the provider's key.
func testWebRecords(t *testing.T, s *harness.Server, w *harness.Website) {
	want := map[string]bool{"a.site.test allow": false, "search.site.test allow": false, "x.other.test deny": false}
	harness.Eventually(t, harness.Short, "the connections are recorded", func() bool {
		records, err := s.Client.Audit.Records(within(t), client.AuditFilter{Action: "egress", Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Egress == nil || r.Sandbox == "" || r.Egress.Reason == "" {
				t.Errorf("record %+v, want it with egress, sandbox and reason", r)
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
			t.Errorf("%s has the provider's key, want no file with it", name)
		}
	}
	if strings.Contains(s.Log(), harness.SearchKey) {
		t.Error("the log has the provider's key, want it absent")
	}
}
