//go:build integration

package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// suiteTime is the timeout of one scenario of the suite.
const suiteTime = 5 * time.Minute

const (
	fixtureTool     = "needs a fixture: tools of the suite's own server"
	fixtureResource = "needs a fixture: resources of the suite's own server"
	fixturePrompt   = "needs a fixture: prompts of the suite's own server"
)

// suite maps every server scenario of the public suite to the reason it is skipped, or "".
var suite = map[string]string{
	"server-initialize":           "",
	"ping":                        "",
	"logging-set-level":           "",
	"completion-complete":         "",
	"tools-list":                  "",
	"server-sse-multiple-streams": "",
	"resources-list":              "",
	"resources-subscribe":         "",
	"resources-unsubscribe":       "",
	"prompts-list":                "",
	"dns-rebinding-protection":    "",

	"tools-call-simple-text":       fixtureTool,
	"tools-call-image":             fixtureTool,
	"tools-call-audio":             fixtureTool,
	"tools-call-embedded-resource": fixtureTool,
	"tools-call-mixed-content":     fixtureTool,
	"tools-call-with-logging":      fixtureTool,
	"tools-call-error":             fixtureTool,
	"tools-call-with-progress":     fixtureTool,
	"tools-call-sampling":          fixtureTool,
	"tools-call-elicitation":       fixtureTool,
	"json-schema-2020-12":          fixtureTool,
	"elicitation-sep1034-defaults": fixtureTool,
	"elicitation-sep1330-enums":    fixtureTool,
	"server-sse-polling":           fixtureTool,

	"resources-read-text":      fixtureResource,
	"resources-read-binary":    fixtureResource,
	"resources-templates-read": fixtureResource,

	"prompts-get-simple":            fixturePrompt,
	"prompts-get-with-args":         fixturePrompt,
	"prompts-get-embedded-resource": fixturePrompt,
	"prompts-get-with-image":        fixturePrompt,
}

// conformance runs the suite's program.
func conformance(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	defer cancel()
	bin := filepath.Join(dir, "node_modules", ".bin")
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "node"),
		append([]string{filepath.Join(bin, "conformance")}, args...)...)
	cmd.Dir = t.TempDir() // it writes its results to the working directory
	out, err := cmd.CombinedOutput()
	return string(out), errors.Join(err, ctx.Err())
}

// TestPublicConformanceSuite runs the scenarios of the public suite that need no fixtures of its
// own server.
func TestPublicConformanceSuite(t *testing.T) {
	harness.Need(t, harness.EnvBin)
	if os.Getenv("ORCHESTRATOR_TEST_NO_MCP_SUITE") != "" {
		t.Skip("ORCHESTRATOR_TEST_NO_MCP_SUITE is set")
	}
	t.Parallel()
	install := exec.Command("../scripts/mcp.sh")
	install.Stderr = os.Stderr
	path, err := install.Output()
	if err != nil {
		t.Fatalf("install the suite: %v (see above; ORCHESTRATOR_TEST_NO_MCP_SUITE=1 skips it)", err)
	}
	dir := strings.TrimSpace(string(path))

	// A scenario that is not in the table must not be skipped.
	listed, err := conformance(t, dir, "list", "--server")
	if err != nil {
		t.Fatalf("list of scenarios: %v\n%s", err, listed)
	}
	found := regexp.MustCompile(`(?m)^\s+- (\S+)`).FindAllStringSubmatch(listed, -1)
	all := make([]string, 0, len(found))
	for _, m := range found {
		all = append(all, m[1])
		if _, ok := suite[m[1]]; !ok {
			t.Errorf("the table lacks the scenario %s of the suite, want it there", m[1])
		}
	}
	for name := range suite {
		if !slices.Contains(all, name) {
			t.Errorf("the suite lacks the scenario %s of the table, want it in\n%s", name, listed)
		}
	}

	to, token := harness.ServeTCP(t, harness.Options{Runtime: "oci", Seed: &seed})
	at := addToken(t, to, token) // the suite sends none
	slices.Sort(all)
	for _, name := range all {
		t.Run(name, func(t *testing.T) {
			if why := suite[name]; why != "" {
				t.Skip(why)
			}
			t.Parallel()
			out, err := conformance(t, dir, "server", "--url", at+"/mcp", "--scenario", name)
			if err != nil {
				t.Errorf("conformance: %v\n%s", err, out)
			}
		})
	}
}

// addToken starts a proxy that adds the token to requests, and returns its URL.
func addToken(t *testing.T, to *url.URL, token string) string {
	t.Helper()
	way := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Read the body before answering: net/http closes it then, and a proxy that still reads it
		// reports a server failure.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		way.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL
}
