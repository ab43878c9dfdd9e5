//go:build integration

package scenarios

import (
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestDockerRunsBothClassesAtOnce creates a sandbox of class gvisor under Docker while one of class
// container is leased. The latter has its cgroups mounted, where runsc would look for its own. Both
// must survive a restart of the service and see the same workspace.
func TestDockerRunsBothClassesAtOnce(t *testing.T) {
	t.Parallel()
	needGVisor(t)
	s := harness.Run(t, harness.Options{Runtime: "docker", Config: gvisorConfig, Seed: &seed})
	name := workspace(t, s)
	plain := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"})
	sb := lease(t, s, v1.SandboxRequest{Workspace: name, Class: "gvisor", WhenEmpty: "cold"})
	if sb.Class != "gvisor" || plain.Class != "container" {
		t.Errorf("leased %+v and %+v, want class gvisor and class container", sb, plain)
	}
	assertContains(t, sh(t, s, sb.ID, "uname -v; echo kept >file"), "Sun Jan 10 15:06:54 PST 2016")
	s.Kill9()
	s.Start()
	if got := sh(t, s, sb.ID, "cat file") + sh(t, s, plain.ID, "echo here"); got != "kept\nhere\n" {
		t.Errorf("after the restart the sandboxes printed %q, want %q", got, "kept\nhere\n")
	}
	release(t, s, sb.ID)
	next := lease(t, s, v1.SandboxRequest{Workspace: name, WhenEmpty: "cold"})
	if got := sh(t, s, next.ID, "cat file"); got != "kept\n" {
		t.Errorf("a mounted lease's file is %q, want %q", got, "kept\n")
	}
	release(t, s, next.ID)
	release(t, s, plain.ID)
}
