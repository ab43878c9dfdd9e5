//go:build integration

package scenarios

import (
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestLeasesSurviveEngineRestart makes the engine unavailable under the service. Leased sandboxes
// must continue, new ones must be refused with the reason, and a restart of the service must lose
// nothing.
func TestLeasesSurviveEngineRestart(t *testing.T) {
	t.Parallel()
	relay := harness.NewRelay(t)
	s := harness.Run(t, harness.Options{Runtime: "docker", Docker: relay.Host(), Config: onDemand, Seed: &seed})
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	count := "i=0; while :; do i=$((i+1)); echo lease $i; sleep 0.05; done"
	shell, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: v1.Exec{Command: count}})
	if err != nil {
		t.Fatal(err)
	}
	next, line := readLines(t, s, shell.ID, 0, 0)
	s.Inside(id) // recorded now, because the engine cannot be asked later
	relay.Cut()
	sh(t, s, id, "echo the engine is not needed for this")
	p := s.Ask(t, "POST", "/v1/sandboxes", `{"when_empty":"cold"}`).Problem(t, 503, "unavailable", "")
	assertContains(t, p.Detail, "docker")
	s.Term()
	assertServeRefuses(t, s, 69, "docker", relay.Host())
	relay.Open()
	s.Start()
	readLines(t, s, shell.ID, next, line)
	sh(t, s, id, "true")
	sh(t, s, lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID, "true")
}

// TestOverStdioOnly runs scenarios on an engine that can be reached only through its exec, like a
// remote one. What needs neither mounts nor a cgroup for each command must work. Workspaces are
// copied, see TestWorkspaceIsCopiedOverStdio.
func TestOverStdioOnly(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "docker", Mode: "stdio", Config: roomy, Seed: &seed})
	for _, c := range []struct {
		name string
		run  func(*testing.T, *harness.Server)
	}{
		{"one lease sees nothing of another", testLeasesAreApart},
		{"cancelled by the client", testCancelledByClient},
		{"output as it is", testRawOutput},
		{"standard input", testStandardInput},
		{"bytes of a port", testPortOverStdio},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer s.For(t)()
			c.run(t, s)
		})
	}
}

// testPortOverStdio checks streams of bytes to a port.
func testPortOverStdio(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	startPortServers(t, s, id)
	testPortOfBytes(t, s, id)
	release(t, s, id)
}
