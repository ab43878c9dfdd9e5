//go:build kubernetes

package kubernetes

import (
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/runtimetest"
)

// TestSuite runs the conformance suite of all drivers against a real node whose pods have no
// interface.
func TestSuite(t *testing.T) {
	needNetwork(t, NetworkNone)
	o := options(t, newNamespace(t, "baseline"))
	i := sandboxImage(t)
	runtimetest.Run(t, runtimetest.Factory{
		Name: "kubernetes", Image: i, Entrypoint: []string{entrypoint},
		Open: func(t *testing.T, _ string) runtime.Driver {
			t.Helper()
			return nodeDriver{open(t, o), t}
		},
		Leftovers: func(t *testing.T, id string) []string {
			t.Helper()
			var left []string
			for line := range strings.Lines(ctr(t, "containers", "list")) {
				if strings.Contains(line, id) {
					left = append(left, "container "+line)
				}
			}
			return left
		},
		RemoveImage: func(t *testing.T, i runtime.Image) {
			t.Helper()
			ctr(t, "images", "remove", inNode(i))
		},
	})
}
