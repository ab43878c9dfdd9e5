//go:build integration

package scenarios

import (
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// Under Docker a sandbox of class gvisor is made while one of class container has its cgroups bound, which runsc would stumble over if it looked for
// its own; it outlives the service, and both see the same workspace in turn.
func TestDockerRunsBothClassesAtOnce(t *testing.T) {
	t.Parallel()
	needGVisor(t)
	s := harness.Run(t, harness.Options{Runtime: "docker", Config: strong, Seed: &seed})
	name := workspace(t, s)
	plain := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"})
	sb := lease(t, s, v1.SandboxRequest{Workspace: name, Class: "gvisor", WhenEmpty: "cold"})
	if sb.Class != "gvisor" || plain.Class != "container" {
		t.Errorf("leased %+v and %+v", sb, plain)
	}
	contains(t, sh(t, s, sb.ID, "uname -v; echo kept >file"), "Sun Jan 10 15:06:54 PST 2016")
	s.Kill9()
	s.Start()
	if got := sh(t, s, sb.ID, "cat file") + sh(t, s, plain.ID, "echo here"); got != "kept\nhere\n" {
		t.Errorf("after the restart: %q", got)
	}
	release(t, s, sb.ID)
	next := lease(t, s, v1.SandboxRequest{Workspace: name, WhenEmpty: "cold"})
	if got := sh(t, s, next.ID, "cat file"); got != "kept\n" {
		t.Errorf("a mounted lease has %q", got)
	}
	release(t, s, next.ID)
	release(t, s, plain.ID)
}
