package governed

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// errHandover ends a wait because the service stops. The approval request stays pending.
var errHandover = usererror.Errorf(
	errdefs.ErrUnavailable,
	"the service is stopping: retry with the same Idempotency-Key",
)

// errStopping ends the wait of a caller without an idempotency key. The approval request is
// cancelled.
var errStopping = usererror.Errorf(
	errdefs.ErrUnavailable,
	"the service is stopping, and the call has no Idempotency-Key: call again",
)

// obtainApproval gets the approval that the call needs, from the profile's rules or from an
// approver. An input that an approver changed is checked again.
func (t *transaction) obtainApproval(ctx context.Context, reasons []approval.Reason) error {
	rules := t.profile.Approvals()
	if rules.None() && len(reasons) == 0 {
		return nil
	}
	return stage.Time(ctx, t.s.opts.Stages, stage.Approval, func(ctx context.Context) error {
		return t.decideApproval(ctx, rules, reasons)
	})
}

// decideApproval is obtainApproval for a call that has rules or reasons.
func (t *transaction) decideApproval(ctx context.Context, rules *approval.Rules, reasons []approval.Reason) error {
	sum, err := t.sum()
	if err != nil {
		return err
	}
	d, err := t.g.Gate.Decide(ctx, approval.Ask{
		Call: t.id, Caller: t.principal.Caller, Session: t.session(), Profile: t.profile.Profile.Name,
		Tool: t.name, Trust: t.principal.Trust, Via: t.principal.Via, Amount: t.r.Amount,
		Input: func() json.RawMessage { return t.g.Redactor.ForApprover(t.principal.Caller, t.input) },
		Args:  t.shaped.Values(), Key: t.principal.Key, Hash: sum, Rules: rules, Reasons: reasons,
	})
	if err != nil {
		return err
	}
	t.reserved = d.Reservation
	switch {
	case d.Outcome == approval.OutcomeDenied && d.Request != nil: // answered while the caller was disconnected
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

// awaitApproval waits for an approver's decision. If a caller without an idempotency key
// disconnects, the approval request is cancelled.
func (t *transaction) awaitApproval(ctx context.Context, q approval.Request) error {
	t.approval = q.ID
	if t.watch.Asked != nil {
		t.watch.Asked(presentApproval(q))
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := errHandover
	if t.principal.Key == "" {
		stopping = errStopping
	}
	defer context.AfterFunc(t.s.opts.HandingOver, func() { cancel(stopping) })()
	got, err := t.g.Gate.Wait(waiting, q.ID)
	if err != nil {
		if t.principal.Key == "" && waiting.Err() != nil {
			give, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
			defer cancel()
			err = errors.Join(err, t.g.Gate.Abandon(give, q.ID))
		}
		return err
	}
	return t.applyDecision(ctx, got)
}

// applyDecision applies an approver's decision to the call.
func (t *transaction) applyDecision(ctx context.Context, q approval.Request) error {
	t.approval, t.by = q.ID, q.By
	switch q.State {
	case approval.Approved:
		t.unused = q.ID
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
	return nil
}

// useApproval marks the call's approval as used immediately before the tool runs. An approval thus
// allows one run, and a failure before the run does not use it up.
func (t *transaction) useApproval(ctx context.Context) error {
	if t.unused == "" {
		return nil
	}
	return t.g.Gate.Use(ctx, t.unused)
}

func (t *transaction) refuseApproval(class, rule, message string, again time.Duration) error {
	v := policy.Verdict{Action: policy.Deny, Class: class, Rule: rule, Message: message}
	t.verdict = &v
	return &refusal{ending: approvalDenied, verdict: v, again: again}
}

// refundBudget returns the approval budget of a call that ended with err before its tool started. A
// call with an idempotency key that failed keeps the charge of its approval request: a retry with
// the key resumes that request, and is not charged again.
func (t *transaction) refundBudget(ctx context.Context, err error) {
	resumable := err != nil && t.principal.Key != "" && t.reserved == t.approval
	if t.reserved == "" || t.toolStarted || resumable {
		return
	}
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := t.g.Gate.Refund(finish, t.reserved); err != nil {
		t.s.log.Error("failed to refund an approval budget", "call", t.id, "error", err)
	}
}

// CheckModified validates an approver's input as a replacement for the caller's. Input that the
// policy denies is refused.
func (g *Config) CheckModified(ctx context.Context, q approval.Request, input json.RawMessage) error {
	p, err := g.profile(q.Profile)
	if err != nil {
		return err
	}
	t := &transaction{
		g:         g,
		id:        q.Call,
		name:      q.Tool,
		profile:   p,
		input:     input,
		principal: caller.Principal{Caller: q.Caller, Trust: q.Trust},
	}
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
