//go:build integration

package scenarios

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// browserSeed adds the browser's image.
var browserSeed = harness.Seed{More: []string{harness.EnvBrowser}}

// pages are the site's pages by path. SITE is replaced by the requested address, PORT by its port.
var pages = map[string]string{
	"/made": `<title>Made</title><a href="/more">more</a><a href="file:///etc/passwd">f</a>
<script>setTimeout(() => {
  const p = document.createElement("p"); p.id = "late"; p.textContent = "made by a script"; document.body.append(p)
}, 300)</script>`,
	"/parts": `<title>Parts</title>own text<img src="SITE/refused.png"><iframe src="https://denied.site.test:PORT/"></iframe>
<script>console.error("words of the page"); new WebSocket("wss://denied.site.test:PORT/socket");
fetch("http://127.0.0.1:9222/json/list")</script>`,
	"/away":    `<script>location = "https://denied.site.test:PORT/"</script>`,
	"/inward":  `<script>location = "http://127.0.0.1:9222/json/list"</script>`,
	"/alerts":  `<script>for (;;) alert("no")</script>`,
	"/endless": `text before<script>onload = () => { for (;;); }</script>`,
	"/memory":  `<script>const all = []; for (;;) all.push(new Array(1e6).fill(Math.random()))</script>`,
	"/leave":   `stays<script>onbeforeunload = () => "stay"; open("SITE/made"); print(); alert("once")</script>`,
	"/tall":    `<body style="margin:0"><div style="height:20000px">tall</div>`,
}

// TestBrowser opens friendly and hostile pages in real browsers, with the template from the
// documentation.
func TestBrowser(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() {
		if err := browserSeed.Close(); err != nil {
			t.Error(err)
		}
	})
	example, err := os.ReadFile("../../docs/examples/templates/browser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	onAllRuntimes(t, func(t *testing.T, name string) {
		site, config := browserSite(t)
		dir, profiles := harness.TempDir(t), harness.TempDir(t)
		harness.WriteFile(t, filepath.Join(dir, "browser.yaml"), string(example))
		u, _ := url.Parse(site)
		harness.WriteFile(t, filepath.Join(profiles, "team.yaml"),
			"name: team\nextends: gateway\ntools: [{name: browser, caps: {web: {allow: ['*'], ports: ["+u.Port()+"]}}}]\n")
		config = onDemand + "templates_dir: " + dir + "\nprofiles: {dir: '" + profiles + "'}\n" + config
		s := harness.Run(t, harness.Options{Runtime: name, Config: config, Seed: &browserSeed})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, string)
		}{
			{"shows", testBrowserShows},
			{"refuses", testBrowserRefuses},
			{"survives", testBrowserSurvives},
			{"as the gateway has it", testBrowserOfGateway},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, site)
			})
		}
	})
}

// browserSite serves the pages over TLS with a separate certificate authority. It returns the
// site's address and the configuration that a service needs to reach it.
func browserSite(t *testing.T) (site, config string) {
	t.Helper()
	leaf, ca := harness.Authority(t, "*.site.test")
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if page, ok := pages[r.URL.Path]; ok {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, port, _ := net.SplitHostPort(r.Host)
			_, _ = strings.NewReplacer("SITE", "https://"+r.Host, "PORT", port).WriteString(w, page)
			return
		}
		w.Header().Set("Content-Disposition", "attachment; filename=a.bin")
		_, _ = io.WriteString(w, "bytes")
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{leaf}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	file := filepath.Join(harness.TempDir(t), "ca.pem")
	harness.WriteFile(t, file, ca)
	port := urlPort(t, srv.URL)
	return fmt.Sprintf("https://a.site.test:%d", port), fmt.Sprintf(`
egress: {resolver: ["%s"], private: [{hosts: ["*.site.test"], ranges: ["127.0.0.0/8"]}]}
web: {ca_file: "%s", fetch: {ports: [%[3]d]}}
browser: {open: {ports: [%[3]d], deny: ["denied.site.test"]}}
`, harness.Names(t), file, port)
}

// openedPage is the output of browser.open.
type openedPage struct {
	FinalURL, Title, Content, Mode, Isolation string
	Loaded, Truncated, ScriptsStopped         bool
	Dialogs                                   int
	Links                                     []struct{ URL, Text string }
	Errors                                    []string
	Failed                                    []struct{ URL, Error string }
	Blocked                                   []struct {
		Host, Reason string
		Port         int
	}
	Screenshot *struct {
		Width, Height int
		Cut           bool
		PNG           []byte `json:"png_base64"`
	}
	PDF []byte `json:"pdf_base64"`
}

// openPage calls browser.open with the input in.
func openPage(t *testing.T, s *harness.Server, in map[string]any) (openedPage, v1.ToolResult) {
	t.Helper()
	r := callTool(t, s, "browser.open", v1.ToolCall{Input: input(t, in)}, client.CallOptions{})
	var out struct {
		openedPage
		FinalURL       string `json:"final_url"`
		ScriptsStopped bool   `json:"scripts_stopped"`
	}
	if r.Output != nil {
		if err := json.Unmarshal(r.Output, &out); err != nil {
			t.Fatal(err)
		}
	}
	out.openedPage.FinalURL, out.openedPage.ScriptsStopped = out.FinalURL, out.ScriptsStopped
	return out.openedPage, r
}

// testBrowserShows opens friendly pages: text, links, screenshots and PDF must be right.
func testBrowserShows(t *testing.T, s *harness.Server, site string) {
	p, r := openPage(t, s,
		map[string]any{"url": site + "/made", "wait_for": "#late", "screenshot": "viewport", "pdf": true})
	if r.Ending != "ok" || p.Title != "Made" || p.FinalURL != site+"/made" || !p.Loaded ||
		!strings.Contains(p.Content, "made by a script") {
		t.Fatalf("open /made: %+v, page %+v; want title Made and the script's text", r, p)
	}
	t.Logf("text, screenshot and PDF within %.0f ms", r.DurationMS)
	if len(p.Links) != 1 || p.Links[0].URL != site+"/more" || p.Links[0].Text != "more" {
		t.Errorf("links of /made = %+v, want only /more", p.Links)
	}
	if shot := p.Screenshot; shot == nil || shot.Width != 1280 || shot.Height != 800 {
		t.Errorf("screenshot = %+v, want 1280x800", shot)
	} else if c, err := png.DecodeConfig(bytes.NewReader(shot.PNG)); err != nil || c.Width != 1280 || c.Height != 800 {
		t.Errorf("PNG of %dx%d, %v; want 1280x800", c.Width, c.Height, err)
	}
	if !bytes.HasPrefix(p.PDF, []byte("%PDF-")) {
		t.Errorf("PDF begins with %.20q, want %%PDF-", p.PDF)
	}
	for _, part := range []string{
		"class container", "without a network interface", "seccomp", "uid 1000", "Chromium's own sandbox is off",
	} {
		assertContains(t, p.Isolation, part)
	}
	p, _ = openPage(t, s, map[string]any{"url": site + "/tall", "screenshot": "full", "width": 640, "height": 480})
	if shot := p.Screenshot; shot == nil || shot.Width != 640 || shot.Height < 10_000 || !shot.Cut {
		t.Errorf("screenshot of /tall = %+v, want width 640, cut, and at least 10,000 high", shot)
	}
	p, r = openPage(t, s, map[string]any{"url": site + "/made", "mode": "simple"})
	if r.Ending != "ok" || p.Mode != "simple" || strings.Contains(p.Content, "made by a script") ||
		!strings.Contains(p.Content, "more") {
		t.Errorf("open /made without a browser: %+v, page %+v; want mode simple without the script's text", r, p)
	}
}

// testBrowserRefuses checks that a page reaches only what the rules allow, whatever means it uses.
func testBrowserRefuses(t *testing.T, s *harness.Server, site string) {
	p, r := openPage(t, s, map[string]any{"url": site + "/parts", "wait_ms": 1000})
	if r.Ending != "ok" || !strings.Contains(p.Content, "own text") ||
		!strings.Contains(strings.Join(p.Errors, "\n"), "words of the page") {
		t.Errorf("open /parts: %+v, page %+v; want its own text and the logged error", r, p)
	}
	blocked := fmt.Sprint(p.Blocked)
	assertContains(t, blocked, "denied.site.test")
	assertContains(t, blocked, "127.0.0.1")
	if len(p.Failed) == 0 {
		t.Error("open /parts: no failed request, want some")
	}
	for path, reason := range map[string]string{"/away": "denied.site.test", "/inward": "127.0.0.1"} {
		if _, r := openPage(t, s, map[string]any{"url": site + path}); r.Ending != "failed" || r.Error == nil ||
			!strings.Contains(r.Error.Message, reason) {
			t.Errorf("open %s: %+v, want failed because of %s", path, r, reason)
		}
	}
	if _, r := openPage(t, s, map[string]any{"url": "https://elsewhere.other.test/"}); r.Ending != "failed" ||
		r.Error == nil {
		t.Errorf("open a host with a private address: %+v, want failed", r)
	}
	if _, r := openPage(t, s, map[string]any{"url": site + "/a.bin"}); r.Ending != "failed" || r.Error == nil ||
		!strings.Contains(r.Error.Message, "download") {
		t.Errorf("open a download: %+v, want failed because of the download", r)
	}
}

// testBrowserSurvives opens pages that consume time, memory or dialogs. Each must end with an error
// message.
func testBrowserSurvives(t *testing.T, s *harness.Server, site string) {
	p, r := openPage(t, s, map[string]any{"url": site + "/leave", "timeout_ms": 120_000})
	if r.Ending != "ok" || p.Content != "stays" || p.Dialogs != 1 {
		t.Errorf("open /leave: %+v, page %+v; want its text and one dialog", r, p)
	}
	p, r = openPage(t, s, map[string]any{"url": site + "/endless", "timeout_ms": 18_000})
	if r.Ending == "ok" && (p.Content != "text before" || !p.ScriptsStopped) || r.Ending != "ok" && r.Ending != "timeout" {
		t.Errorf("open /endless: %+v, page %+v; want stopped scripts or a timeout", r, p)
	}
	for path, words := range map[string]string{"/alerts": "too many dialogs", "/memory": "memory"} {
		if _, r = openPage(t, s, map[string]any{"url": site + path, "timeout_ms": 120_000}); r.Ending != "failed" ||
			r.Error == nil || !strings.Contains(r.Error.Message, words) {
			t.Errorf("open %s: %+v, want failed because of %q", path, r, words)
		}
	}
	if _, r = openPage(t, s,
		map[string]any{"url": site + "/made", "wait_for": "#never", "timeout_ms": 4000}); r.Ending != "timeout" {
		t.Errorf("wait_for without a match: %+v, want timeout", r)
	}
	if _, r = openPage(t, s, map[string]any{"url": site + "/made", "wait_for": "##"}); r.Ending != "failed" ||
		r.Error == nil || !strings.Contains(r.Error.Message, "wait_for") {
		t.Errorf("invalid wait_for: %+v, want failed with the field's name", r)
	}
}

// testBrowserOfGateway calls the tool with the input and output of the gateway profile.
func testBrowserOfGateway(t *testing.T, s *harness.Server, site string) {
	in := input(t, map[string]any{"url": site + "/made", "waitForSelector": "#late", "screenshot": true})
	r := callTool(t, s, "browser", v1.ToolCall{Profile: "team", Input: in}, client.CallOptions{})
	var out struct{ Title, Content, Screenshot string }
	if err := json.Unmarshal(r.Output, &out); err != nil || r.Ending != "ok" {
		t.Fatalf("tool browser: %+v, %v; want ok and JSON output", r, err)
	}
	shot, err := base64.StdEncoding.DecodeString(out.Screenshot)
	if err != nil || !bytes.HasPrefix(shot, []byte("\x89PNG")) || out.Title != "Made" ||
		!strings.Contains(out.Content, "made by a script") {
		t.Errorf("output %.300s, %v; want a PNG, title Made and the script's text", r.Output, err)
	}
}
