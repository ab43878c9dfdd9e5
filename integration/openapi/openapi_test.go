//go:build integration

// Package openapi tests that /openapi.json of the real service is free of lint, and that a
// TypeScript client generated from it runs a whole session.
package openapi

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

var seed harness.Seed

func TestMain(m *testing.M) {
	code := m.Run()
	if err := seed.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func TestGeneratedTypeScriptClientRunsASession(t *testing.T) {
	harness.Need(t, harness.EnvBin)
	at, token := harness.ServeTCP(t, harness.Options{Runtime: "oci", Seed: &seed})
	res, err := http.Get(at.JoinPath("openapi.json").String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	description, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET /openapi.json = %d %s, %v; want 200", res.StatusCode, description, err)
	}
	ts := harness.NewTypeScript(t, "../scripts")
	harness.WriteFile(t, ts.Path("openapi.json"), string(description))
	if out, err := ts.Tool(t, "redocly", "lint", "--max-problems=1000", "--format=json", "openapi.json"); err != nil ||
		!clean(out) {
		t.Errorf("redocly lint: %v\n%s", err, out)
	}
	if out, err := ts.Tool(t, "openapi-typescript", "openapi.json", "-o", "src/schema.ts"); err != nil {
		t.Fatalf("openapi-typescript: %v\n%s", err, out)
	}
	ts.Build(t, "api.ts", "schema.ts")
	if out, err := ts.Node(t, "api.js", at.String(), token); err != nil {
		t.Errorf("api.js: %v\n%s", err, out)
	}
}

// clean reports whether redocly found neither errors nor warnings.
func clean(report string) bool {
	return strings.Contains(report, `"errors": 0`) && strings.Contains(report, `"warnings": 0`)
}
