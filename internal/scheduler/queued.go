package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Queued says how the engine's own queue starts a sandbox. See Scheduler.AcquireQueued.
type Queued struct {
	runtime.Queue
	// Waiting is called with the reason why the engine has not started the sandbox, whenever that
	// changes, and with "" once the engine starts it.
	Waiting func(reason string)
	// Keep reports, after a wait that failed, whether the sandbox stays in the queue for the next
	// process.
	Keep func() bool
}

// CheckQueue returns an error that says why the engine has no queue for sandboxes of its own.
func (s *Scheduler) CheckQueue(ctx context.Context) error {
	q, ok := s.opts.Driver.(runtime.Queuer)
	if !ok {
		return fmt.Errorf("runtime %s cannot hold sandboxes: %w", s.opts.Driver.Name(), errdefs.ErrNotImplemented)
	}
	return q.CheckQueue(ctx)
}

// AcquireQueued leases a sandbox that the engine starts when its own queue lets it, outside of the
// pools and of admission. It waits for that until ctx ends. The sandbox counts in the caller's
// quotas from the beginning. If an earlier process has submitted a sandbox for r.Lease.Attempt,
// AcquireQueued waits for that one.
func (s *Scheduler) AcquireQueued(ctx context.Context, r Request, q Queued) (*Lease, error) {
	t, _, ok := s.templates.leasable(r.Template)
	if !ok {
		return nil, s.unknownTemplate(r.Template)
	}
	driver, ok := s.opts.Driver.(runtime.Queuer)
	if !ok {
		return nil, s.CheckQueue(ctx)
	}
	if r.Lease.Workspace != "" {
		if err := s.CheckNativeWorkspace(r.Template); err != nil {
			return nil, err
		}
	}
	if err := s.checkWorkspace(r.Lease); err != nil {
		return nil, err
	}
	r.Lease.CarryBytes, r.Lease.Class, r.Lease.Native = s.carryBytes(t, r.Lease), string(t.Spec.Class.OrDefault()), true
	r.memory = t.Spec.Limits.MemoryBytes
	if err := s.reserveQuota(ctx, r.Caller, r.memory, r.Quotas, true); err != nil {
		return nil, err
	}
	row, err := s.queuedRow(ctx, t, r.Lease)
	if err != nil {
		s.releaseQuota(r.Caller, r.memory)
		return nil, err
	}
	l, err := s.takeQueued(ctx, driver, r, t, row, q)
	if err != nil {
		s.releaseQuota(r.Caller, r.memory)
		return nil, err
	}
	defer close(l.bound)
	if err := s.bind(ctx, l, r); err != nil {
		return nil, errors.Join(err, s.End(context.WithoutCancel(ctx), l, Abandoned, false))
	}
	return l, nil
}

// queuedRow returns the row of the sandbox that was submitted for an attempt, or a new one.
func (s *Scheduler) queuedRow(ctx context.Context, t Template, l store.Lease) (store.Sandbox, error) {
	rows, err := s.opts.Store.Live(ctx)
	if err != nil {
		return store.Sandbox{}, err
	}
	for _, row := range rows {
		if !row.Waits() || row.Lease.Attempt != l.Attempt {
			continue
		}
		if row.Template == t.Name && row.Build == s.fingerprint(t) {
			return row, nil
		}
		if err := s.discard(ctx, row, store.Failed, "its template has changed", s.removeByID(row.ID)); err != nil {
			return store.Sandbox{}, err
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return store.Sandbox{}, err
	}
	row := store.Sandbox{
		ID: id.String(), State: store.Creating, Template: t.Name, Runtime: s.opts.Driver.Name(), Image: t.Spec.Image.ID,
		Build: s.fingerprint(t), Memory: t.Spec.Limits.MemoryBytes, Created: time.Now(),
		Lease: store.Lease{Attempt: l.Attempt, Native: true, Queued: true},
	}
	if err := s.opts.Store.Insert(ctx, row); err != nil {
		return store.Sandbox{}, err
	}
	failpoint.Hit("scheduler.queue.intent")
	s.notifyStateChange(row)
	return row, nil
}

// takeQueued submits the sandbox of a row, waits until it is ready and records its lease. If it
// fails, the sandbox is removed unless q keeps it.
func (s *Scheduler) takeQueued(
	ctx context.Context, driver runtime.Queuer, r Request, t Template, row store.Sandbox, q Queued,
) (*Lease, error) {
	spec := t.Spec
	spec.ID, spec.Owner, spec.Template, spec.Build = row.ID, s.opts.Store.Owner(), t.Name, row.Build
	err := ctx.Err()
	if err == nil {
		err = driver.Submit(ctx, spec, q.Queue)
	}
	var sb runtime.Sandbox
	if err == nil {
		failpoint.Hit("scheduler.queue.submitted")
		sb, err = driver.AwaitStart(ctx, spec, q.Waiting)
	}
	if err != nil {
		if q.Keep() {
			return nil, err
		}
		err = withdrawn(err)
		return nil, errors.Join(err, s.discard(ctx, row, store.Failed, firstLine(err), s.removeByID(row.ID)))
	}
	if err := s.recordStart(ctx, row.ID); err != nil {
		if q.Keep() { // the next process finds the row unchanged
			return nil, errors.Join(err, sb.Release())
		}
		return nil, errors.Join(err, s.discard(ctx, row, store.Failed, firstLine(err), sb.Destroy))
	}
	l, err := s.leaseQueued(ctx, newInstance(row, sb), r, t)
	if err != nil {
		return nil, errors.Join(err, s.discard(ctx, row, store.Failed, firstLine(err), sb.Destroy))
	}
	return l, nil
}

// withdrawn makes the error of a sandbox that was deleted in the queue one for its caller.
func withdrawn(err error) error {
	if why := runtime.EndReasonIn(err); why != "" && errdefs.IsNotFound(err) {
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "the cluster did not start the sandbox: %s", why)
	}
	return err
}

// recordStart records that the engine has started a sandbox. From here on a crash loses the
// sandbox: its warm-up may have begun.
func (s *Scheduler) recordStart(ctx context.Context, id string) error {
	_, err := s.opts.Store.Update(ctx, id, func(b *store.Sandbox) error {
		b.Lease.Queued = false
		return nil
	})
	if err == nil {
		failpoint.Hit("scheduler.queue.started")
	}
	return err
}

// leaseQueued prepares a sandbox that the engine has started, and records its lease.
func (s *Scheduler) leaseQueued(ctx context.Context, m *instance, r Request, t Template) (*Lease, error) {
	short, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	if err := m.awaitGuest(short); err != nil {
		return nil, err
	}
	if err := m.warmUp(ctx, t); err != nil { // has its own timeouts
		return nil, err
	}
	hold, err := s.holdWorkspace(ctx, m.id, r.Lease, m.sandbox)
	if err != nil {
		return nil, err
	}
	l, err := s.recordLease(ctx, m, hold, r, false)
	if err != nil && hold != nil {
		hold.Release() // never bound
	}
	return l, err
}

// WithdrawQueued removes the sandboxes that wait in the engine's queue for attempts that keep does
// not report. It must be called after Recover. A failed removal is retried.
func (s *Scheduler) WithdrawQueued(ctx context.Context, keep func(attempt string) bool) error {
	rows, err := s.opts.Store.Live(ctx)
	if err != nil {
		return err
	}
	var g errgroup.Group // no context: a failure does not stop the others
	g.SetLimit(recoverParallel)
	for _, row := range rows {
		if row.Waits() && !keep(row.Lease.Attempt) {
			g.Go(func() error { s.discardOrLog(ctx, row, store.Failed, s.removeByID(row.ID)); return nil })
		}
	}
	return g.Wait()
}

// releaseCapacity returns what a sandbox has reserved of the host. The engine's queue admits native
// sandboxes, and they reserve nothing.
func (s *Scheduler) releaseCapacity(row store.Sandbox) {
	if !row.Lease.Native {
		s.capacity.release(row.Memory)
	}
}
