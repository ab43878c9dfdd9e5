package engine

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
)

// ask starts a call in the background. It returns the approval request and a channel for the
// result.
func (s *service) ask(tb testing.TB, p caller.Principal, r v1.ToolCall) (v1.Approval, <-chan v1.ToolResult) {
	tb.Helper()
	asked, done := make(chan v1.Approval, 1), make(chan v1.ToolResult, 1)
	go func() { // ends with the result or the test
		got, err := s.Governed.CallTool(
			tb.Context(),
			p,
			"system.bash",
			r,
			governed.Watch{Asked: func(q v1.Approval) { asked <- q }},
		)
		if err != nil && context.Cause(tb.Context()) == nil {
			tb.Error(err)
		}
		done <- got
	}()
	select {
	case q := <-asked:
		return q, done
	case <-time.After(30 * time.Second):
		tb.Fatal("got no approval request within 30 seconds, want one")
	}
	panic("unreachable")
}

func TestOperatorAnswersApproval(t *testing.T) {
	s := newWorld(t).governed(t)
	q, done := s.ask(t, agent, bash("rm x"))
	if _, err := s.Governed.AnswerApproval(t.Context(), agent, q.ID, v1.ApprovalAnswer{Action: "approve"}); !errdefs.IsPermissionDenied(
		err,
	) {
		t.Errorf("AnswerApproval by the caller: %v, want PermissionDenied", err)
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID,
		v1.ApprovalAnswer{Action: "modify", Input: json.RawMessage(`{"command": "sudo rm x"}`)}); !errdefs.IsInvalidArgument(
		err,
	) {
		t.Errorf("AnswerApproval with an input that the policy denies: %v, want InvalidArgument", err)
	}
	op := caller.Local("")
	op.By = "ada"
	if _, err := s.Governed.AnswerApproval(t.Context(), op, q.ID,
		v1.ApprovalAnswer{Action: "modify", Input: json.RawMessage(`{"command": "rm y"}`)}); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.Ending != "exited" || got.Approval != q.ID {
		t.Fatalf("call = %+v, want ending exited with approval %s", got, q.ID)
	}
	r := s.records(t, got.ID)
	if len(r) != 2 || r[1].Approval != q.ID || r[1].By != "ada" || !strings.Contains(string(r[1].Input), "rm y") {
		t.Errorf("records = %+v, want two, the last one with rm y approved by ada", r)
	}
}

func TestDeniedApprovalIsResult(t *testing.T) {
	s := newWorld(t).governed(t)
	q, done := s.ask(t, agent, bash("rm x"))
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID,
		v1.ApprovalAnswer{Action: "deny", Note: "not today"}); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.Ending != "approval_denied" || !strings.Contains(got.Verdict.Message, "not today") {
		t.Errorf("call = %+v, want approval_denied with the note", got)
	}
}

func TestApprovalRaisesTrust(t *testing.T) {
	s := newWorld(t).governed(t)
	low := caller.Principal{Caller: "agent", Profile: "team", Trust: 1}
	r := bash("true")
	r.RaiseTrust = true
	q, done := s.ask(t, low, r)
	if q.Kind != "trust" {
		t.Errorf("approval = %+v, want kind trust", q)
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.Ending != "exited" {
		t.Errorf("approved call = %+v, want ending exited", got)
	}
}

func TestRetryWithKeyFindsPendingApproval(t *testing.T) {
	w := newWorld(t)
	s := w.governed(t)
	keyed := agent
	keyed.Key = "k"
	ctx, leave := context.WithCancel(t.Context())
	asked := make(chan v1.Approval, 1)
	gone := make(chan error, 1)
	go func() { // waited for below
		_, err := s.Governed.CallTool(
			ctx,
			keyed,
			"system.bash",
			bash("rm x"),
			governed.Watch{Asked: func(q v1.Approval) { asked <- q }},
		)
		gone <- err
	}()
	q := <-asked
	leave()
	if err := <-gone; err == nil {
		t.Fatal("call of a caller who left succeeded, want an error")
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	first := s.call(t, keyed, "system.bash", bash("rm x"))
	if first.Ending != "exited" || first.Approval != q.ID {
		t.Fatalf("first call = %+v, want ending exited with approval %s", first, q.ID)
	}
	if second := s.call(t, keyed, "system.bash", bash("rm x")); second.ID != first.ID {
		t.Errorf("second call = %+v, want the recorded call %s", second, first.ID)
	}
}

// Tokens of one caller can differ in trust.
func TestApprovalIsLimitedToItsToken(t *testing.T) {
	s := newWorld(t).governed(t)
	keyed := agent
	keyed.Key = "k"
	r := bash("rm x")
	r.RaiseTrust = true
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	asked := make(chan v1.Approval, 1)
	gone := make(chan error, 1)
	go func() { // waited for below
		_, err := s.Governed.CallTool(ctx, keyed, "system.bash", r, governed.Watch{Asked: func(q v1.Approval) { asked <- q }})
		gone <- err
	}()
	q := <-asked
	leave()
	<-gone
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	low := keyed
	low.Trust = 0
	if got, err := s.Governed.CallTool(t.Context(), low, "system.bash", r, governed.Watch{}); !errdefs.IsInvalidArgument(
		err,
	) {
		t.Errorf("call with lower trust = %+v, %v; want InvalidArgument", got, err)
	}
	if got := s.call(t, keyed, "system.bash", r); got.Ending != "exited" || got.Approval != q.ID {
		t.Errorf("call with the key = %+v, want ending exited with approval %s", got, q.ID)
	}
	if got, err := s.Governed.CallTool(t.Context(), low, "system.bash", r, governed.Watch{}); !errdefs.IsInvalidArgument(
		err,
	) {
		t.Errorf("second call with lower trust = %+v, %v; want InvalidArgument", got, err)
	}
}

// A session grant is valid for tokens with at least the asker's trust.
func TestSessionGrantExcludesWeakerTokens(t *testing.T) {
	s := newWorld(t).governed(t)
	r := bash("true")
	r.RaiseTrust, r.Session = true, "one"
	with := func(trust int) caller.Principal {
		return caller.Principal{Caller: "agent", Profile: "team", Trust: trust}
	}
	answer := func(q v1.Approval, action string) {
		if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID,
			v1.ApprovalAnswer{Action: action, Scope: "session"}); err != nil {
			t.Fatal(err)
		}
	}
	q, done := s.ask(t, with(1), r)
	if q.Trust != 1 {
		t.Errorf("the question's trust is %d, want 1", q.Trust)
	}
	answer(q, "approve")
	<-done
	for _, trust := range []int{1, 2} {
		if got := s.call(t, with(trust), "system.bash", r); got.Ending != "exited" || got.Approval != q.ID {
			t.Errorf("trust %d: call = %+v, want ending exited with approval %s", trust, got, q.ID)
		}
	}
	weak, done := s.ask(t, with(0), r)
	answer(weak, "deny")
	if got := <-done; got.Ending != "approval_denied" {
		t.Errorf("trust 0: call = %+v, want approval_denied", got)
	}
	if got := s.call(t, with(1), "system.bash", r); got.Ending != "exited" {
		t.Errorf("trust 1 after a denial of trust 0: call = %+v, want ending exited", got)
	}
	// Ending a session without a live sandbox still removes its grants.
	l, err := s.findSession(t.Context(), with(1), "one")
	if err != nil || l == nil {
		t.Fatalf("findSession = %v, %v; want a lease", l, err)
	}
	if err := s.Remove(t.Context(), with(1), l.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.EndSession(t.Context(), with(1), "one"); !errdefs.IsNotFound(err) {
		t.Errorf("EndSession without a live sandbox: %v, want NotFound", err)
	}
	q, done = s.ask(t, with(1), r)
	answer(q, "deny")
	<-done
}
