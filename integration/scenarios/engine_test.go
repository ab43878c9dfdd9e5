//go:build integration

package scenarios

import (
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// An engine that dies under the service: what is leased goes on, what is new
// is refused with a reason, and nothing that was promised is lost, not even by
// a service that is started again meanwhile.
func TestEngineRestart(t *testing.T) {
	t.Parallel()
	relay := harness.NewRelay(t)
	s := harness.Run(t, harness.Options{Runtime: "docker", Docker: relay.Host(), Config: onDemand, Seed: &seed})
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	shell, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: v1.Exec{Command: "i=0; while :; do i=$((i+1)); echo lease $i; sleep 0.05; done"}})
	if err != nil {
		t.Fatal(err)
	}
	next, line := readLines(t, s, shell.ID, 0, 0)
	s.Inside(id) // so that the engine need not be asked later
	relay.Cut()
	sh(t, s, id, "echo the engine is not needed for this")
	p := s.Ask(t, "POST", "/v1/sandboxes", `{"when_empty":"cold"}`).Problem(t, 503, "unavailable", "")
	contains(t, p.Detail, "docker")
	s.Term()
	refuses(t, s, 69, "docker", relay.Host())
	relay.Open()
	s.Start()
	readLines(t, s, shell.ID, next, line)
	sh(t, s, id, "true")
	sh(t, s, lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID, "true")
}

// A remote engine: nothing but the engine's exec is in reach. What can be done
// without mounts and without a cgroup for each command is the same. Workspaces
// are carried: TestWorkspaceIsCopiedOverStdio.
func TestOverStdioOnly(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "docker", Mode: "stdio", Config: roomy, Seed: &seed})
	for _, c := range []struct {
		name string
		run  func(*testing.T, *harness.Server)
	}{
		{"one lease sees nothing of another", leasesAreApart},
		{"cancelled by the client", cancelledByClient},
		{"output as it is", rawOutput},
		{"standard input", standardInput},
		{"bytes of a port", portOverStdio},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer s.For(t)()
			c.run(t, s)
		})
	}
}

// portOverStdio: a server that cannot be told of an end is heard until it is
// silent.
func portOverStdio(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
	servers(t, s, id)
	portOfBytes(t, s, id, "")
	release(t, s, id)
}
