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

// phase2Model is what is added to a service's section web: the model that is
// asked about pages.
const phase2Model = `  extract: {kind: openai, url: "http://127.0.0.1:{HTTP}/v1", model: small}`

// phase2Web is the part of the contract that is about the web.
type phase2Web struct{ *harness.Website }

func (w *phase2Web) tests() map[string]phase2Test {
	fetch := func(test func(t *testing.T, a agent)) phase2Test {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, operator(s, "phase2", "web.fetch")) }
	}
	return map[string]phase2Test{
		"fetch-trust":         phase2Trust("web.fetch", 1),
		"fetch-effects":       phase2Effects("web.fetch", "calls(network)"),
		"fetch-input":         phase2Input("web.fetch", "url", "prompt"),
		"fetch-cacheable":     w.cacheable,
		"fetch-result":        fetch(w.result),
		"fetch-https":         fetch(w.https),
		"fetch-markdown":      fetch(w.markdown),
		"fetch-cache":         fetch(w.cache),
		"fetch-cache-own":     w.cacheOwn,
		"fetch-redirect":      fetch(w.redirect),
		"fetch-redirect-same": fetch(func(t *testing.T, a agent) { like2(t, a.fetch(t, w.URL("a", "/same")), "content", "# Prices") }),
		"fetch-cut":           fetch(w.cut),
		"fetch-model":         fetch(w.byModel),
		"fetch-passages":      fetch(w.passages),
		"fetch-timeout":       w.timeout,
		"fetch-denied":        w.denied,
		"fetch-sandbox":       fetch(w.sandbox),
		"search-trust":        phase2Trust("web.search", 1),
		"search-effects":      phase2Effects("web.search", "calls(network)"),
		"search-input":        phase2Input("web.search", "query"),
		"search-result":       w.search,
		"search-source":       w.search,
		"search-provider":     w.provider,
		"search-none":         w.noProvider,
		"trust-fetch":         phase2TrustOf("web.fetch", 1, fields{"url": w.URL("a", "/page")}),
		"trace-web": func(t *testing.T, s *harness.Server, _ line) {
			if got := traced(t, s, operator(s, "phase2", "web.fetch").fetch(t, w.URL("trace", "/page"))); got.Ending != "ok" || got.Sandbox == "" {
				t.Errorf("%+v", got)
			}
		},
	}
}

func (a agent) fetch(t *testing.T, url string) v1.ToolResult {
	t.Helper()
	return a.call(t, fields{"url": url})
}

// like2 checks that a field of what a call gave back has a part.
func like2(t *testing.T, r v1.ToolResult, name, part string) {
	t.Helper()
	if got := fmt.Sprint(outputOf(t, r)[name]); !strings.Contains(got, part) {
		t.Errorf("%s is %.1000q, without %q", name, got, part)
	}
}

func (w *phase2Web) cacheable(t *testing.T, s *harness.Server, _ line) {
	if !toolNamed(t, s, "phase2", "web.fetch").Cacheable {
		t.Error("it is not")
	}
}

func (w *phase2Web) result(t *testing.T, a agent) {
	r := a.fetch(t, w.URL("result", "/page"))
	gives(t, r, fields{"url": w.URL("result", "/page"), "cached": false, "redirect_url": nil, "truncated": false, "extraction": "none", "status": 200, "note": nil})
	if out := outputOf(t, r); len(out) != 8 || out["content"] == "" {
		t.Errorf("%v", out)
	}
}

func (w *phase2Web) https(t *testing.T, a agent) {
	url := w.URL("upgrade", "/page")
	gives(t, a.fetch(t, strings.Replace(url, "https:", "http:", 1)), fields{"url": url, "status": 200})
}

func (w *phase2Web) markdown(t *testing.T, a agent) {
	r := a.fetch(t, w.URL("markdown", "/page"))
	for _, part := range []string{"# Prices\n", "## History\n", "[more](" + w.URL("markdown", "/more") + ")", "| A |", "| B |"} {
		like2(t, r, "content", part)
	}
	if text := fmt.Sprint(outputOf(t, r)["content"]); strings.Contains(text, "alert") || strings.Contains(text, "p{}") || strings.Contains(text, "<p>") {
		t.Errorf("%q", text)
	}
}

func (w *phase2Web) cache(t *testing.T, a agent) {
	url := w.URL("cache", "/article")
	before := w.Hits("/article")
	gives(t, a.fetch(t, url), fields{"cached": false})
	r := a.call(t, fields{"url": url, "prompt": "the lamp"})
	gives(t, r, fields{"cached": true})
	if n := w.Hits("/article") - before; n != 1 || r.SandboxID != "" {
		t.Errorf("the host was asked %d times, and sandbox %q was used", n, r.SandboxID)
	}
}

func (w *phase2Web) cacheOwn(t *testing.T, s *harness.Server, _ line) {
	before := w.Hits("/article")
	for _, who := range []string{"fetcher-1", "fetcher-2"} {
		a := holder(t, s, v1.TokenRequest{Caller: who, Profile: "phase2", Trust: 1}, "web.fetch")
		gives(t, a.fetch(t, w.URL("own", "/article")), fields{"cached": false})
	}
	if n := w.Hits("/article") - before; n != 2 {
		t.Errorf("the host was asked %d times", n)
	}
}

func (w *phase2Web) redirect(t *testing.T, a agent) {
	before, to := w.Hits("/page"), w.URL("b", "/page")
	gives(t, a.fetch(t, w.URL("a", "/cross")), fields{"url": w.URL("a", "/cross"), "redirect_url": to, "content": "Redirected to different host. Fetch: " + to})
	if w.Hits("/page") != before {
		t.Error("it was followed")
	}
}

func (w *phase2Web) cut(t *testing.T, a agent) {
	r := a.fetch(t, w.URL("a", "/long"))
	gives(t, r, fields{"truncated": true})
	text, cut := strings.CutSuffix(fmt.Sprint(outputOf(t, r)["content"]), "\n... (content truncated)")
	if n := len([]rune(text)); !cut || n != 10_000 {
		t.Errorf("%d characters, cut %v", n, cut)
	}
}

func (w *phase2Web) byModel(t *testing.T, a agent) {
	gives(t, a.call(t, fields{"url": w.URL("model", "/page"), "prompt": "What does the lamp cost?"}), fields{"extraction": "model", "content": "The model says: twelve.", "note": nil})
}

func (w *phase2Web) passages(t *testing.T, a agent) {
	r := a.call(t, fields{"url": w.URL("model", "/page"), "prompt": "What would the blue lamp cost, should the model be away?"})
	gives(t, r, fields{"extraction": "passages"})
	like2(t, r, "content", "twelve crowns")
	like2(t, r, "note", "sent status 503")
}

func (w *phase2Web) timeout(t *testing.T, s *harness.Server, _ line) {
	r := operator(s, "phase2-hasty", "web.fetch").fetch(t, w.URL("a", "/slow"))
	ends(t, r, "timeout", "ToolTimeoutError", "Request timed out after 2.0s")
}

func (w *phase2Web) denied(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "phase2", "web.fetch")
	url := map[string]string{
		"name": w.URL("denied", "/page"), "address": fmt.Sprintf("https://x.other.test:%d/page", w.TLS), "loopback": fmt.Sprintf("https://127.0.0.1:%d/", w.TLS),
	}[lastOf(l)]
	says := map[string]string{"name": "denied.site.test", "address": "x.other.test is at 127.0.0.1", "loopback": "bare address 127.0.0.1"}[lastOf(l)]
	like(t, a.fetch(t, url), "failed", "SafetyViolation", says)
}

// sandbox: the call's sandbox is not the session's, and is gone.
func (w *phase2Web) sandbox(t *testing.T, a agent) {
	of := a.with("system.bash").run(t, "true").SandboxID
	r := a.fetch(t, w.URL("sandbox", "/page"))
	if r.SandboxID == "" || r.SandboxID == of {
		t.Errorf("it ran in %q, and commands in %q", r.SandboxID, of)
	}
	harness.Eventually(t, harness.Short, "its sandbox is gone", func() bool {
		list, err := a.s.Client.Sandboxes(soon(t), false)
		return err == nil && !slices.ContainsFunc(list, func(s v1.Sandbox) bool { return s.ID == r.SandboxID })
	})
}

func (w *phase2Web) search(t *testing.T, s *harness.Server, _ line) {
	r := operator(s, "phase2", "web.search").call(t, fields{"query": "lamps"})
	gives(t, r, fields{"query": "lamps", "count": 1})
	if out := outputOf(t, r); len(out) != 3 || fmt.Sprint(out["results"]) != "[map[snippet:found title:About lamps url:https://a.example/]]" {
		t.Errorf("%v", out)
	}
}

func (w *phase2Web) provider(t *testing.T, s *harness.Server, _ line) {
	r := operator(s, "phase2", "web.search").call(t, fields{"query": "too many"})
	ends(t, r, "failed", "ToolError", "search provider brave sent status 429 Too Many Requests: try again in 7s")
}

func (w *phase2Web) noProvider(t *testing.T, _ *harness.Server, _ line) {
	s := harness.Run(t, harness.Options{Runtime: harness.Runtimes()[0], Seed: &seed})
	like(t, operator(s, "phase2", "web.search").call(t, fields{"query": "lamps"}), "failed", "ToolError", "web.search.provider")
}
