//go:build integration

package contracts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// phase2Model configures the model that is asked about pages, in section web of the service.
const phase2Model = `  extract: {kind: openai, url: "http://127.0.0.1:{HTTP}/v1", model: small}`

// phase2Web is the part of the contract about the web.
type phase2Web struct{ *harness.Website }

// tests returns the tests of the web tools.
func (w *phase2Web) tests() map[string]contractTest {
	fetch := func(test func(t *testing.T, a agent)) contractTest {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, operator(s, "phase2", "web.fetch")) }
	}
	return map[string]contractTest{
		"fetch-trust":     phase2Trust("web.fetch", 1),
		"fetch-effects":   phase2Effects("web.fetch", "calls(network)"),
		"fetch-input":     phase2Input("web.fetch", "url", "prompt"),
		"fetch-cacheable": w.testCacheable,
		"fetch-result":    fetch(w.testResult),
		"fetch-https":     fetch(w.testHTTPS),
		"fetch-markdown":  fetch(w.testMarkdown),
		"fetch-cache":     fetch(w.testCache),
		"fetch-cache-own": w.testCacheOwn,
		"fetch-redirect":  fetch(w.testRedirect),
		"fetch-redirect-same": fetch(func(t *testing.T, a agent) {
			assertFieldContains(t, a.fetch(t, w.URL("a", "/same")), "content", "# Prices")
		}),
		"fetch-cut":       fetch(w.testCut),
		"fetch-model":     fetch(w.testByModel),
		"fetch-passages":  fetch(w.testPassages),
		"fetch-timeout":   w.testTimeout,
		"fetch-denied":    w.testDenied,
		"fetch-sandbox":   fetch(w.testSandbox),
		"search-trust":    phase2Trust("web.search", 1),
		"search-effects":  phase2Effects("web.search", "calls(network)"),
		"search-input":    phase2Input("web.search", "query"),
		"search-result":   w.testSearch,
		"search-source":   w.testSearch,
		"search-provider": w.testProvider,
		"search-none":     w.testNoProvider,
		"trust-fetch":     phase2TrustOf("web.fetch", 1, fields{"url": w.URL("a", "/page")}),
		"trace-web": func(t *testing.T, s *harness.Server, _ line) {
			if got := closingRecord(t, s,
				operator(s, "phase2", "web.fetch").fetch(t, w.URL("trace", "/page"))); got.Ending != "ok" || got.Sandbox == "" {
				t.Errorf("closing record %+v, want ok with a sandbox", got)
			}
		},
	}
}

// fetch calls web.fetch.
func (a agent) fetch(t *testing.T, url string) v1.ToolResult {
	t.Helper()
	return a.call(t, fields{"url": url})
}

// assertFieldContains checks that a field of a call's output contains a part.
func assertFieldContains(t *testing.T, r v1.ToolResult, name, part string) {
	t.Helper()
	if got := fmt.Sprint(outputOf(t, r)[name]); !strings.Contains(got, part) {
		t.Errorf("field %s is %.1000q, want %q in it", name, got, part)
	}
}

func (w *phase2Web) testCacheable(t *testing.T, s *harness.Server, _ line) {
	if !toolNamed(t, s, "phase2", "web.fetch").Cacheable {
		t.Error("web.fetch is not cacheable, want it cacheable")
	}
}

func (w *phase2Web) testResult(t *testing.T, a agent) {
	r := a.fetch(t, w.URL("result", "/page"))
	assertFields(t, r, fields{
		"url":          w.URL("result", "/page"),
		"cached":       false,
		"redirect_url": nil,
		"truncated":    false,
		"extraction":   "none",
		"status":       200,
		"note":         nil,
	})
	if out := outputOf(t, r); len(out) != 8 || out["content"] == "" {
		t.Errorf("output %v, want 8 fields with content", out)
	}
}

func (w *phase2Web) testHTTPS(t *testing.T, a agent) {
	url := w.URL("upgrade", "/page")
	assertFields(t, a.fetch(t, strings.Replace(url, "https:", "http:", 1)), fields{"url": url, "status": 200})
}

func (w *phase2Web) testMarkdown(t *testing.T, a agent) {
	r := a.fetch(t, w.URL("markdown", "/page"))
	for _, part := range []string{
		"# Prices\n", "## History\n", "[more](" + w.URL("markdown", "/more") + ")", "| A |", "| B |",
	} {
		assertFieldContains(t, r, "content", part)
	}
	if text := fmt.Sprint(outputOf(t, r)["content"]); strings.Contains(text, "alert") || strings.Contains(text, "p{}") ||
		strings.Contains(text, "<p>") {
		t.Errorf("content %q, want no script, style or HTML", text)
	}
}

func (w *phase2Web) testCache(t *testing.T, a agent) {
	url := w.URL("cache", "/article")
	before := w.Hits("/article")
	assertFields(t, a.fetch(t, url), fields{"cached": false})
	r := a.call(t, fields{"url": url, "prompt": "the lamp"})
	assertFields(t, r, fields{"cached": true})
	if n := w.Hits("/article") - before; n != 1 || r.SandboxID != "" {
		t.Errorf("%d requests to the host, sandbox %q; want one request and no sandbox", n, r.SandboxID)
	}
}

func (w *phase2Web) testCacheOwn(t *testing.T, s *harness.Server, _ line) {
	before := w.Hits("/article")
	for _, who := range []string{"fetcher-1", "fetcher-2"} {
		a := newTokenAgent(t, s, v1.TokenRequest{Caller: who, Profile: "phase2", Trust: 1}, "web.fetch")
		assertFields(t, a.fetch(t, w.URL("own", "/article")), fields{"cached": false})
	}
	if n := w.Hits("/article") - before; n != 2 {
		t.Errorf("%d requests to the host, want 2", n)
	}
}

func (w *phase2Web) testRedirect(t *testing.T, a agent) {
	before, to := w.Hits("/page"), w.URL("b", "/page")
	assertFields(t, a.fetch(t, w.URL("a", "/cross")),
		fields{"url": w.URL("a", "/cross"), "redirect_url": to, "content": "Redirected to different host. Fetch: " + to})
	if w.Hits("/page") != before {
		t.Error("the redirect to another host was followed, want it reported only")
	}
}

func (w *phase2Web) testCut(t *testing.T, a agent) {
	r := a.fetch(t, w.URL("a", "/long"))
	assertFields(t, r, fields{"truncated": true})
	text, cut := strings.CutSuffix(fmt.Sprint(outputOf(t, r)["content"]), "\n... (content truncated)")
	if n := len([]rune(text)); !cut || n != 10_000 {
		t.Errorf("%d characters, cut %v; want 10,000 and the note", n, cut)
	}
}

func (w *phase2Web) testByModel(t *testing.T, a agent) {
	assertFields(t, a.call(t, fields{"url": w.URL("model", "/page"), "prompt": "What does the lamp cost?"}),
		fields{"extraction": "model", "content": "The model says: twelve.", "note": nil})
}

func (w *phase2Web) testPassages(t *testing.T, a agent) {
	r := a.call(t,
		fields{"url": w.URL("model", "/page"), "prompt": "What would the blue lamp cost, should the model be away?"})
	assertFields(t, r, fields{"extraction": "passages"})
	assertFieldContains(t, r, "content", "twelve crowns")
	assertFieldContains(t, r, "note", "sent status 503")
}

func (w *phase2Web) testTimeout(t *testing.T, s *harness.Server, _ line) {
	r := operator(s, "phase2-hasty", "web.fetch").fetch(t, w.URL("a", "/slow"))
	assertEnding(t, r, "timeout", "ToolTimeoutError", "Request timed out after 2.0s")
}

func (w *phase2Web) testDenied(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "phase2", "web.fetch")
	url := map[string]string{
		"name":     w.URL("denied", "/page"),
		"address":  fmt.Sprintf("https://x.other.test:%d/page", w.TLS),
		"loopback": fmt.Sprintf("https://127.0.0.1:%d/", w.TLS),
	}[lastOf(l)]
	says := map[string]string{
		"name":     "denied.site.test",
		"address":  "x.other.test is at 127.0.0.1",
		"loopback": "bare address 127.0.0.1",
	}[lastOf(l)]
	assertError(t, a.fetch(t, url), "failed", "SafetyViolation", says)
}

// testSandbox checks that a fetch has a separate sandbox, which is removed afterwards.
func (w *phase2Web) testSandbox(t *testing.T, a agent) {
	of := a.with("system.bash").run(t, "true").SandboxID
	r := a.fetch(t, w.URL("sandbox", "/page"))
	if r.SandboxID == "" || r.SandboxID == of {
		t.Errorf("web.fetch used sandbox %q, commands %q; want another one", r.SandboxID, of)
	}
	harness.Eventually(t, harness.Short, "the call's sandbox is gone", func() bool {
		list, err := a.s.Client.Sandboxes(callContext(t), false)
		return err == nil && !slices.ContainsFunc(list, func(s v1.Sandbox) bool { return s.ID == r.SandboxID })
	})
}

func (w *phase2Web) testSearch(t *testing.T, s *harness.Server, _ line) {
	r := operator(s, "phase2", "web.search").call(t, fields{"query": "lamps"})
	assertFields(t, r, fields{"query": "lamps", "count": 1})
	if out := outputOf(t, r); len(out) != 3 ||
		fmt.Sprint(out["results"]) != "[map[snippet:found title:About lamps url:https://a.example/]]" {
		t.Errorf("output %v, want 3 fields with one result", out)
	}
}

func (w *phase2Web) testProvider(t *testing.T, s *harness.Server, _ line) {
	r := operator(s, "phase2", "web.search").call(t, fields{"query": "too many"})
	assertEnding(t, r, "failed", "ToolError", "search provider brave sent status 429 Too Many Requests: try again in 7s")
}

func (w *phase2Web) testNoProvider(t *testing.T, _ *harness.Server, _ line) {
	s := harness.Run(t, harness.Options{Runtime: harness.Runtimes()[0], Seed: &seed})
	assertError(t, operator(s, "phase2", "web.search").call(t, fields{"query": "lamps"}), "failed", "ToolError",
		"web.search.provider")
}
