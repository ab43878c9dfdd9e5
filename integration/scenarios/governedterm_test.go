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

// Who waits for an approval when the service hands over is told at once to come
// back, while what runs still has its time; the question stays, and the call
// goes on in the next process. Who has no key to come back with is told so.
func TestHandOverWithPendingApproval(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		w := workspace(t, s)
		r := v1.ToolCall{Profile: "phase2", Workspace: w, Input: input(t, map[string]any{"command": "echo ran >> ran.txt; rm -rf junk"})}
		keyed, keyless := beginAsking(t, s, r, "key"), beginAsking(t, s, r, "")
		var questions []v1.Approval
		harness.Eventually(t, harness.Short, "two questions are asked", func() bool {
			var err error
			questions, err = s.Client.Approvals(within(t), "pending")
			return err == nil && len(questions) == 2
		})

		// A command that takes all the time that there is keeps the process.
		box := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"})
		word, ran := mark(), make(chan error, 1)
		go func() { // waited for below
			_, err := s.Client.Exec(within(t), box.ID, v1.Exec{Command: "exec -a " + word + " sleep 3000"})
			ran <- err
		}()
		seen(t, word, 1)
		s.Signal(syscall.SIGTERM)
		for name, told := range map[string]<-chan error{"retry with the same Idempotency-Key": keyed, "no Idempotency-Key": keyless} {
			if err := <-told; !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), name) {
				t.Errorf("told %v, and not %q", err, name)
			}
		}
		if state := s.Ended(); !state.Success() {
			t.Errorf("the service ended with %s", state)
		}
		<-ran
		// In the log they are answered before what ran was cut.
		text := s.Log()
		answered, cut := strings.LastIndex(text, "route=/v1/tools/{name}/call caller=local status=503"), strings.LastIndex(text, "route=/v1/sandboxes/{id}/exec")
		if answered < 0 || cut < answered {
			t.Errorf("they waited for what ran: %d %d", answered, cut)
		}
		s.Start()
		q := asked(t, s) // the one of the call with the key
		if _, err := s.Client.AnswerApproval(within(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
			t.Fatal(err)
		}
		got := call(t, s, "system.bash", r, client.CallOptions{IdempotencyKey: "key"})
		if got.Ending != "exited" || got.Approval != q.ID {
			t.Errorf("%+v", got)
		}
		for _, other := range questions {
			if now, err := s.Client.Approval(within(t), other.ID); err != nil || other.ID != q.ID && now.State != "cancelled" {
				t.Errorf("the other question: %+v %v", now, err)
			}
		}
		release(t, s, box.ID)
		noLease(t, s)
		if text := content(t, s, w, "ran.txt"); text != "ran\n" {
			t.Errorf("it ran %d times", strings.Count(text, "ran"))
		}
	})
}

// beginAsking begins a call that asks; what it is told comes in the channel.
func beginAsking(t *testing.T, s *harness.Server, r v1.ToolCall, key string) <-chan error {
	t.Helper()
	told := make(chan error, 1)
	go func() { // waited for by who reads the channel
		got, err := s.Client.CallTool(within(t), "system.bash", r, client.CallOptions{IdempotencyKey: key})
		if err == nil {
			t.Errorf("it got %+v", got)
		}
		told <- err
	}()
	return told
}

// The command line goes on waiting while the service is handed over, and while
// it is killed; the answer is what it prints in the end.
func TestCommandLineWaitsAcrossRestarts(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		running := s.Launch(t, nil, "tool", "call", "system.bash", "command=echo ran; rm -rf junk", "--profile", "phase2")
		q := asked(t, s)
		s.Term()
		s.Start()
		if now := asked(t, s); now.ID != q.ID {
			t.Errorf("another question: %s and %s", now.ID, q.ID)
		}
		s.Kill9()
		s.Start()
		if err := running.Over(); err == nil {
			t.Error("the command line gave up")
		}
		if got := s.CLI(t, "approvals", "approve", q.ID); got.Code != 0 {
			t.Errorf("%+v", got)
		}
		got := running.Wait()
		got.Is(t, 0, q.ID)
		contains(t, got.Stdout, "ran")
		if n := strings.Count(got.Stderr, "waiting for approval"); n < 1 {
			t.Errorf("%q", got.Stderr)
		}
	})
}
