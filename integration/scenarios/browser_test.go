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

// browserSeed has the browser's image too.
var browserSeed = harness.Seed{More: []string{harness.EnvBrowser}}

// pages are what browsers get. SITE is the address that was asked, PORT its port.
var pages = map[string]string{
	"/made": `<title>Made</title><a href="/more">more</a><a href="file:///etc/passwd">f</a>
<script>setTimeout(() => { const p = document.createElement("p"); p.id = "late"; p.textContent = "made by a script"; document.body.append(p) }, 300)</script>`,
	"/parts": `<title>Parts</title>own text<img src="SITE/refused.png"><iframe src="https://denied.site.test:PORT/"></iframe>
<script>console.error("words of the page"); new WebSocket("wss://denied.site.test:PORT/socket"); fetch("http://127.0.0.1:9222/json/list")</script>`,
	"/away":    `<script>location = "https://denied.site.test:PORT/"</script>`,
	"/inward":  `<script>location = "http://127.0.0.1:9222/json/list"</script>`,
	"/alerts":  `<script>for (;;) alert("no")</script>`,
	"/endless": `text before<script>onload = () => { for (;;); }</script>`,
	"/memory":  `<script>const all = []; for (;;) all.push(new Array(1e6).fill(Math.random()))</script>`,
	"/leave":   `stays<script>onbeforeunload = () => "stay"; open("SITE/made"); print(); alert("once")</script>`,
	"/tall":    `<body style="margin:0"><div style="height:20000px">tall</div>`,
}

// TestBrowser opens friendly and hostile pages in real browsers, with the
// template that the documentation has.
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
	eachOfAll(t, func(t *testing.T, name string) {
		site, config := browserSite(t)
		dir, profiles := harness.TempDir(t), harness.TempDir(t)
		harness.WriteFile(t, filepath.Join(dir, "browser.yaml"), string(example))
		u, _ := url.Parse(site)
		harness.WriteFile(t, filepath.Join(profiles, "team.yaml"), "name: team\nextends: gateway\ntools: [{name: browser, caps: {web: {allow: ['*'], ports: ["+u.Port()+"]}}}]\n")
		s := harness.Run(t, harness.Options{Runtime: name, Config: onDemand + "templates_dir: " + dir + "\nprofiles: {dir: '" + profiles + "'}\n" + config, Seed: &browserSeed})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, string)
		}{{"shows", browserShows}, {"refuses", browserRefuses}, {"survives", browserSurvives}, {"as the gateway has it", browserOfGateway}} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, site)
			})
		}
	})
}

// browserSite serves the pages by TLS, with an authority of its own, and gives
// its address and what a service needs to reach it.
func browserSite(t *testing.T) (site, config string) {
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
	port := portIn(t, srv.URL)
	return fmt.Sprintf("https://a.site.test:%d", port), fmt.Sprintf(`
egress: {resolver: ["%s"], private: [{hosts: ["*.site.test"], ranges: ["127.0.0.0/8"]}]}
web: {ca_file: "%s", fetch: {ports: [%[3]d]}}
browser: {open: {ports: [%[3]d], deny: ["denied.site.test"]}}
`, harness.Names(t), file, port)
}

// openedPage is what browser.open says of a page.
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

func openPage(t *testing.T, s *harness.Server, in map[string]any) (openedPage, v1.ToolResult) {
	t.Helper()
	r := call(t, s, "browser.open", v1.ToolCall{Input: input(t, in)}, client.CallOptions{})
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

func browserShows(t *testing.T, s *harness.Server, site string) {
	p, r := openPage(t, s, map[string]any{"url": site + "/made", "wait_for": "#late", "screenshot": "viewport", "pdf": true})
	if r.Ending != "ok" || p.Title != "Made" || p.FinalURL != site+"/made" || !p.Loaded || !strings.Contains(p.Content, "made by a script") {
		t.Fatalf("%+v %+v", r, p)
	}
	t.Logf("text, picture and PDF within %.0f ms", r.DurationMS)
	if len(p.Links) != 1 || p.Links[0].URL != site+"/more" || p.Links[0].Text != "more" {
		t.Errorf("links: %+v", p.Links)
	}
	if shot := p.Screenshot; shot == nil || shot.Width != 1280 || shot.Height != 800 {
		t.Errorf("a picture: %+v", shot)
	} else if c, err := png.DecodeConfig(bytes.NewReader(shot.PNG)); err != nil || c.Width != 1280 || c.Height != 800 {
		t.Errorf("a picture of %dx%d: %v", c.Width, c.Height, err)
	}
	if !bytes.HasPrefix(p.PDF, []byte("%PDF-")) {
		t.Errorf("a PDF: %.20q", p.PDF)
	}
	for _, part := range []string{"class container", "without a network interface", "seccomp", "uid 1000", "Chromium's own sandbox is off"} {
		contains(t, p.Isolation, part)
	}
	p, _ = openPage(t, s, map[string]any{"url": site + "/tall", "screenshot": "full", "width": 640, "height": 480})
	if shot := p.Screenshot; shot == nil || shot.Width != 640 || shot.Height < 10_000 || !shot.Cut {
		t.Errorf("a picture of a tall page: %+v", shot)
	}
	p, r = openPage(t, s, map[string]any{"url": site + "/made", "mode": "simple"})
	if r.Ending != "ok" || p.Mode != "simple" || strings.Contains(p.Content, "made by a script") || !strings.Contains(p.Content, "more") {
		t.Errorf("without a browser: %+v %+v", r, p)
	}
}

// browserRefuses: what the rules do not have is not reached, by whatever means a
// page has.
func browserRefuses(t *testing.T, s *harness.Server, site string) {
	p, r := openPage(t, s, map[string]any{"url": site + "/parts", "wait_ms": 1000})
	if r.Ending != "ok" || !strings.Contains(p.Content, "own text") || !strings.Contains(strings.Join(p.Errors, "\n"), "words of the page") {
		t.Errorf("%+v %+v", r, p)
	}
	blocked := fmt.Sprint(p.Blocked)
	contains(t, blocked, "denied.site.test")
	contains(t, blocked, "127.0.0.1")
	if len(p.Failed) == 0 {
		t.Error("no part has failed")
	}
	for path, reason := range map[string]string{"/away": "denied.site.test", "/inward": "127.0.0.1"} {
		if _, r := openPage(t, s, map[string]any{"url": site + path}); r.Ending != "failed" || r.Error == nil || !strings.Contains(r.Error.Message, reason) {
			t.Errorf("%s: %+v", path, r)
		}
	}
	if _, r := openPage(t, s, map[string]any{"url": "https://elsewhere.other.test/"}); r.Ending != "failed" || r.Error == nil {
		t.Errorf("a host that leads inward: %+v", r)
	}
	if _, r := openPage(t, s, map[string]any{"url": site + "/a.bin"}); r.Ending != "failed" || r.Error == nil || !strings.Contains(r.Error.Message, "download") {
		t.Errorf("a download: %+v", r)
	}
}

// browserSurvives: pages that use up time, memory or patience end in words.
func browserSurvives(t *testing.T, s *harness.Server, site string) {
	p, r := openPage(t, s, map[string]any{"url": site + "/leave", "timeout_ms": 120_000})
	if r.Ending != "ok" || p.Content != "stays" || p.Dialogs != 1 {
		t.Errorf("a page with a dialog: %+v %+v", r, p)
	}
	p, r = openPage(t, s, map[string]any{"url": site + "/endless", "timeout_ms": 18_000})
	if r.Ending == "ok" && (p.Content != "text before" || !p.ScriptsStopped) || r.Ending != "ok" && r.Ending != "timeout" {
		t.Errorf("a script without end: %+v %+v", r, p)
	}
	for path, words := range map[string]string{"/alerts": "too many dialogs", "/memory": "memory"} {
		if _, r = openPage(t, s, map[string]any{"url": site + path, "timeout_ms": 120_000}); r.Ending != "failed" || r.Error == nil || !strings.Contains(r.Error.Message, words) {
			t.Errorf("%s: %+v", path, r)
		}
	}
	if _, r = openPage(t, s, map[string]any{"url": site + "/made", "wait_for": "#never", "timeout_ms": 4000}); r.Ending != "timeout" {
		t.Errorf("a selector of nothing: %+v", r)
	}
	if _, r = openPage(t, s, map[string]any{"url": site + "/made", "wait_for": "##"}); r.Ending != "failed" || r.Error == nil || !strings.Contains(r.Error.Message, "wait_for") {
		t.Errorf("no selector: %+v", r)
	}
}

func browserOfGateway(t *testing.T, s *harness.Server, site string) {
	r := call(t, s, "browser", v1.ToolCall{Profile: "team", Input: input(t, map[string]any{"url": site + "/made", "waitForSelector": "#late", "screenshot": true})}, client.CallOptions{})
	var out struct{ Title, Content, Screenshot string }
	if err := json.Unmarshal(r.Output, &out); err != nil || r.Ending != "ok" {
		t.Fatalf("%+v: %v", r, err)
	}
	shot, err := base64.StdEncoding.DecodeString(out.Screenshot)
	if err != nil || !bytes.HasPrefix(shot, []byte("\x89PNG")) || out.Title != "Made" || !strings.Contains(out.Content, "made by a script") {
		t.Errorf("%.300s: %v", r.Output, err)
	}
}
