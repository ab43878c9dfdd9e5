package engine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// errHandover is the cause of a wait that ends because the service stops: the
// question stays.
var errHandover = usererror.Errorf(errdefs.ErrUnavailable, "the service is stopping: come back with the same Idempotency-Key")

// errStopping is the cause for a caller who cannot come back: the question goes.
var errStopping = usererror.Errorf(errdefs.ErrUnavailable, "the service is stopping, and the call has no Idempotency-Key to come back with: call again")

// obtainApproval gets the call the consent that it needs: from the profile's rules, or
// from somebody. An approver may change the input, which is then checked as the
// caller's own was.
func (t *toolCall) obtainApproval(ctx context.Context, reasons []approval.Reason) error {
	rules := t.profile.Approvals()
	if rules.None() && len(reasons) == 0 {
		return nil
	}
	sum, err := t.sum()
	if err != nil {
		return err
	}
	d, err := t.g.Gate.Decide(ctx, approval.Ask{
		Call: t.id, Caller: t.call.Caller, Session: t.session(), Profile: t.profile.Profile.Name, Tool: t.name, Trust: t.call.Trust, Via: t.call.Via,
		Input: func() json.RawMessage { return t.g.Redactor.ForApprover(t.call.Caller, t.input) },
		Args:  t.shaped.Values(), Key: t.call.Key, Hash: sum, Rules: rules, Reasons: reasons,
	})
	if err != nil {
		return err
	}
	t.reserved = d.Reservation
	switch {
	case d.Outcome == approval.OutcomeDenied && d.Request != nil: // it was answered while its caller was away
		return t.applyDecision(ctx, *d.Request)
	case d.Outcome == approval.OutcomeDenied:
		t.approval, t.by = d.Granted, d.By
		class := profile.ClassRuled
		if d.RetryAfter > 0 {
			class = profile.ClassBudget
		}
		return t.refuseApproval(class, d.Rule, d.Message, d.RetryAfter)
	case d.Outcome == approval.OutcomeAsked:
		return t.awaitApproval(ctx, *d.Request)
	case d.Request != nil:
		return t.applyDecision(ctx, *d.Request)
	}
	t.approval, t.by = d.Granted, d.By
	return nil
}

// awaitApproval waits for the answer to a question. A caller who goes away without a key
// to come back with takes the question along.
func (t *toolCall) awaitApproval(ctx context.Context, q approval.Request) error {
	t.approval = q.ID
	if t.watch.Asked != nil {
		t.watch.Asked(presentApproval(q))
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := errHandover
	if t.call.Key == "" {
		stopping = errStopping
	}
	defer context.AfterFunc(t.e.handing, func() { cancel(stopping) })()
	got, err := t.g.Gate.Wait(waiting, q.ID)
	if err != nil {
		if t.call.Key == "" && waiting.Err() != nil {
			give, cancel := detach(ctx, recordTimeout)
			defer cancel()
			err = errors.Join(err, t.g.Gate.Abandon(give, q.ID))
		}
		return err
	}
	return t.applyDecision(ctx, got)
}

// applyDecision takes an answer.
func (t *toolCall) applyDecision(ctx context.Context, q approval.Request) error {
	t.approval, t.by = q.ID, q.By
	switch q.State {
	case approval.Approved:
	case approval.Expired:
		return t.refuseApproval(profile.ClassExpired, q.Rule, approval.Refusal(q), 0)
	default:
		return t.refuseApproval(profile.ClassRefused, q.Rule, approval.Refusal(q), 0)
	}
	if len(q.Modified) > 0 {
		t.input = q.Modified
		if err := t.hideSecrets(ctx); err != nil {
			return err
		}
		if _, err := t.prepare(ctx); err != nil {
			return err
		}
		t.record.Input = q.Modified
	}
	t.unused = q.ID
	return nil
}

// useApproval writes down that the call's approval is used, right before it runs: so it
// runs once, and what fails before does not use it up.
func (t *toolCall) useApproval(ctx context.Context) error {
	if t.unused == "" {
		return nil
	}
	return t.g.Gate.Use(ctx, t.unused)
}

func (t *toolCall) refuseApproval(class, rule, message string, again time.Duration) error {
	v := policy.Verdict{Action: policy.Deny, Class: class, Rule: rule, Message: message}
	t.verdict = &v
	return &refusal{ending: approvalDenied, verdict: v, again: again}
}

// refundBudget returns what a budget gave to a call that did not run.
func (t *toolCall) refundBudget(ctx context.Context, why error) {
	if t.reserved == "" || t.toolStarted {
		return
	}
	finish, cancel := detach(ctx, recordTimeout)
	defer cancel()
	if err := t.g.Gate.Refund(finish, t.reserved); err != nil {
		t.e.log.Error("budget not given back", "call", t.id, "error", err, "cause", why)
	}
}

// CheckModified says whether an approver's input can replace a call's: what the
// policy denies is denied whoever wants it.
func (g *Governance) CheckModified(ctx context.Context, q approval.Request, input json.RawMessage) error {
	p, err := g.Profiles.Get(q.Profile)
	if err != nil {
		return err
	}
	t := &toolCall{g: g, id: q.Call, name: q.Tool, profile: p, input: input, call: Call{Caller: q.Caller, Trust: q.Trust}}
	if t.tool, err = p.Tool(q.Tool); err != nil {
		return err
	}
	if _, t.inputErr = secretsOf(input); t.inputErr != nil {
		return usererror.Errorf(errdefs.ErrInvalidArgument, "input: %s", t.inputErr)
	}
	if _, err = t.prepare(ctx); err != nil {
		return usererror.Errorf(errdefs.ErrInvalidArgument, "input: %s", err)
	}
	return nil
}

// recoverTool says what became of a tool call whose process ended: one that
// still waits for somebody's consent, or has it and did not begin, goes on when
// its caller comes back; any other was cut short.
func (e *Engine) recoverTool(ctx context.Context, k store.Key) (answer any, err error) {
	row, err := e.opts.Store.ApprovalByKey(ctx, k.Caller, k.Key)
	switch {
	case errdefs.IsNotFound(err):
	case err != nil:
		return nil, err
	case row.Used.IsZero():
		return nil, nil
	}
	return v1.ToolResult{
		ID: k.Ref, Ending: string(runtime.SandboxLost), Approval: row.ID,
		Error: &v1.ToolError{Type: string(runtime.SandboxLost), Message: "the orchestrator ended while the call ran"},
	}, nil
}
