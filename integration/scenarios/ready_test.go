//go:build integration

package scenarios

import (
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestReadyMeansThatACallIsServed starts without any image, beside a template that stays broken.
func TestReadyMeansThatACallIsServed(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		s := harness.Run(t, harness.Options{Runtime: name, Config: onDemand + `
  broken:
    image: nowhere/at-all:1
`})
		var no v1.NotReady
		a := s.Ask(t, "GET", "/readyz", "")
		a.Problem(t, 503, "unavailable", "")
		a.Into(t, &no)
		if len(no.Templates) != 2 || no.Templates[0].State != "not_ready" || !no.Templates[1].Default ||
			!strings.Contains(no.Templates[0].Error, "nowhere/at-all:1") ||
			!strings.Contains(no.Templates[1].Error, "orchestrator/sandbox") {
			t.Errorf("GET /readyz without an image = %+v, want both templates and their reasons", no)
		}
		if got := s.CLI(t, "run", "--when-empty", "cold", "--", "true"); got.Code == 0 {
			t.Errorf("run while /readyz is 503 = %+v, want a failure", got)
		}
		s.CLI(t, "image", "import", harness.Need(t, harness.EnvArchive)).Is(t, 0, "")
		var yes v1.Readiness
		a = s.Ask(t, "GET", "/readyz", "")
		a.Into(t, &yes)
		if a.Status != 200 || yes.Status != "ready" || len(yes.Templates) != 2 || yes.Templates[1].State != "ready" ||
			yes.Templates[0].State != "not_ready" {
			t.Errorf("GET /readyz right after the import = %d %+v, want 200 with default ready", a.Status, yes)
		}
		got := s.CLI(t, "run", "--when-empty", "cold", "-c", "echo served")
		if got.Code != 0 || got.Stdout != "served\n" {
			t.Errorf("run right after the import = %+v, want stdout served", got)
		}
	})
}
