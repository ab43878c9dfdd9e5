package approval

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// budgetPeriod returns the bounds of the period that contains now, in UTC.
func budgetPeriod(period string, now time.Time) (start, until time.Time) {
	now = now.UTC()
	y, m, d := now.Date()
	switch period {
	case Weekly:
		monday := d - (int(now.Weekday())+6)%7
		return time.Date(y, m, monday, 0, 0, 0, 0, time.UTC), time.Date(y, m, monday+7, 0, 0, 0, 0, time.UTC)
	case Monthly:
		return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	default:
		return time.Date(y, m, d, 0, 0, 0, 0, time.UTC), time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
	}
}

// budgetResult is the result of charging a budget.
type budgetResult struct {
	ok      bool
	message string // reason of a refusal
	retry   time.Duration
}

// spend charges the call's amount to the rule's budget, under id.
func (g *Gate) spend(ctx context.Context, id string, c *compiled, a Ask) (budgetResult, error) {
	amount, err := c.amountOf(ctx, a.Args, a.facts())
	if err != nil {
		return budgetResult{message: fmt.Sprintf("rule %s: cannot evaluate the amount of the call: %s", c.ID, err)}, nil
	}
	now := g.now()
	start, until := budgetPeriod(c.Period, now)
	used, ok, err := g.store.Spend(ctx, store.Spend{
		ID: id, Caller: a.Caller, Tool: a.Tool, Rule: scopedRuleID(a.Profile, c.ID), Period: c.Period, Start: start,
		Until: until, Amount: amount, Limit: c.limit,
	})
	if err != nil || ok {
		return budgetResult{ok: ok}, err
	}
	retry := until.Sub(now)
	asked := ""
	if amount != micro {
		asked = ", and this call counts " + formatMillionths(amount)
	}
	message := fmt.Sprintf("rule %s: the %s budget of %s is used up: %s of %s%s; the next period starts at %s, in %s",
		c.ID, c.Period, a.Tool, formatMillionths(used), formatMillionths(c.limit), asked, until.Format(time.RFC3339),
		retry.Round(time.Second))
	if amount > c.limit {
		message = fmt.Sprintf("rule %s: the amount %s exceeds the whole %s budget of %s, %s", c.ID,
			formatMillionths(amount), c.Period, a.Tool, formatMillionths(c.limit))
		retry = 0 // the amount exceeds the limit of any period
	}
	return budgetResult{message: message, retry: retry}, nil
}

// formatMillionths formats millionths as a decimal number.
func formatMillionths(m int64) string {
	if m > maxLimit*micro {
		return "more than " + strconv.FormatFloat(maxLimit, 'f', -1, 64)
	}
	return strconv.FormatFloat(float64(m)/micro, 'f', -1, 64)
}

// scopedRuleID returns a rule id that is unique across profiles.
func scopedRuleID(profile, rule string) string { return profile + "/" + rule }
