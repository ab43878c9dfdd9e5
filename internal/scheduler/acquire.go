package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"orchestrator/internal/fault"
	"orchestrator/internal/guest/wire"
	"orchestrator/internal/store"
	"orchestrator/pool"
)

// Request is what a lease is asked for. It has been validated but for what
// only the scheduler knows.
type Request struct {
	Caller   string
	Template string
	Lease    store.Lease
	Env      map[string]string
	TTL      time.Duration
	Idle     time.Duration
	// Mode says what to do when the pool is empty; Wait bounds all waiting.
	Mode pool.Mode
	Wait time.Duration
}

// Acquire leases a sandbox that nobody used before: taken from the pool,
// promised in the store, the workspace bound, the guest claimed, in this
// order. When it fails, the sandbox is destroyed and nothing is left of the
// lease.
func (s *Scheduler) Acquire(ctx context.Context, r Request) (*Lease, error) {
	p := s.pools[r.Template]
	if p == nil {
		return nil, fmt.Errorf("there is no template %q: use one of %s: %w", r.Template, strings.Join(slices.Sorted(maps.Keys(s.pools)), ", "), errdefs.ErrNotFound)
	}
	if err := s.enqueue(); err != nil {
		return nil, err
	}
	defer s.dequeue()
	ctx, cancel := context.WithTimeoutCause(ctx, r.Wait, fmt.Errorf("no sandbox of template %s within %s: %w", r.Template, r.Wait, errdefs.ErrUnavailable))
	defer cancel()
	m, warm, err := p.Take(ctx, r.Caller, r.Mode)
	if err != nil {
		return nil, err
	}
	l, err := s.promise(ctx, m, r, warm)
	if err != nil {
		return nil, errors.Join(err, s.drop(ctx, m, err))
	}
	if err := s.bind(ctx, l, r); err != nil {
		return nil, errors.Join(err, s.End(context.WithoutCancel(ctx), l, Abandoned, false))
	}
	return l, nil
}

// promise writes the lease down and makes it known.
func (s *Scheduler) promise(ctx context.Context, m *member, r Request, warm bool) (*Lease, error) {
	now := time.Now()
	row, err := s.opts.Store.Update(ctx, m.id, func(b *store.Sandbox) error {
		b.State, b.Caller, b.Lease, b.Warm = store.Leased, r.Caller, r.Lease, warm
		b.Expires, b.Idle, b.Used = now.Add(r.TTL), r.Idle, now
		return nil
	})
	if err != nil {
		return nil, err
	}
	fault.Hit("scheduler.lease.promised")
	l := newLease(row, m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("the service is stopping: %w", errdefs.ErrUnavailable)
	}
	s.leases[l.ID] = l
	return l, nil
}

// bind gives the sandbox what belongs to the caller. The claim is last: after
// a crash a lease without a claim was never handed out.
func (s *Scheduler) bind(ctx context.Context, l *Lease, r Request) error {
	if name := r.Lease.Workspace; name != "" {
		hold, err := s.opts.Volumes.Acquire(name, l.ID, r.Lease.ReadOnly)
		if err != nil {
			return err
		}
		l.hold = hold
		if err := l.member.sandbox.Bind(ctx, hold.Binding()); err != nil {
			return fmt.Errorf("bind workspace %s: %w", name, err)
		}
		fault.Hit("scheduler.lease.bound")
	}
	if err := l.member.guest.Claim(ctx, wire.Claim{Lease: l.ID, Env: r.Env}); err != nil {
		return fmt.Errorf("claim sandbox %s: %w", l.ID, err)
	}
	fault.Hit("scheduler.lease.claimed")
	l.touch()
	return nil
}

// drop destroys a sandbox that was taken from its pool and leased to nobody.
func (s *Scheduler) drop(ctx context.Context, m *member, why error) error {
	defer s.pools[m.template].Gone(m)
	return s.discard(ctx, store.Sandbox{ID: m.id, Template: m.template, Memory: m.memory}, store.Gone, firstLine(why), m.sandbox.Destroy)
}

// forgetMember gives back what the pool and the budget counted for a lease.
func (s *Scheduler) forgetMember(l *Lease) {
	if l.member == nil {
		s.budget.give(l.memory)
		return
	}
	s.budget.give(l.member.memory)
	if p := s.pools[l.Template]; p != nil {
		p.Gone(l.member)
	}
}

func (s *Scheduler) enqueue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("the service is stopping: %w", errdefs.ErrUnavailable)
	}
	if s.waiting >= s.opts.Queue {
		return fmt.Errorf("%d calls wait for a sandbox already (admission.queue): %w", s.waiting, errdefs.ErrResourceExhausted)
	}
	s.waiting++
	return nil
}

func (s *Scheduler) dequeue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
}
