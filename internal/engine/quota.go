package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// QuotaError reports which quota of a caller is used up. Its class is ResourceExhausted.
type QuotaError = scheduler.QuotaError

// quotas returns the quotas of a call: the token's, and the service's defaults where the token sets
// none. The local operator has no quotas, and operators' tokens have no defaults.
func (e *Engine) quotas(p Principal) scheduler.Quotas {
	if p.Caller == LocalCaller {
		return scheduler.Quotas{}
	}
	d := e.opts.Quotas
	if p.Operator {
		d = Quotas{}
	}
	q := scheduler.Quotas{Sandboxes: d.Sandboxes, Memory: d.MemoryBytes, Waiting: d.Waiting}
	if n := p.Quotas.Sandboxes; n > 0 {
		q.Sandboxes = n
	}
	if n := p.Quotas.MemoryBytes; n > 0 {
		q.Memory = n
	}
	return q
}

// countCall counts one tool call of the caller. It returns a *QuotaError if the quota is used up
// until the next day in UTC.
func (e *Engine) countCall(_ context.Context, p Principal) error {
	if p.Caller == LocalCaller {
		return nil
	}
	return e.callers.counts.add(p.Caller, e.callQuota(p), e.callers.now())
}

// checkCallQuota returns a *QuotaError if the caller's call quota is used up. It counts nothing.
func (e *Engine) checkCallQuota(p Principal) error {
	if p.Caller == LocalCaller {
		return nil
	}
	return e.callers.counts.checkOnly(p.Caller, e.callQuota(p), e.callers.now())
}

// callQuota returns the caller's tool calls per day; 0 means no limit.
func (e *Engine) callQuota(p Principal) int64 {
	if limit := p.Quotas.Calls; limit != 0 || p.Operator {
		return limit
	}
	return e.opts.Quotas.Calls
}

const dayForm = "2006-01-02"

// counts holds the number of tool calls of each caller on one day (UTC).
type counts struct {
	mu    sync.Mutex
	day   string
	calls map[string]int64
	dirty bool

	writing sync.Mutex // serializes flushes, so that an older one is never written last
}

func (c *counts) load(ctx context.Context, st *store.Store, now time.Time) error {
	c.day = now.UTC().Format(dayForm)
	calls, err := st.Calls(ctx, c.day)
	c.calls = calls
	return err
}

// add counts a call of a caller, or returns a *QuotaError. A limit of 0 means no limit.
func (c *counts) add(caller string, limit int64, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check(caller, limit, now.UTC()); err != nil {
		return err
	}
	c.calls[caller]++
	c.dirty = true
	return nil
}

// checkOnly is add without counting.
func (c *counts) checkOnly(caller string, limit int64, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.check(caller, limit, now.UTC())
}

func (c *counts) check(caller string, limit int64, now time.Time) error {
	if day := now.Format(dayForm); day > c.day { // a clock that is set back starts no new day
		c.day, c.calls = day, map[string]int64{}
	}
	if n := c.calls[caller]; limit > 0 && n >= limit {
		return &QuotaError{Quota: "calls", Limit: limit, Used: n, Unit: "tool calls in a day", RetryAfter: c.nextDay(now)}
	}
	return nil
}

// nextDay returns the time until the counted day ends.
func (c *counts) nextDay(now time.Time) time.Duration {
	day, err := time.Parse(dayForm, c.day)
	if err != nil { // not expected: the day was written by Format
		return time.Hour
	}
	return day.AddDate(0, 0, 1).Sub(now)
}

// flush stores the counts if they changed.
func (c *counts) flush(ctx context.Context, st *store.Store) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	day, calls, dirty := c.day, maps.Clone(c.calls), c.dirty
	c.dirty = false
	c.mu.Unlock()
	if !dirty {
		return nil
	}
	if err := st.SetCalls(ctx, day, calls); err != nil {
		c.mu.Lock()
		c.dirty = true
		c.mu.Unlock()
		return fmt.Errorf("store call counts: %w", err)
	}
	return nil
}

// ruleCalls is the rule in refusals by the call quota.
const ruleCalls = "quota:calls"

// checkLimits checks the caller's call quota, the tool's rate and the caller's share of the audit
// log before anything is recorded. known reports whether the tool was found.
func (t *toolCall) checkLimits(ctx context.Context, known bool) error {
	if err := t.e.countCall(ctx, t.principal); err != nil {
		return err
	}
	if known {
		if err := t.checkRate(); err != nil {
			return err
		}
	}
	return t.g.admitRecord(t.principal)
}

// checkRate refuses a call that exceeds the tool's rate.
func (t *toolCall) checkRate() error {
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

// admitRecord returns a *QuotaError if the caller's share of the audit log is used up for today. A
// call that cannot be recorded does not run. Operators have no limit.
func (g *Governance) admitRecord(p Principal) error {
	if p.Operator {
		return nil
	}
	err := g.Audit.Admit(p.Caller)
	if s, ok := errors.AsType[*audit.ShareError](err); ok {
		return &QuotaError{Quota: "audit_bytes", Limit: s.Limit, Used: s.Used, Unit: "bytes of audit records in a day", RetryAfter: s.RetryAfter}
	}
	return err
}

// limitRule reports whether err is a refusal by quota, rate or audit share, and by which rule.
func limitRule(err error) (rule string, ok bool) {
	if no, ok := errors.AsType[*refusal](err); ok {
		return no.verdict.Rule, true
	}
	if q, ok := errors.AsType[*QuotaError](err); ok {
		return "quota:" + q.Quota, true
	}
	return "", false
}

// answerLimited answers a call that checkLimits refused. The call is counted and not recorded
// individually.
func (t *toolCall) answerLimited(ctx context.Context, known bool, err error) (v1.ToolResult, error) {
	rule, ok := limitRule(err)
	if !ok {
		return v1.ToolResult{}, err
	}
	if q, ok := errors.AsType[*QuotaError](err); ok && known && rule == ruleCalls {
		err = t.refuseFor(policy.Verdict{Action: policy.Deny, Class: profile.ClassQuota, Rule: rule, Message: q.Error()}, q.RetryAfter)
	}
	r := t.opening()
	r.Verdict, r.Rule, r.Ending = string(policy.Deny), rule, policyDenied
	if !known {
		r.Action = unknownTool
	}
	t.e.recordRefused(ctx, r)
	res, err := t.answer(ctx, nil, noOutcome, err)
	if err == nil {
		err = errAnswered
	}
	return res, err
}

// answerLimitedEarly answers a call whose caller has nothing left, before its idempotency key is
// locked: that would write to the database for each call. A key that exists has an answer, which
// the caller gets. done reports whether the call was answered.
func (t *toolCall) answerLimitedEarly(ctx context.Context) (res v1.ToolResult, done bool, err error) {
	err = t.e.checkExhausted(t.principal)
	if err == nil {
		return res, false, nil
	}
	if t.principal.Key != "" {
		if taken, lookErr := store.HasKey(ctx, t.e.opts.Store, t.principal.Caller, t.principal.Key); taken || lookErr != nil {
			return res, false, nil //nolint:nilerr // taking the key tells
		}
	}
	t.start()
	res, err = t.answerLimited(ctx, t.find() == nil, err)
	if errors.Is(err, errAnswered) {
		err = nil
	}
	return res, true, err
}

// checkExhausted returns a *QuotaError if the caller has no calls or audit records left today. It
// counts nothing.
func (e *Engine) checkExhausted(p Principal) error {
	if err := e.checkCallQuota(p); err != nil {
		return err
	}
	return e.opts.Governance.admitRecord(p)
}

// unknownTool replaces the name of an unknown tool in counts of refusals. The caller chooses that
// name, and each would add a counter.
const unknownTool = "unknown"

// recordRefused counts a refused call. A failure is only logged: the call does not run, so it needs
// no record.
func (e *Engine) recordRefused(ctx context.Context, r audit.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := e.opts.Governance.Audit.Refused(ctx, r); err != nil {
		e.log.Error("failed to record a refused call; will retry", "caller", r.Caller, "rule", r.Rule, "error", err)
	}
}
