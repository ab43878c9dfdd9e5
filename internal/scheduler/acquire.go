package scheduler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Request describes a lease to acquire. The caller has validated the fields that need no state of
// the scheduler.
type Request struct {
	Caller   string
	Template string
	Lease    store.Lease
	Env      map[string]string
	// Alias maps further paths to directories of the workspace; see wire.Claim.
	Alias map[string]string
	// Egress, if set, starts the sandbox's egress proxy. The caller of Acquire serves its
	// connections.
	Egress *wire.Egress
	TTL    time.Duration
	Idle   time.Duration
	// Mode selects what happens if the pool is empty. Wait bounds the total wait.
	Mode pool.Mode
	Wait time.Duration
	// Quotas limits the caller.
	Quotas Quotas
	// ReserveClaim, if set, returns an error if the caller cannot have a volume claim of so many
	// bytes for the workspace. Acquire calls leave after the claim was recorded.
	ReserveClaim func(ctx context.Context, bytes int64) (leave func(), err error)

	memory int64       // the reserved memory quota in bytes
	queued func(error) // ends the stage Queue; later calls do nothing
}

// Acquire leases a sandbox that was never used. In this order, it takes one from the pool, records
// the lease, binds the workspace and claims the guest. If it fails, it destroys the sandbox and
// ends the lease. If r.Wait expires in any of these steps, the error is of class Unavailable.
func (s *Scheduler) Acquire(ctx context.Context, r Request) (l *Lease, err error) {
	ctx, end := stage.Begin(ctx, s.opts.Stages, stage.Lease)
	defer func() { end(err) }()
	t, st, ok := s.templates.leasable(r.Template)
	if !ok {
		return nil, s.unknownTemplate(r.Template)
	}
	r.Lease.Claim = r.Lease.Workspace != "" && s.ClaimBytes(r.Template) > 0
	if err := s.checkWorkspace(r.Lease); err != nil {
		return nil, err
	}
	if err := s.enqueue(r.Caller, r.Quotas.Waiting); err != nil {
		return nil, err
	}
	defer s.dequeue(r.Caller)
	late := &usererror.Error{
		Message: fmt.Sprintf(
			"no sandbox of template %s within %s",
			r.Template,
			r.Wait,
		), Class: errdefs.ErrUnavailable, RetryAfter: retryLate,
	}
	wait, cancel := context.WithTimeoutCause(ctx, r.Wait, late)
	defer cancel()
	l, err = s.acquire(wait, r, t, st)
	if err != nil && context.Cause(wait) == error(late) && !hasClass(err) {
		// The layers below return the bare deadline, or an error that it caused.
		err = fmt.Errorf("%w: %v", late, err) // the deadline's class must not show
	}
	return l, err
}

// retryLate is when to try again after a wait that expired.
const retryLate = time.Second

// hasClass reports whether err is of a class that tells the caller why it gets no sandbox.
func hasClass(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsResourceExhausted(err) || errdefs.IsFailedPrecondition(err) ||
		errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err)
}

// acquire is Acquire for a call that was admitted to the queue.
func (s *Scheduler) acquire(ctx context.Context, r Request, t Template, st *templatePool) (*Lease, error) {
	r.Lease.CarryBytes = s.carryBytes(t, r.Lease)
	r.Lease.Class = string(t.Spec.Class.OrDefault())
	memory := t.Spec.Limits.MemoryBytes
	if err := s.reserveName(r.Caller, r.Lease.Name); err != nil {
		return nil, err
	}
	queued, endQueue := stage.Begin(ctx, s.opts.Stages, stage.Queue)
	taken := false
	r.queued = func(err error) {
		if !taken {
			taken = true
			endQueue(err)
		}
	}
	err := s.reserveQuota(queued, r.Caller, memory, r.Quotas, r.Mode != pool.Refuse)
	if err != nil {
		endQueue(err)
		s.releaseName(r.Caller, r.Lease.Name)
		return nil, err
	}
	r.memory = memory
	var l *Lease
	if r.Lease.Claim {
		l, err = s.takeWithClaim(ctx, r, t, st)
	} else {
		l, err = s.takeSandbox(ctx, r, st.pool)
	}
	if err != nil {
		r.queued(err)
		s.releaseQuota(r.Caller, memory)
		s.releaseName(r.Caller, r.Lease.Name)
		return nil, err
	}
	defer close(l.bound)
	err = stage.Time(ctx, s.opts.Stages, stage.Bind, func(ctx context.Context) error { return s.bind(ctx, l, r) })
	if err != nil {
		return nil, errors.Join(err, s.End(context.WithoutCancel(ctx), l, Abandoned, false))
	}
	return l, nil
}

// takeSandbox takes a sandbox from the pool and records its lease. If it fails, the caller has to
// release the quota.
func (s *Scheduler) takeSandbox(ctx context.Context, r Request, from *pool.Pool[*instance]) (*Lease, error) {
	m, warm, err := from.Take(ctx, r.Caller, r.Mode)
	r.queued(err)
	if err != nil {
		return nil, err
	}
	// Hold the workspace before recording the lease. After a crash at most one recorded lease then
	// claims to write to a workspace.
	hold, err := s.holdWorkspace(ctx, m.id, r.Lease, m.sandbox)
	if err != nil {
		return nil, errors.Join(err, s.destroyUnleased(ctx, m, err))
	}
	l, err := s.recordLease(ctx, m, hold, r, warm)
	if err != nil {
		if hold != nil {
			hold.Release() // never bound
		}
		return nil, errors.Join(err, s.destroyUnleased(ctx, m, err))
	}
	return l, nil
}

// modeOf returns how a lease accesses its workspace.
func modeOf(l store.Lease) volumes.Mode {
	switch {
	case l.Overlay:
		return volumes.Overlaid
	case l.ReadOnly:
		return volumes.ReadOnly
	}
	return volumes.ReadWrite
}

// checkWorkspace returns an error if the workspace is in use, before a sandbox is taken. The
// decision is made by holdWorkspace.
func (s *Scheduler) checkWorkspace(l store.Lease) error {
	switch {
	case l.Workspace == "":
		return nil
	case l.Claim:
		return s.opts.Volumes.FreeClaim(l.Workspace, modeOf(l))
	}
	return s.opts.Volumes.Free(l.Workspace, modeOf(l))
}

// holdWorkspace locks the workspace of a lease for its sandbox, which may be nil if nothing has
// to be mounted. It returns nil without a workspace.
func (s *Scheduler) holdWorkspace(ctx context.Context, id string, l store.Lease,
	sandbox runtime.Sandbox) (*volumes.Hold, error) {
	switch {
	case l.Workspace == "":
		return nil, nil
	case l.Claim:
		hold, _, err := s.opts.Volumes.AcquireClaim(ctx, l.Workspace, id, modeOf(l), 0)
		return hold, err
	}
	var userNS *os.File
	if u, ok := sandbox.(runtime.UserNamespaced); ok {
		userNS = u.UserNamespace()
	}
	return s.opts.Volumes.AcquireFor(ctx, l.Workspace, id, modeOf(l), userNS)
}

// recordLease stores the lease and adds it to the live leases.
func (s *Scheduler) recordLease(
	ctx context.Context,
	m *instance,
	hold *volumes.Hold,
	r Request,
	warm bool,
) (*Lease, error) {
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
	s.notifyStateChange(row)
	l := newLease(row, m, hold)
	l.memory = r.memory // the template's limit may have changed since
	if s.opts.OnLease != nil {
		s.opts.OnLease(l.Template, warm)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStopping
	}
	s.leases[l.ID] = l
	return l, nil
}

// bind gives the sandbox the caller's workspace, environment and egress. The claim comes after the
// workspace: a lease without a claim was never handed out, which recovery relies on. bind fails
// when the lease ends.
func (s *Scheduler) bind(ctx context.Context, l *Lease, r Request) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()
	if l.hold != nil {
		if err := s.bindWorkspace(ctx, l); err != nil {
			return fmt.Errorf("bind workspace %s: %w", r.Lease.Workspace, err)
		}
		failpoint.Hit("scheduler.lease.bound")
	}
	if err := s.recordHookShells(ctx, l); err != nil {
		return err
	}
	if err := l.instance.guest.Claim(ctx, wire.Claim{Lease: l.ID, Env: r.Env, Alias: r.Alias}); err != nil {
		return fmt.Errorf("claim sandbox %s: %w", l.ID, err)
	}
	if r.Egress != nil {
		if err := l.instance.guest.Egress(ctx, *r.Egress); err != nil {
			return fmt.Errorf("enable egress of sandbox %s: %w", l.ID, err)
		}
	}
	failpoint.Hit("scheduler.lease.claimed")
	l.touch()
	return l.Cause()
}

// destroyUnleased destroys a sandbox that was taken from its pool but not leased.
func (s *Scheduler) destroyUnleased(ctx context.Context, m *instance, why error) error {
	defer s.reportGone(m)
	return s.discard(
		ctx,
		store.Sandbox{ID: m.id, Template: m.template, Memory: m.memory},
		store.Gone,
		firstLine(why),
		m.sandbox.Destroy,
	)
}

// releaseReservation returns a lease's quota, name and host capacity and removes its sandbox from
// the pool's count.
func (s *Scheduler) releaseReservation(l *Lease) {
	s.releaseQuota(l.Caller, l.memory)
	s.releaseName(l.Caller, l.Name)
	if l.native {
		return
	}
	if l.instance == nil {
		s.capacity.release(l.memory)
		return
	}
	s.capacity.release(l.instance.memory)
	s.reportGone(l.instance)
}

// enqueue counts a call that waits for a sandbox. most bounds the waiting calls of its caller; 0
// means no limit.
func (s *Scheduler) enqueue(caller string, most int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStopping
	}
	u := s.usageOf(caller)
	if most > 0 && u.waiting >= most {
		return &QuotaError{
			Quota: "waiting",
			Limit: int64(most),
			Used:  int64(u.waiting),
			Unit:  "calls that wait for a sandbox",
		}
	}
	if s.waiting >= s.opts.Queue {
		s.dropIfUnused(caller, u)
		return usererror.Errorf(
			errdefs.ErrResourceExhausted,
			"too many calls wait for a sandbox (%d; admission.queue)",
			s.waiting,
		)
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
	s.dropIfUnused(caller, u)
}
