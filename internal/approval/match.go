package approval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/expr"
)

// Limits of rules.
const (
	maxRules   = 1000
	maxText    = 4096
	maxExpires = int64(30 * 24 * 3600 * 1000)
	// maxLimit keeps budgets exact: they are counted in millionths.
	maxLimit = 1e12
	micro    = 1e6
)

// The budget periods.
const (
	Daily   = "daily"
	Weekly  = "weekly" // ISO weeks: they start on Monday
	Monthly = "monthly"
)

// RuleError reports an invalid rule. It is of class InvalidArgument.
type RuleError struct {
	// Path is the location, such as "approvals[2].when".
	Path   string
	Reason string
}

// Error implements error.
func (e *RuleError) Error() string { return e.Path + ": " + e.Reason }

// Unwrap returns the errdefs class.
func (e *RuleError) Unwrap() error { return errdefs.ErrInvalidArgument }

// CallFacts is what conditions can read about a call beside its input, as "call".
type CallFacts struct {
	Caller  string
	Session string
	Profile string
	Tool    string
	Trust   int
	Via     string
	Amount  *float64 // nil if the call has none
}

func (c CallFacts) vars() map[string]any {
	v := map[string]any{"caller": c.Caller, "session": c.Session, "profile": c.Profile, "tool": c.Tool,
		"trust": int64(c.Trust), "via": c.Via}
	if c.Amount != nil {
		v["amount"] = *c.Amount
	}
	return v
}

// Rules is the compiled, immutable set of a profile's rules. It is safe for concurrent use. A nil
// Rules is empty.
type Rules struct {
	rules []compiled
}

type compiled struct {
	Rule
	when, amount *expr.Expr
	limit        int64 // in millionths
}

// None reports whether there are no rules.
func (r *Rules) None() bool { return r == nil || len(r.rules) == 0 }

// Compile checks rules and compiles their expressions. A rule without an id is named by its
// position, such as "approvals[2]". Errors are of type *RuleError.
func Compile(rules []Rule) (*Rules, error) {
	if len(rules) > maxRules {
		return nil, &RuleError{"approvals", fmt.Sprintf("has %d rules: at most %d", len(rules), maxRules)}
	}
	r := &Rules{rules: make([]compiled, len(rules))}
	ids := map[string]int{}
	for i, rule := range rules {
		c, err := compile(fmt.Sprintf("approvals[%d]", i), rule)
		if err != nil {
			return nil, err
		}
		if first, twice := ids[c.ID]; twice {
			return nil, &RuleError{fmt.Sprintf("approvals[%d].id", i),
				fmt.Sprintf("%q is also the id of approvals[%d]", c.ID, first)}
		}
		ids[c.ID] = i
		r.rules[i] = c
	}
	return r, nil
}

func compile(at string, r Rule) (compiled, error) {
	c := compiled{Rule: r}
	fail := func(field, format string, args ...any) (compiled, error) {
		return compiled{}, &RuleError{at + "." + field, fmt.Sprintf(format, args...)}
	}
	if c.ID == "" {
		c.ID = at
	}
	switch {
	case len(r.ID) > 200 || strings.ContainsAny(r.ID, "\n\x00"):
		return fail("id", "must be one line of at most 200 bytes")
	case r.Tool == "":
		return fail("tool", "must be a tool's name, or * for all")
	case len(r.Message) > maxText:
		return fail("message", "is %d bytes long: the limit is %d", len(r.Message), maxText)
	case r.ExpiresMS < 0 || r.ExpiresMS > maxExpires:
		return fail("expires_ms", "is %d: must be 0 (10 minutes) to %d (30 days)", r.ExpiresMS, maxExpires)
	}
	if _, err := path.Match(r.Tool, "x"); err != nil {
		return fail("tool", "invalid glob %q: a [ is not closed", r.Tool)
	}
	switch r.Action {
	case Approve, Deny, Prompt, Budget:
	default:
		return fail("action", "invalid action %q: use approve, deny, prompt or budget", r.Action)
	}
	if field, err := c.compileBudget(); err != nil {
		return fail(field, "%s", err)
	}
	for _, e := range []struct {
		field, source string
		to            **expr.Expr
	}{{"when", r.When, &c.when}, {"amount", r.Amount, &c.amount}} {
		if e.source == "" {
			continue
		}
		x, err := expr.Compile(e.source, "input", "call")
		if err != nil {
			return fail(e.field, "%s", err)
		}
		*e.to = x
	}
	return c, nil
}

func (c *compiled) compileBudget() (field string, err error) {
	if c.Action != Budget {
		for _, f := range []struct {
			name string
			set  bool
		}{{"limit", c.Limit != 0}, {"period", c.Period != ""}, {"amount", c.Amount != ""}, {"then", c.Then != ""}} {
			if f.set {
				return f.name, fmt.Errorf("requires the action budget: the action is %s", c.Action)
			}
		}
		return "", nil
	}
	switch {
	case !(c.Limit > 0 && c.Limit <= maxLimit): // rejects NaN too
		return "limit", fmt.Errorf("is %v: must be over 0 and at most %g", c.Limit, float64(maxLimit))
	case c.Period != Daily && c.Period != Weekly && c.Period != Monthly:
		return "period", fmt.Errorf("invalid period %q: use daily, weekly or monthly", c.Period)
	case c.Then != "" && c.Then != Deny && c.Then != Prompt:
		return "then", fmt.Errorf("invalid action %q: use deny or prompt", c.Then)
	}
	c.limit = int64(math.Round(c.Limit * micro))
	if c.limit == 0 {
		return "limit", fmt.Errorf("is %v: must be at least 0.000001", c.Limit)
	}
	return "", nil
}

// find returns the first rule that matches the tool and whose condition holds. A condition that
// cannot be evaluated holds for rules that deny or prompt, but not for rules that approve. A budget
// rule with such a condition is returned as one that denies.
func (r *Rules) find(ctx context.Context, tool string, input map[string]any, call CallFacts) (compiled, bool) {
	if r == nil {
		return compiled{}, false
	}
	var vars map[string]any
	for _, c := range r.rules {
		if match, err := path.Match(c.Tool, tool); err != nil || !match {
			continue
		}
		if c.when == nil {
			return c, true
		}
		if vars == nil {
			vars = variables(input, call)
		}
		holds, err := c.when.Bool(ctx, vars)
		switch {
		case err == nil && holds:
			return c, true
		case err == nil || c.Action == Approve:
			continue
		case c.Action == Budget:
			c.Action = Deny
		}
		c.Message = strings.TrimSpace(c.Message + " (its condition could not be evaluated: " + errorText(err) + ")")
		return c, true
	}
	return compiled{}, false
}

func variables(input map[string]any, call CallFacts) map[string]any {
	if input == nil {
		input = map[string]any{}
	}
	return map[string]any{"input": input, "call": call.vars()}
}

// amountOf returns what a call charges to the rule's budget, in millionths.
func (c *compiled) amountOf(ctx context.Context, input map[string]any, call CallFacts) (int64, error) {
	if c.amount == nil {
		return micro, nil
	}
	n, err := c.amount.Number(ctx, variables(input, call))
	switch {
	case err != nil:
		return 0, errors.New(errorText(err))
	case n < 0:
		return 0, fmt.Errorf("%s is negative: %v", c.Amount, n)
	case n > maxLimit:
		return math.MaxInt64, nil
	}
	m := int64(math.Round(n * micro))
	if m == 0 && n > 0 {
		m = 1 // the smallest amount is not free
	}
	return m, nil
}

// errorText returns the error's text without its class.
func errorText(err error) string {
	s := err.Error()
	for _, class := range []error{errdefs.ErrInvalidArgument, errdefs.ErrResourceExhausted} {
		s = strings.TrimSuffix(s, ": "+class.Error())
	}
	return s
}
