//go:build integration

package mcp

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestOfficialTypeScriptClient runs the official client against the real service: see
// integration/typescript/src/mcp.ts.
func TestOfficialTypeScriptClient(t *testing.T) {
	bin := harness.Need(t, harness.EnvBin)
	t.Parallel()
	ts := harness.NewTypeScript(t, "../scripts")
	ts.Build(t, "mcp.ts")
	t.Run("over HTTP", func(t *testing.T) {
		t.Parallel()
		at, token := harness.ServeTCP(t, harness.Options{Runtime: "oci", Seed: &seed})
		if out, err := ts.Node(t, "mcp.js", "http", at.JoinPath("mcp").String(), token); err != nil {
			t.Errorf("mcp.js over HTTP: %v\n%s", err, out)
		}
	})
	t.Run("on stdio", func(t *testing.T) {
		t.Parallel()
		s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed})
		if out, err := ts.Node(t, "mcp.js", "stdio", bin, "mcp", "--config", s.Config()); err != nil {
			t.Errorf("mcp.js on stdio: %v\n%s", err, out)
		}
	})
}
