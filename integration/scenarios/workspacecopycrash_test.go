//go:build integration && faults

package scenarios

import (
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestCopiedWorkspaceSurvivesCrash kills the service at each step of copying a workspace back. The
// next service must complete the copy: from what was received, or by fetching the files again.
func TestCopiedWorkspaceSurvivesCrash(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	needGVisor(t)
	s := harness.New(t,
		harness.Options{Runtime: "oci", Bin: harness.Need(t, harness.EnvFaults), Config: gvisorConfig, Seed: &seed})
	for _, point := range []string{
		"scheduler.carry.home",
		"carry.apply.received",
		"carry.apply.staged",
		"carry.apply.cleaned",
		"carry.apply.half",
		"carry.apply.placed",
	} {
		t.Run(point, func(t *testing.T) {
			defer s.For(t)()
			s.Start("ORCHESTRATOR_FAULT=" + point)
			name := workspace(t, s)
			put(t, s.Client.Workspaces.Files(name), "old", "1")
			put(t, s.Client.Workspaces.Files(name), "same", "2")
			sb, err := s.Client.CreateSandbox(within(t),
				v1.SandboxRequest{Workspace: name, Template: "walled", WhenEmpty: "cold"})
			if err != nil {
				t.Fatal(err)
			}
			sh(t, s, sb.ID, "rm old; mkdir d; echo new >d/new; echo more >same")
			_ = s.Client.RemoveSandbox(within(t), sb.ID) // the server dies here
			s.Ended()
			s.Start()
			awaitNoLease(t, s)
			// The next use of the workspace completes an interrupted copy.
			got, err := s.Client.Run(within(t), v1.Run{
				Exec:      v1.Exec{Command: "cat same d/new; ls -A"},
				Workspace: name,
				WhenEmpty: "cold",
			})
			if err != nil || got.Stdout != "more\nnew\nd\nsame\n" {
				t.Errorf("Run in the workspace = %+v, %v; want the sandbox's files", got, err)
			}
			awaitNoLease(t, s)
			s.Term()
		})
	}
}
