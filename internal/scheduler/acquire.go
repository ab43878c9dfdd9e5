package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Request is what a lease is asked for. It has been validated but for what
// only the scheduler knows.
type Request struct {
	Caller   string
	Template string
	Lease    store.Lease
	Env      map[string]string
	// Alias are further names of folders of the workspace; see wire.Claim.
	Alias map[string]string
	// Egress, if set, switches the sandbox's proxy on. Who asks serves what comes
	// from it.
	Egress *wire.Egress
	TTL    time.Duration
	Idle   time.Duration
	// Mode says what to do when the pool is empty; Wait bounds all waiting.
	Mode pool.Mode
	Wait time.Duration
	// Quotas bound the caller.
	Quotas Quotas

	memory int64 // what was reserved of them
}

// Acquire leases a sandbox that nobody used before: taken from the pool,
// promised in the store, the workspace bound, the guest claimed, in this
// order. When it fails, the sandbox is destroyed and nothing is left of the
// lease.
func (s *Scheduler) Acquire(ctx context.Context, r Request) (*Lease, error) {
	t, st, ok := s.shelf.lookUp(r.Template)
	if !ok {
		return nil, s.unknownTemplate(r.Template)
	}
	if err := s.checkWorkspace(r.Lease); err != nil {
		return nil, err
	}
	if err := s.enqueue(r.Caller, r.Quotas.Waiting); err != nil {
		return nil, err
	}
	defer s.dequeue(r.Caller)
	ctx, cancel := context.WithTimeoutCause(ctx, r.Wait, usererror.Errorf(errdefs.ErrUnavailable, "no sandbox of template %s within %s", r.Template, r.Wait))
	defer cancel()
	r.Lease.CarryBytes = s.carryBytes(t, r.Lease)
	r.Lease.Class = string(t.Spec.Class.OrDefault())
	memory := t.Spec.Limits.MemoryBytes
	if err := s.reserve(ctx, r.Caller, memory, r.Quotas, r.Mode != pool.Refuse); err != nil {
		return nil, err
	}
	r.memory = memory
	l, err := s.lease(ctx, r, st.pool)
	if err != nil {
		s.unreserve(r.Caller, memory)
		return nil, err
	}
	defer close(l.bound)
	if err := s.bind(ctx, l, r); err != nil {
		return nil, errors.Join(err, s.End(context.WithoutCancel(ctx), l, Abandoned, false))
	}
	return l, nil
}

// lease takes a sandbox and promises it. Until then its end gives nothing back
// of the caller's quotas.
func (s *Scheduler) lease(ctx context.Context, r Request, from *pool.Pool[*member]) (*Lease, error) {
	m, warm, err := from.Take(ctx, r.Caller, r.Mode)
	if err != nil {
		return nil, err
	}
	// Before the promise, so that of two promises of one workspace after a
	// crash none can be of a lease that never had it.
	hold, err := s.hold(ctx, m.id, r.Lease)
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
	return l, nil
}

// modeOf is how a lease has its workspace.
func modeOf(l store.Lease) volumes.Mode {
	switch {
	case l.Overlay:
		return volumes.Overlaid
	case l.ReadOnly:
		return volumes.ReadOnly
	}
	return volumes.ReadWrite
}

// checkWorkspace refuses a workspace that others have before a sandbox is spent
// on it. Whether it can be had is decided by hold.
func (s *Scheduler) checkWorkspace(l store.Lease) error {
	if l.Workspace == "" {
		return nil
	}
	return s.opts.Volumes.Free(l.Workspace, modeOf(l))
}

// hold takes the workspace of a lease, if it has one.
func (s *Scheduler) hold(ctx context.Context, id string, l store.Lease) (*volumes.Hold, error) {
	if l.Workspace == "" {
		return nil, nil
	}
	return s.opts.Volumes.Acquire(ctx, l.Workspace, id, modeOf(l))
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
	failpoint.Hit("scheduler.lease.promised")
	s.step(row)
	l := newLease(row, m, hold)
	l.memory = r.memory // that of the template may have changed meanwhile
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
		if err := s.give(ctx, l); err != nil {
			return fmt.Errorf("bind workspace %s: %w", r.Lease.Workspace, err)
		}
		failpoint.Hit("scheduler.lease.bound")
	}
	if err := s.adoptHooks(ctx, l); err != nil {
		return err
	}
	if err := l.member.guest.Claim(ctx, wire.Claim{Lease: l.ID, Env: r.Env, Alias: r.Alias}); err != nil {
		return fmt.Errorf("claim sandbox %s: %w", l.ID, err)
	}
	if r.Egress != nil {
		if err := l.member.guest.Egress(ctx, *r.Egress); err != nil {
			return fmt.Errorf("give sandbox %s egress: %w", l.ID, err)
		}
	}
	failpoint.Hit("scheduler.lease.claimed")
	l.touch()
	return l.Cause()
}

// drop destroys a sandbox that was taken from its pool and leased to nobody.
func (s *Scheduler) drop(ctx context.Context, m *member, why error) error {
	defer s.goneFrom(m)
	return s.discard(ctx, store.Sandbox{ID: m.id, Template: m.template, Memory: m.memory}, store.Gone, firstLine(why), m.sandbox.Destroy)
}

// forgetMember gives back what the pool and the budget counted for a lease.
func (s *Scheduler) forgetMember(l *Lease) {
	s.unreserve(l.Caller, l.memory)
	if l.member == nil {
		s.budget.give(l.memory)
		return
	}
	s.budget.give(l.member.memory)
	s.goneFrom(l.member)
}

// enqueue counts a call that waits for a sandbox; most bounds those of its
// caller, 0 does not.
func (s *Scheduler) enqueue(caller string, most int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStopping
	}
	u := s.usageOf(caller)
	if most > 0 && u.waiting >= most {
		return &QuotaError{Quota: "waiting", Limit: int64(most), Used: int64(u.waiting), Unit: "calls that wait for a sandbox"}
	}
	if s.waiting >= s.opts.Queue {
		s.drain(caller, u)
		return usererror.Errorf(errdefs.ErrResourceExhausted, "%d calls wait for a sandbox already (admission.queue)", s.waiting)
	}
	s.waiting++
	u.waiting++
	return nil
}

func (s *Scheduler) dequeue(caller string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	u := s.usageOf(caller)
	u.waiting--
	s.drain(caller, u)
}
