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
		tb.Fatal("nobody was asked")
	}
	panic("unreachable")
}

func TestOperatorAnswersApproval(t *testing.T) {
	s := newWorld(t).governed(t)
	q, done := s.ask(t, agent, bash("rm x"))
	if _, err := s.Governed.AnswerApproval(t.Context(), agent, q.ID, v1.ApprovalAnswer{Action: "approve"}); !errdefs.IsPermissionDenied(
		err,
	) {
		t.Errorf("the caller's own answer: %v", err)
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID,
		v1.ApprovalAnswer{Action: "modify", Input: json.RawMessage(`{"command": "sudo rm x"}`)}); !errdefs.IsInvalidArgument(
		err,
	) {
		t.Errorf("an input that the policy denies: %v", err)
	}
	op := caller.Local("")
	op.By = "ada"
	if _, err := s.Governed.AnswerApproval(t.Context(), op, q.ID,
		v1.ApprovalAnswer{Action: "modify", Input: json.RawMessage(`{"command": "rm y"}`)}); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.Ending != "exited" || got.Approval != q.ID {
		t.Fatalf("%+v", got)
	}
	r := s.records(t, got.ID)
	if len(r) != 2 || r[1].Approval != q.ID || r[1].By != "ada" || !strings.Contains(string(r[1].Input), "rm y") {
		t.Errorf("%+v", r)
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
		t.Errorf("%+v", got)
	}
}

func TestApprovalRaisesTrust(t *testing.T) {
	s := newWorld(t).governed(t)
	low := caller.Principal{Caller: "agent", Profile: "team", Trust: 1}
	r := bash("true")
	r.RaiseTrust = true
	q, done := s.ask(t, low, r)
	if q.Kind != "trust" {
		t.Errorf("%+v", q)
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.Ending != "exited" {
		t.Errorf("%+v", got)
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
		t.Fatal("a caller who left got an answer")
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	first := s.call(t, keyed, "system.bash", bash("rm x"))
	if first.Ending != "exited" || first.Approval != q.ID {
		t.Fatalf("%+v", first)
	}
	if second := s.call(t, keyed, "system.bash", bash("rm x")); second.ID != first.ID {
		t.Errorf("it ran again: %+v", second)
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
		t.Errorf("%+v, %v", got, err)
	}
	if got := s.call(t, keyed, "system.bash", r); got.Ending != "exited" || got.Approval != q.ID {
		t.Errorf("%+v", got)
	}
	if got, err := s.Governed.CallTool(t.Context(), low, "system.bash", r, governed.Watch{}); !errdefs.IsInvalidArgument(
		err,
	) {
		t.Errorf("%+v, %v", got, err)
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
			t.Errorf("trust %d: %+v", trust, got)
		}
	}
	weak, done := s.ask(t, with(0), r)
	answer(weak, "deny")
	if got := <-done; got.Ending != "approval_denied" {
		t.Errorf("trust 0: %+v", got)
	}
	if got := s.call(t, with(1), "system.bash", r); got.Ending != "exited" {
		t.Errorf("trust 1 after a denial of trust 0: %+v", got)
	}
	// Ending a session without a live sandbox still removes its grants.
	l, err := s.findSession(t.Context(), with(1), "one")
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	if err := s.Remove(t.Context(), with(1), l.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.EndSession(t.Context(), with(1), "one"); !errdefs.IsNotFound(err) {
		t.Errorf("got %v, want not found", err)
	}
	q, done = s.ask(t, with(1), r)
	answer(q, "deny")
	<-done
}
