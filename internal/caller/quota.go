package caller

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Quotas are a caller's limits; zero means no limit. Waiting bounds the calls that wait for a
// sandbox at once.
type Quotas struct {
	Sandboxes   int
	MemoryBytes int64
	DiskBytes   int64 // all workspaces together
	Calls       int64 // tool calls per day (UTC)
	Waiting     int
}

// QuotaError reports which quota of a caller is used up. Its class is ResourceExhausted.
type QuotaError = usererror.QuotaError

// SandboxQuotas are the limits of a caller's sandboxes; zero means no limit. Memory is in bytes.
type SandboxQuotas struct {
	Sandboxes int
	Memory    int64
	Waiting   int
}

// SandboxQuotas returns the quotas of a caller's sandboxes: the token's, and the service's defaults
// where the token sets none. The local operator has no quotas, and operators' tokens have no
// defaults.
func (s *Service) SandboxQuotas(p Principal) SandboxQuotas {
	if p.Caller == LocalCaller {
		return SandboxQuotas{}
	}
	d := s.Defaults
	if p.Operator {
		d = Quotas{}
	}
	q := SandboxQuotas{Sandboxes: d.Sandboxes, Memory: d.MemoryBytes, Waiting: d.Waiting}
	if n := p.Quotas.Sandboxes; n > 0 {
		q.Sandboxes = n
	}
	if n := p.Quotas.MemoryBytes; n > 0 {
		q.Memory = n
	}
	return q
}

// CountCall counts one tool call of the caller. It returns a *QuotaError if the quota is used up
// until the next day in UTC.
func (s *Service) CountCall(p Principal) error {
	if p.Caller == LocalCaller {
		return nil
	}
	return s.counts.add(p.Caller, s.callQuota(p), s.Now())
}

// CheckCalls returns a *QuotaError if the caller's call quota is used up. It counts nothing.
func (s *Service) CheckCalls(p Principal) error {
	if p.Caller == LocalCaller {
		return nil
	}
	return s.counts.checkOnly(p.Caller, s.callQuota(p), s.Now())
}

// callQuota returns the caller's tool calls per day; 0 means no limit.
func (s *Service) callQuota(p Principal) int64 {
	if limit := p.Quotas.Calls; limit != 0 || p.Operator {
		return limit
	}
	return s.Defaults.Calls
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

// DiskQuota returns the caller's disk quota in bytes; 0 means no limit.
func (s *Service) DiskQuota(p Principal) int64 {
	switch {
	case p.Caller == LocalCaller:
		return 0
	case p.Quotas.DiskBytes > 0:
		return p.Quotas.DiskBytes
	case p.Operator:
		return 0
	}
	return s.Defaults.DiskBytes
}
