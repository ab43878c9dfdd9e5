//go:build integration

package scenarios

import (
	"syscall"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// killedContainer kills a container under its lease. The running call must report the loss, the
// lease must end with the reason, and nothing may be left.
func killedContainer(t *testing.T, s *harness.Server) {
	word := mark()
	id := lease(t, s, v1.SandboxRequest{}).ID
	type answer struct {
		r   v1.ExecResult
		err error
	}
	answered := make(chan answer, 1)
	ctx := within(t)
	go func() { // waited for below
		r, err := s.Client.Exec(ctx, id, v1.Exec{Command: "exec -a " + word + " sleep 3000"})
		answered <- answer{r, err}
	}()
	seen(t, word, 1)
	shell, err := s.Client.StartShell(ctx, id, v1.ShellRequest{Exec: v1.Exec{Command: "sleep 3000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.Init(id), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.err != nil || a.r.Ending != "sandbox_lost" || a.r.ExitCode == 0 {
		t.Errorf("%+v %v", a.r, a.err)
	}
	harness.Eventually(t, harness.Short, "the lease is over", func() bool {
		sb, err := s.Client.Sandbox(ctx, id)
		return err == nil && sb.State == "gone" && sb.Reason == "lost"
	})
	gone(t, word)
	got := s.Ask(t, "POST", "/v1/sandboxes/"+id+"/exec", `{"command":"true"}`).Problem(t, 404, "not_found", "")
	contains(t, got.Detail, "lost")
	sh, err := s.Client.Shell(ctx, shell.ID)
	if err != nil || sh.State != "ended" || sh.Result == nil || sh.Result.Ending != "sandbox_lost" {
		t.Errorf("its shell: %+v %v", sh, err)
	}
	// A killed warm sandbox must never be leased.
	pools, err := s.Client.Pools(ctx)
	if err != nil || len(pools) != 1 {
		t.Fatalf("%+v %v", pools, err)
	}
	if got := run(t, s, "echo fine"); got.Stdout != "fine\n" {
		t.Errorf("%+v", got)
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "it is dead", func() bool { return harness.Dead(pid) })
}
