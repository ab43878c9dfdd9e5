//go:build integration

package scenarios

import (
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestHandOverWithPendingApproval stops the service while two calls wait for approval and a command
// runs. The waiting clients must be told at once to retry, before the command is cut; a call
// without an idempotency key must learn that it cannot. The approval request stays, and the call
// continues in the next process.
func TestHandOverWithPendingApproval(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		w := workspace(t, s)
		command := input(t, map[string]any{"command": "echo ran >> ran.txt; rm -rf junk"})
		r := v1.ToolCall{Profile: "phase2", Workspace: w, Input: command}
		keyed, keyless := startAwaitingApproval(t, s, r, "key"), startAwaitingApproval(t, s, r, "")
		var requests []v1.Approval
		harness.Eventually(t, harness.Short, "two approvals are requested", func() bool {
			var err error
			requests, err = s.Client.Approvals.List(within(t), "pending")
			return err == nil && len(requests) == 2
		})

		// A command that takes the whole time of the shutdown keeps the process alive.
		box := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"})
		word, ran := uniqueWord(), make(chan error, 1)
		go func() { // the result is received below
			_, err := s.Client.Exec(within(t), box.ID, v1.Exec{Command: "exec -a " + word + " sleep 3000"})
			ran <- err
		}()
		awaitProcesses(t, word, 1)
		s.Signal(syscall.SIGTERM)
		for want, errs := range map[string]<-chan error{
			"retry with the same Idempotency-Key": keyed, "no Idempotency-Key": keyless,
		} {
			if err := <-errs; !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("a call that waits for approval at the shutdown: %v, want unavailable with %q", err, want)
			}
		}
		if state := s.Ended(); !state.Success() {
			t.Errorf("the service ended with %s, want success", state)
		}
		<-ran
		assertAnsweredFirst(t, s.Log())
		s.Start()
		q := awaitApproval(t, s) // only that of the call with the key is pending
		if _, err := s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
			t.Fatal(err)
		}
		got := callTool(t, s, "system.bash", r, client.CallOptions{IdempotencyKey: "key"})
		if got.Ending != "exited" || got.Approval != q.ID {
			t.Errorf("the approved call = %+v, want exited with approval %s", got, q.ID)
		}
		for _, other := range requests {
			if now, err := s.Client.Approvals.Get(within(t), other.ID); err != nil || other.ID != q.ID && now.State != "cancelled" {
				t.Errorf("Approval %s = %+v, %v; want the other request cancelled", other.ID, now, err)
			}
		}
		release(t, s, box.ID)
		awaitNoLease(t, s)
		if text := workspaceFile(t, s, w, "ran.txt"); text != "ran\n" {
			t.Errorf("the command ran %d times, want once", strings.Count(text, "ran"))
		}
	})
}

// assertAnsweredFirst checks in the log that the waiting calls were answered before the command was
// cut.
func assertAnsweredFirst(t *testing.T, log string) {
	t.Helper()
	answered := strings.LastIndex(log, "route=/v1/tools/{name}/call caller=local status=503")
	cut := strings.LastIndex(log, "route=/v1/sandboxes/{id}/exec")
	if answered < 0 || cut < answered {
		t.Errorf("answers to the calls at %d of the log, end of the command at %d; want the answers first", answered, cut)
	}
}

// startAwaitingApproval starts a call that waits for approval. The channel receives its error.
func startAwaitingApproval(t *testing.T, s *harness.Server, r v1.ToolCall, key string) <-chan error {
	t.Helper()
	errs := make(chan error, 1)
	go func() { // ends before the channel has a value
		got, err := s.Client.Tools.Call(within(t), "system.bash", r, client.CallOptions{IdempotencyKey: key})
		if err == nil {
			t.Errorf("CallTool over a shutdown = %+v, want an error", got)
		}
		errs <- err
	}()
	return errs
}

// TestCommandLineWaitsAcrossRestarts checks that the command line waits for an approval while the
// service is stopped or killed, and prints the result in the end.
func TestCommandLineWaitsAcrossRestarts(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		running := s.Launch(t, nil, "tool", "call", "system.bash", "command=echo ran; rm -rf junk",
			"--profile", "phase2")
		q := awaitApproval(t, s)
		s.Term()
		s.Start()
		if now := awaitApproval(t, s); now.ID != q.ID {
			t.Errorf("after a restart approval %[2]s is pending, want %[1]s", now.ID, q.ID)
		}
		s.Kill9()
		s.Start()
		if err := running.Over(); err == nil {
			t.Error("the command line ended while the service was down, want it to wait")
		}
		if got := s.CLI(t, "approvals", "approve", q.ID); got.Code != 0 {
			t.Errorf("approvals approve = %+v, want exit code 0", got)
		}
		got := running.Wait()
		got.Is(t, 0, q.ID)
		assertContains(t, got.Stdout, "ran")
		if n := strings.Count(got.Stderr, "waiting for approval"); n < 1 {
			t.Errorf("stderr of the command line is %q, want it to show that it waits", got.Stderr)
		}
	})
}
