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
	"orchestrator/volumes"
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
	if err := s.checkWorkspace(r.Lease); err != nil {
		return nil, err
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
	// Before the promise, so that of two promises of one workspace after a
	// crash none can be of a lease that never had it.
	hold, err := s.hold(m.id, r.Lease)
	if err != nil {
		return nil, errors.Join(err, s.drop(ctx, m, err))
	}
	l, err := s.promise(ctx, m, hold, r, warm)
	if err != nil {
		if hold != nil {
			hold.Release() // it was never bound
		}
		return nil, errors.Join(err, s.drop(ctx, m, err))
	}
	defer close(l.bound)
	if err := s.bind(ctx, l, r); err != nil {
		return nil, errors.Join(err, s.End(context.WithoutCancel(ctx), l, Abandoned, false))
	}
	return l, nil
}

// checkWorkspace refuses a workspace that another lease writes to before a
// sandbox is spent on it. Whether it can be had is decided by hold.
func (s *Scheduler) checkWorkspace(l store.Lease) error {
	if l.Workspace == "" {
		return nil
	}
	w, err := s.opts.Volumes.Get(l.Workspace)
	if err != nil || l.ReadOnly || w.Shared {
		return err
	}
	for _, other := range w.Leases {
		if !other.ReadOnly {
			return fmt.Errorf("lease %s writes to workspace %s: wait for its end, or take it read-only: %w", other.ID, l.Workspace, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// hold takes the workspace of a lease, if it has one.
func (s *Scheduler) hold(id string, l store.Lease) (*volumes.Hold, error) {
	if l.Workspace == "" {
		return nil, nil
	}
	return s.opts.Volumes.Acquire(l.Workspace, id, l.ReadOnly)
}

// promise writes the lease down and makes it known.
func (s *Scheduler) promise(ctx context.Context, m *member, hold *volumes.Hold, r Request, warm bool) (*Lease, error) {
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
	l := newLease(row, m, hold)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStopping
	}
	s.leases[l.ID] = l
	return l, nil
}

// bind gives the sandbox what belongs to the caller. The claim is last: after
// a crash a lease without a claim was never handed out. It ends with the
// lease, which waits for it.
func (s *Scheduler) bind(ctx context.Context, l *Lease, r Request) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()
	if l.hold != nil {
		if err := l.member.sandbox.Bind(ctx, l.hold.Binding()); err != nil {
			return fmt.Errorf("bind workspace %s: %w", r.Lease.Workspace, err)
		}
		fault.Hit("scheduler.lease.bound")
	}
	if err := l.member.guest.Claim(ctx, wire.Claim{Lease: l.ID, Env: r.Env}); err != nil {
		return fmt.Errorf("claim sandbox %s: %w", l.ID, err)
	}
	fault.Hit("scheduler.lease.claimed")
	l.touch()
	return l.Cause()
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
		return errStopping
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
