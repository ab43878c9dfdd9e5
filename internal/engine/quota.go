package engine

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// QuotaError says which quota of a caller is used up. It is of class
// ResourceExhausted.
type QuotaError = scheduler.QuotaError

// quotas are what holds for a call: its token's, and where that says nothing
// the service's. The local operator has none, and operators' tokens have no
// defaults.
func (e *Engine) quotas(call Call) scheduler.Quotas {
	if call.Caller == LocalCaller {
		return scheduler.Quotas{}
	}
	d := e.opts.Quotas
	if call.Operator {
		d = Quotas{}
	}
	q := scheduler.Quotas{Sandboxes: d.Sandboxes, Memory: d.MemoryBytes, Waiting: d.Waiting}
	if n := call.Quotas.Sandboxes; n > 0 {
		q.Sandboxes = n
	}
	if n := call.Quotas.MemoryBytes; n > 0 {
		q.Memory = n
	}
	return q
}

// quotaCalls counts one tool call of a caller, or refuses it: the quota is
// used up until the next day in UTC.
func (e *Engine) quotaCalls(_ context.Context, call Call) error {
	if call.Caller == LocalCaller {
		return nil
	}
	limit := call.Quotas.Calls
	if limit == 0 && !call.Operator {
		limit = e.opts.Quotas.Calls
	}
	return e.callers.counts.add(call.Caller, limit, e.callers.now())
}

const dayForm = "2006-01-02"

// counts is how many tools callers called on a day (UTC).
type counts struct {
	mu    sync.Mutex
	day   string
	calls map[string]int64
	dirty bool

	writing sync.Mutex // one flush at a time: an older one never comes last
}

func (c *counts) load(ctx context.Context, st *store.Store, now time.Time) error {
	c.day = now.UTC().Format(dayForm)
	calls, err := st.Calls(ctx, c.day)
	c.calls = calls
	return err
}

// add counts a call of a caller; a limit of 0 is none.
func (c *counts) add(caller string, limit int64, now time.Time) error {
	now = now.UTC()
	c.mu.Lock()
	defer c.mu.Unlock()
	if day := now.Format(dayForm); day > c.day { // a clock that is set back starts no new day
		c.day, c.calls = day, map[string]int64{}
	}
	if n := c.calls[caller]; limit > 0 && n >= limit {
		return &QuotaError{Quota: "calls", Limit: limit, Used: n, Unit: "tool calls in a day", RetryAfter: c.nextDay(now)}
	}
	c.calls[caller]++
	c.dirty = true
	return nil
}

// nextDay is how long the day that is counted lasts.
func (c *counts) nextDay(now time.Time) time.Duration {
	day, err := time.Parse(dayForm, c.day)
	if err != nil { // it was written by Format
		return time.Hour
	}
	return day.AddDate(0, 0, 1).Sub(now)
}

// flush writes what has changed.
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
		return fmt.Errorf("write down calls: %w", err)
	}
	return nil
}
