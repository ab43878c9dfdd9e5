package engine

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// withKey returns agent with an idempotency key.
func withKey(key string) caller.Principal {
	p := agent
	p.Key = key
	return p
}

func TestKeyedCallThatLostItsStreamRunsOnce(t *testing.T) {
	w := newWorld(t)
	s := w.governed(t)
	in := bash("true")
	in.Session = "one"
	box := s.call(t, agent, "system.bash", in).SandboxID
	var writes, reads atomic.Int64
	g := w.guest(box)
	g.mu.Lock()
	g.lose = func(op wire.Op) bool {
		switch op {
		case wire.OpWrite:
			writes.Add(1)
		case wire.OpRead:
			reads.Add(1)
		default:
			return false
		}
		return true
	}
	g.mu.Unlock()
	write := v1.ToolCall{Session: "one", Input: json.RawMessage(`{"path": "a", "content": "x"}`)}
	for i, name := range []string{"fs.write", "put"} { // put is fs.write, declared without effects
		if got, err := s.Governed.CallTool(t.Context(), withKey(name), name, write, governed.Watch{}); err == nil {
			t.Fatalf("a lost write by %s returned %+v, want an error", name, got)
		}
		got := s.call(t, withKey(name), name, write)
		if got.Ending != "sandbox_lost" || got.Error == nil || writes.Load() != int64(i+1) {
			t.Errorf("the retry of %s returned %+v after %d writes, want sandbox_lost and %d", name, got, writes.Load(), i+1)
		}
	}
	read := v1.ToolCall{Session: "one", Input: json.RawMessage(`{"path": "a"}`)}
	for range 2 {
		if got, err := s.Governed.CallTool(t.Context(), withKey("r"), "fs.read", read, governed.Watch{}); err == nil {
			t.Fatalf("a lost read returned %+v, want an error", got)
		}
	}
	if reads.Load() != 2 {
		t.Errorf("%d reads, want 2: a retry may read again", reads.Load())
	}
}

func TestKeyedCallWithoutUsableResultRunsOnce(t *testing.T) {
	s := newWorld(t).governed(t)
	r := v1.ToolCall{Input: json.RawMessage(`{"argv": ["true"]}`)}
	started := 0
	watch := governed.Watch{Started: func(string) { started++ }}
	if got, err := s.Governed.CallTool(t.Context(), withKey("k"), "system.run", r, watch); err == nil {
		t.Fatalf("a result expression that fails returned %+v, want an error", got)
	}
	got, err := s.Governed.CallTool(t.Context(), withKey("k"), "system.run", r, watch)
	if err != nil || got.Ending != "sandbox_lost" || started != 1 {
		t.Errorf("the retry returned %+v, %v after %d runs, want sandbox_lost and 1 run", got, err, started)
	}
}

// approve answers an approval request as an operator.
func (s *service) approve(tb testing.TB, q v1.Approval, a v1.ApprovalAnswer) {
	tb.Helper()
	if _, err := s.Governed.AnswerApproval(tb.Context(), caller.Local(""), q.ID, a); err != nil {
		tb.Fatal(err)
	}
}

// failApproved starts a call, gives the answer to its approval request and returns the call's
// error.
func (s *service) failApproved(tb testing.TB, p caller.Principal, r v1.ToolCall, a v1.ApprovalAnswer) error {
	tb.Helper()
	asked, failed := make(chan v1.Approval, 1), make(chan error, 1)
	go func() { // waited for below
		_, err := s.Governed.CallTool(
			tb.Context(), p, "system.bash", r, governed.Watch{Asked: func(q v1.Approval) { asked <- q }},
		)
		failed <- err
	}()
	select {
	case q := <-asked:
		s.approve(tb, q, a)
	case err := <-failed:
		tb.Fatalf("the call ended with error %v, want an approval request first", err)
	}
	err := <-failed
	if err == nil {
		tb.Fatal("the approved call succeeded, want an error")
	}
	return err
}

// overBudget fails the test unless the call is refused without an approval request.
func (s *service) overBudget(tb testing.TB, r v1.ToolCall) {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	defer stop()
	got, err := s.Governed.CallTool(ctx, agent, "system.bash", r, governed.Watch{Asked: func(v1.Approval) { stop() }})
	if err != nil || got.Ending != "approval_denied" {
		tb.Errorf("a call over the budget returned %+v, %v, want approval_denied", got, err)
	}
}

func TestRetryOfApprovedCallKeepsItsBudgetCharge(t *testing.T) {
	s := newWorld(t).governed(t)
	r := bash("rm once")
	r.Workspace = "later"
	err := s.failApproved(t, withKey("k"), r, v1.ApprovalAnswer{Action: "approve"})
	if !strings.Contains(err.Error(), "workspace") {
		t.Fatalf("the call failed with %v, want a missing workspace", err)
	}
	s.overBudget(t, bash("rm once more"))
	if _, err := s.Workspaces.Create(t.Context(), agent, v1.WorkspaceRequest{Name: "later"}); err != nil {
		t.Fatal(err)
	}
	if got := s.call(t, withKey("k"), "system.bash", r); got.Ending != "exited" {
		t.Errorf("the retry returned %+v, want exited", got)
	}
	s.overBudget(t, bash("rm once more"))
}

func TestApprovedCallThatCannotBePreparedRefundsBudget(t *testing.T) {
	s := newWorld(t).governed(t)
	show, err := s.governance.Redactor.Own(t.Context(), agent.Caller, []string{strings.Repeat("x", audit.MaxOwned-512)})
	if err != nil {
		t.Fatal(err)
	}
	modified := bashEnv(t, "rm once", map[string]string{"A_TOKEN": strings.Repeat("y", 1000)}).Input
	err = s.failApproved(t, agent, bash("rm once"), v1.ApprovalAnswer{Action: "modify", Input: modified})
	if !errdefs.IsResourceExhausted(err) {
		t.Fatalf("the call failed with %v, want ResourceExhausted", err)
	}
	show()
	q, done := s.ask(t, agent, bash("rm once"))
	s.approve(t, q, v1.ApprovalAnswer{Action: "approve"})
	if got := <-done; got.Ending != "exited" {
		t.Errorf("a call within the budget returned %+v, want exited", got)
	}
	s.overBudget(t, bash("rm once more"))
}

func TestPanicInToolIsRecordedAsFailed(t *testing.T) {
	s := newWorld(t).governed(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the call did not panic, want a panic")
			}
		}()
		watch := governed.Watch{Started: func(string) { panic("in a tool") }}
		s.Governed.CallTool(t.Context(), agent, "system.bash", bash("true"), watch) // it panics
	}()
	all, err := s.Governed.Audit(t.Context(), caller.Local(""), governed.AuditFilter{})
	if err != nil || len(all.Items) != 2 {
		t.Fatalf("%d records, %v, want 2", len(all.Items), err)
	}
	if r := all.Items[1]; r.Kind != "close" || r.Ending != governed.EndedFailed || r.Sandbox == "" {
		t.Errorf("the closing record is %+v, want ending %s and the sandbox", r, governed.EndedFailed)
	}
}
