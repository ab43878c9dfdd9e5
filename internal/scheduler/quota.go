package scheduler

import (
	"context"
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Quotas limits one caller. Zero means no limit.
type Quotas struct {
	// Sandboxes bounds the caller's sandboxes at once. Memory bounds the sum of their memory
	// limits, in bytes.
	Sandboxes int
	Memory    int64
	// Waiting bounds the calls that wait for a sandbox at once.
	Waiting int
}

// QuotaError reports which quota of a caller is used up.
type QuotaError = usererror.QuotaError

// usage is what one caller uses of its quotas.
type usage struct {
	sandboxes int
	memory    int64
	waiting   int
	changed   chan struct{} // closed when quota is released
}

// usageOf returns the caller's usage and creates it if needed. The caller holds mu.
func (s *Scheduler) usageOf(caller string) *usage {
	u := s.usage[caller]
	if u == nil {
		u = &usage{changed: make(chan struct{})}
		s.usage[caller] = u
	}
	return u
}

// dropIfUnused removes the usage of a caller that uses nothing. The caller holds mu.
func (s *Scheduler) dropIfUnused(caller string, u *usage) {
	if u.sandboxes == 0 && u.waiting == 0 && s.usage[caller] == u {
		delete(s.usage, caller)
	}
}

// reserveQuota charges a sandbox to a caller's quota. If the quota is full, wait is set and a lease
// of the caller is ending, it waits for that.
func (s *Scheduler) reserveQuota(ctx context.Context, caller string, memory int64, q Quotas, wait bool) error {
	for {
		s.mu.Lock()
		u := s.usageOf(caller)
		err := u.checkQuota(memory, q)
		if err == nil {
			u.sandboxes++
			u.memory += memory
			s.mu.Unlock()
			return nil
		}
		changed, ending := u.changed, s.hasEndingLease(caller)
		s.mu.Unlock()
		if !ending || !wait {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

func (u *usage) checkQuota(memory int64, q Quotas) error {
	switch {
	case q.Sandboxes > 0 && u.sandboxes >= q.Sandboxes:
		return &QuotaError{Quota: "sandboxes", Limit: int64(q.Sandboxes), Used: int64(u.sandboxes), Unit: "at once"}
	case q.Memory > 0 && u.memory+memory > q.Memory:
		return &QuotaError{
			Quota: "memory_bytes",
			Limit: q.Memory,
			Used:  u.memory,
			Unit:  fmt.Sprintf("bytes, and this sandbox may use %d", memory),
		}
	}
	return nil
}

// hasEndingLease reports whether a lease of the caller is ending and not yet gone. The caller holds
// mu.
func (s *Scheduler) hasEndingLease(caller string) bool {
	for _, l := range s.leases {
		if l.Caller == caller && l.Ended() != "" {
			return true
		}
	}
	return false
}

// chargeQuota charges a sandbox without a check, for sandboxes that exist after a restart.
func (s *Scheduler) chargeQuota(caller string, memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usageOf(caller)
	u.sandboxes++
	u.memory += memory
}

// releaseQuota returns the quota of reserveQuota or chargeQuota.
func (s *Scheduler) releaseQuota(caller string, memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usageOf(caller)
	u.sandboxes--
	u.memory -= memory
	close(u.changed)
	u.changed = make(chan struct{})
	s.dropIfUnused(caller, u)
}
