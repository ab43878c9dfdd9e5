package governed

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// ruleCalls is the rule in refusals by the call quota.
const ruleCalls = "quota:calls"

// checkLimits checks the caller's call quota, the tool's rate and the caller's share of the audit
// log before anything is recorded. known reports whether the tool was found.
func (t *transaction) checkLimits(known bool) error {
	if err := t.s.opts.Callers.CountCall(t.principal); err != nil {
		return err
	}
	if known {
		if err := t.checkRate(); err != nil {
			return err
		}
	}
	return t.g.AdmitRecord(t.principal)
}

// checkRate refuses a call that exceeds the tool's rate.
func (t *transaction) checkRate() error {
	rate := t.tool.Rate()
	if rate == nil {
		return nil
	}
	after, ok := t.g.Limiter.Allow(t.principal.Caller, t.profile.Profile.Name+"/"+t.name, *rate)
	if ok {
		return nil
	}
	return t.refuseFor(policy.Verdict{
		Action: policy.Deny, Class: profile.ClassRate, Rule: "rate:" + t.name,
		Message: fmt.Sprintf("Tool %s may be called %d times in %s: try again in %s",
			t.name, rate.MaxCalls, time.Duration(rate.WindowMS)*time.Millisecond, after.Round(time.Millisecond)),
	}, after)
}

// limitRule reports whether err is a refusal by quota, rate or audit share, and by which rule.
func limitRule(err error) (rule string, ok bool) {
	if no, ok := errors.AsType[*refusal](err); ok {
		return no.verdict.Rule, true
	}
	if q, ok := errors.AsType[*caller.QuotaError](err); ok {
		return "quota:" + q.Quota, true
	}
	return "", false
}

// answerLimited answers a call that checkLimits refused. The call is counted and not recorded
// individually.
func (t *transaction) answerLimited(ctx context.Context, known bool, err error) (v1.ToolResult, error) {
	rule, ok := limitRule(err)
	if !ok {
		return v1.ToolResult{}, err
	}
	if q, ok := errors.AsType[*caller.QuotaError](err); ok && known && rule == ruleCalls {
		err = t.refuseFor(
			policy.Verdict{Action: policy.Deny, Class: profile.ClassQuota, Rule: rule, Message: q.Error()},
			q.RetryAfter,
		)
	}
	r := t.opening()
	r.Verdict, r.Rule, r.Ending = string(policy.Deny), rule, policyDenied
	if !known {
		r.Action = UnknownTool
	}
	t.s.recordRefused(ctx, r)
	res, err := t.answer(ctx, nil, tool.Outcome{}, err)
	if err == nil {
		err = idempotency.ErrAnswered
	}
	return res, err
}

// answerLimitedEarly answers a call whose caller has nothing left, before its idempotency key is
// locked: that would write to the database for each call. A key that exists goes on: it may have an
// answer, or its call may still run. done reports whether the call was answered.
func (t *transaction) answerLimitedEarly(ctx context.Context) (res v1.ToolResult, done bool, err error) {
	err = t.s.checkExhausted(t.principal)
	if err == nil {
		return res, false, nil
	}
	if t.principal.Key != "" {
		if taken, lookErr := store.HasKey(ctx, t.s.opts.Store, t.principal.Caller, t.principal.Key); taken || lookErr != nil {
			return res, false, nil //nolint:nilerr // taking the key tells
		}
	}
	t.start()
	res, err = t.answerLimited(ctx, t.find() == nil, err)
	if errors.Is(err, idempotency.ErrAnswered) {
		err = nil
	}
	return res, true, err
}

// checkExhausted returns a *QuotaError if the caller has no calls or audit records left today. It
// counts nothing.
func (s *Service) checkExhausted(p caller.Principal) error {
	if err := s.opts.Callers.CheckCalls(p); err != nil {
		return err
	}
	return s.opts.Config.AdmitRecord(p)
}

// UnknownTool replaces the name of an unknown tool in counts of refusals. The caller chooses that
// name, and each would add a counter.
const UnknownTool = "unknown"

// AdmitRecord returns a *QuotaError if the caller's share of the audit log is used up for today. A
// call that cannot be recorded does not run. Operators have no limit.
func (g *Config) AdmitRecord(p caller.Principal) error {
	if p.Operator {
		return nil
	}
	err := g.Audit.Admit(p.Caller)
	if s, ok := errors.AsType[*audit.ShareError](err); ok {
		return &caller.QuotaError{
			Quota:      "audit_bytes",
			Limit:      s.Limit,
			Used:       s.Used,
			Unit:       "bytes of audit records in a day",
			RetryAfter: s.RetryAfter,
		}
	}
	return err
}
