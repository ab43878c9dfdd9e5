//go:build integration

package scenarios

import (
	"syscall"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// testKilledContainer kills a container under its lease. The running call must report the loss, the
// lease must end with the reason, and nothing may be left.
func testKilledContainer(t *testing.T, s *harness.Server) {
	word := uniqueWord()
	id := lease(t, s, v1.SandboxRequest{}).ID
	type answer struct {
		r   v1.ExecResult
		err error
	}
	answered := make(chan answer, 1)
	ctx := within(t)
	go func() { // the result is received below
		r, err := s.Client.Exec(ctx, id, v1.Exec{Command: "exec -a " + word + " sleep 3000"})
		answered <- answer{r, err}
	}()
	awaitProcesses(t, word, 1)
	shell, err := s.Client.StartShell(ctx, id, v1.ShellRequest{Exec: v1.Exec{Command: "sleep 3000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.Init(id), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.err != nil || a.r.Ending != "sandbox_lost" || a.r.ExitCode == 0 {
		t.Errorf("Exec in a killed sandbox = %+v, %v; want sandbox_lost", a.r, a.err)
	}
	harness.Eventually(t, harness.Short, "the lease is over", func() bool {
		sb, err := s.Client.Sandbox(ctx, id)
		return err == nil && sb.State == "gone" && sb.Reason == "lost"
	})
	assertNoProcess(t, word)
	got := s.Ask(t, "POST", "/v1/sandboxes/"+id+"/exec", `{"command":"true"}`).Problem(t, 404, "not_found", "")
	assertContains(t, got.Detail, "lost")
	sh, err := s.Client.Shell(ctx, shell.ID)
	if err != nil || sh.State != "ended" || sh.Result == nil || sh.Result.Ending != "sandbox_lost" {
		t.Errorf("Shell of a killed sandbox = %+v, %v; want sandbox_lost", sh, err)
	}
	// A killed warm sandbox must never be leased.
	pools, err := s.Client.Pools(ctx)
	if err != nil || len(pools) != 1 {
		t.Fatalf("Pools = %+v, %v; want one", pools, err)
	}
	if got := runOnce(t, s, "echo fine"); got.Stdout != "fine\n" {
		t.Errorf("Run after a sandbox was killed = %+v, want stdout fine", got)
	}
}

// killProcess kills a process and waits until it is dead.
func killProcess(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "the process is dead", func() bool { return harness.Dead(pid) })
}
