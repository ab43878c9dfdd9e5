package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Quotas bound one caller; zero is none.
type Quotas struct {
	// Sandboxes at once, and what their templates allow them of memory together,
	// in bytes.
	Sandboxes int
	Memory    int64
	// Waiting is how many calls wait for a sandbox at once.
	Waiting int
}

// QuotaError says which quota of a caller is used up. It is of class
// ResourceExhausted.
type QuotaError struct {
	Quota       string // its name, such as "sandboxes"
	Limit, Used int64
	Unit        string // what is counted
	// RetryAfter is when to try again, 0 if that depends on what the caller
	// gives back.
	RetryAfter time.Duration
}

// Error is a whole sentence for the caller.
func (e *QuotaError) Error() string {
	text := fmt.Sprintf("the quota %s is used up: %d of %d %s", e.Quota, e.Used, e.Limit, e.Unit)
	if e.RetryAfter > 0 {
		return text + ": try again in " + e.RetryAfter.Round(time.Second).String()
	}
	return text
}

// Unwrap gives the class.
func (e *QuotaError) Unwrap() error { return errdefs.ErrResourceExhausted }

// usage is what one caller has of this host: what it is promised, and what it
// waits for.
type usage struct {
	sandboxes int
	memory    int64
	waiting   int
	changed   chan struct{} // closed when something was given back
}

// usageOf is to be called with the lock held.
func (s *Scheduler) usageOf(caller string) *usage {
	u := s.usage[caller]
	if u == nil {
		u = &usage{changed: make(chan struct{})}
		s.usage[caller] = u
	}
	return u
}

// drain forgets a caller who has nothing. The lock is held.
func (s *Scheduler) drain(caller string, u *usage) {
	if u.sandboxes == 0 && u.waiting == 0 && s.usage[caller] == u {
		delete(s.usage, caller)
	}
}

// reserve counts a sandbox for a caller before one is taken. Where the quota is
// full and a sandbox of the caller is on its way out, it waits for that if wait
// is set.
func (s *Scheduler) reserve(ctx context.Context, caller string, memory int64, q Quotas, wait bool) error {
	for {
		s.mu.Lock()
		u := s.usageOf(caller)
		err := u.room(memory, q)
		if err == nil {
			u.sandboxes++
			u.memory += memory
			s.mu.Unlock()
			return nil
		}
		changed, ending := u.changed, s.ending(caller)
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

func (u *usage) room(memory int64, q Quotas) error {
	switch {
	case q.Sandboxes > 0 && u.sandboxes >= q.Sandboxes:
		return &QuotaError{Quota: "sandboxes", Limit: int64(q.Sandboxes), Used: int64(u.sandboxes), Unit: "at once"}
	case q.Memory > 0 && u.memory+memory > q.Memory:
		return &QuotaError{Quota: "memory_bytes", Limit: q.Memory, Used: u.memory, Unit: fmt.Sprintf("bytes, and this sandbox may use %d", memory)}
	}
	return nil
}

// ending says whether a lease of the caller is over and not yet gone. The lock
// is held.
func (s *Scheduler) ending(caller string) bool {
	for _, l := range s.leases {
		if l.Caller == caller && l.Ended() != "" {
			return true
		}
	}
	return false
}

// count counts what is there already after a restart, whatever the quota.
func (s *Scheduler) count(caller string, memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usageOf(caller)
	u.sandboxes++
	u.memory += memory
}

// unreserve gives back what reserve or count took.
func (s *Scheduler) unreserve(caller string, memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usageOf(caller)
	u.sandboxes--
	u.memory -= memory
	close(u.changed)
	u.changed = make(chan struct{})
	s.drain(caller, u)
}
