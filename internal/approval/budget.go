package approval

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// window is the period that now is in, in UTC.
func window(period string, now time.Time) (start, until time.Time) {
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

// spending is what came of asking a budget.
type spending struct {
	ok      bool
	message string // why not
	retry   time.Duration
}

// spend takes what the call counts of the rule's budget, under id.
func (g *Gate) spend(ctx context.Context, id string, c *compiled, a Ask) (spending, error) {
	amount, err := c.count(ctx, a.Args, a.facts())
	if err != nil {
		return spending{message: fmt.Sprintf("rule %s: what the call counts of the budget is not known: %s", c.ID, err)}, nil
	}
	now := g.now()
	start, until := window(c.Period, now)
	used, ok, err := g.store.Spend(ctx, store.Spend{
		ID: id, Caller: a.Caller, Tool: a.Tool, Rule: scoped(a.Profile, c.ID), Period: c.Period, Start: start, Until: until, Amount: amount, Limit: c.limit,
	})
	if err != nil || ok {
		return spending{ok: ok}, err
	}
	retry := until.Sub(now)
	asked := ""
	if amount != micro {
		asked = ", and this call counts " + number(amount)
	}
	message := fmt.Sprintf("rule %s: the %s budget of %s is used up: %s of %s%s; the next period begins at %s, in %s",
		c.ID, c.Period, a.Tool, number(used), number(c.limit), asked, until.Format(time.RFC3339), retry.Round(time.Second))
	if amount > c.limit {
		message = fmt.Sprintf("rule %s: the call counts %s, over the whole %s budget of %s, %s", c.ID, number(amount), c.Period, a.Tool, number(c.limit))
		retry = 0 // no other period helps
	}
	return spending{message: message, retry: retry}, nil
}

// number writes millionths as a decimal number.
func number(m int64) string {
	if m > maxLimit*micro {
		return "more than " + strconv.FormatFloat(maxLimit, 'f', -1, 64)
	}
	return strconv.FormatFloat(float64(m)/micro, 'f', -1, 64)
}

// scoped is a rule's name among those of all profiles.
func scoped(profile, rule string) string { return profile + "/" + rule }
