//go:build kubernetes

package kubernetes

import (
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/runtimetest"
)

// TestSuite runs the conformance suite of all drivers against a real node whose pods have no
// interface. Its checks mostly wait for pods, so two runs share them.
func TestSuite(t *testing.T) {
	t.Parallel()
	endings := []runtime.Capability{runtime.CapKill, runtime.CapDeadMan, runtime.CapNothingLeft}
	t.Run("endings", func(t *testing.T) { runSuite(t, PodOptions{}, runtimetest.Factory{Only: endings}) })
	t.Run("rest", func(t *testing.T) { runSuite(t, PodOptions{}, runtimetest.Factory{Except: endings}) })
}

// TestAgentSandboxSuite is TestSuite with pods from agent-sandbox.
func TestAgentSandboxSuite(t *testing.T) {
	given(t, "KUBERNETES_AGENT_SANDBOX")
	t.Parallel()
	t.Run("all", func(t *testing.T) { runSuite(t, PodOptions{Provider: ProviderAgentSandbox}, runtimetest.Factory{}) })
}

func runSuite(t *testing.T, p PodOptions, f runtimetest.Factory) {
	t.Helper()
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	o.Pod = p
	f.Name, f.Image, f.Entrypoint = "kubernetes", sandboxImage(t), []string{entrypoint}
	f.Open = func(t *testing.T, _ string) runtime.Driver {
		t.Helper()
		return nodeDriver{open(t, o), t}
	}
	f.Leftovers = func(t *testing.T, id string) []string {
		t.Helper()
		var left []string
		for line := range strings.Lines(ctr(t, "containers", "list")) {
			if strings.Contains(line, id) {
				left = append(left, "container "+line)
			}
		}
		return left
	}
	f.RemoveImage = func(t *testing.T, i runtime.Image) {
		t.Helper()
		ctr(t, "images", "remove", inNode(i))
	}
	runtimetest.Run(t, f)
}
