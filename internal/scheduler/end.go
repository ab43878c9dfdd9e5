package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// callGrace is the time that calls in an ending lease get to return after their contexts were
// cancelled.
const callGrace = 2 * time.Second

// removalWait bounds how long End waits for further attempts after the first removal failed. An
// engine may be unavailable for hours.
const removalWait = 4 * sweepInterval

// End ends a lease: it cancels the lease's calls, kills all processes and removes the sandbox. Gone
// is closed when that is done. If wait is set, End returns then, or with an error of class
// Unavailable if removals have failed for removalWait; attempts continue in the background. Ending
// a lease twice has no further effect.
func (s *Scheduler) End(ctx context.Context, l *Lease, reason string, wait bool) error {
	if l.beginEnd(reason) {
		s.mu.Lock()
		if s.closed {
			// The next process finds the row and removes the sandbox.
			s.mu.Unlock()
			if err := s.recordStopping(context.WithoutCancel(ctx), l, reason); err != nil || !wait {
				return err
			}
			return fmt.Errorf("sandbox %s is removed by the next service: %w", l.ID, errStopping)
		}
		s.work.Add(1)
		s.mu.Unlock()
		go func() { // Run waits for it
			defer s.work.Done()
			s.finishEnd(context.WithoutCancel(ctx), l, reason)
		}()
	}
	if !wait {
		return nil
	}
	select {
	case <-l.gone:
		return nil
	case <-l.stuck:
		select {
		case <-l.gone:
		case <-ctx.Done():
		case <-time.After(s.removalWait):
		}
		select {
		case <-l.gone:
			return nil
		default:
		}
		return fmt.Errorf(
			"sandbox %s could not be removed yet: the service retries, and its log has the reason: %w",
			l.ID,
			errdefs.ErrUnavailable,
		)
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s is still being removed: %w", l.ID, context.Cause(ctx))
	}
}

// finishEnd ends a lease in the background.
func (s *Scheduler) finishEnd(ctx context.Context, l *Lease, reason string) {
	ctx, end := stage.Begin(ctx, s.opts.Stages, stage.Release)
	var err error
	defer func() { end(err) }()
	if err := s.recordStopping(ctx, l, reason); err != nil {
		s.log.Error("failed to mark a lease as stopping", "sandbox", l.ID, "error", err)
	}
	failpoint.Hit("scheduler.end.marked")
	<-l.bound // Wait for bind: a mount made during removal would leak.
	select {
	case <-l.idle:
	case <-time.After(callGrace):
	}
	s.recordShellEnds(ctx, l)
	s.copyBack(ctx, l, reason)
	if s.destroy(ctx, l, reason) {
		return
	}
	err = fmt.Errorf("remove sandbox %s: %w", l.ID, errdefs.ErrUnavailable)
	s.scheduleRemoval(failedRemoval{lease: l, reason: reason, row: store.Sandbox{ID: l.ID}})
	close(l.stuck)
}

// recordStopping stores that a lease ends, with what the driver reported of a lost sandbox.
func (s *Scheduler) recordStopping(ctx context.Context, l *Lease, reason string) error {
	if detail := l.LostDetail(); detail != "" {
		if _, err := s.opts.Store.Update(ctx, l.ID, func(b *store.Sandbox) error {
			b.Lease.Detail = detail
			return nil
		}); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return s.setState(ctx, l.ID, store.Stopping, reason)
}

// recordShellEnds stores the results of the lease's shells that the guest reports.
func (s *Scheduler) recordShellEnds(ctx context.Context, l *Lease) {
	rows, err := s.opts.Store.Shells(ctx, l.ID)
	if err != nil || len(rows) == 0 {
		return
	}
	ask, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var known []wire.Shell
	if l.instance != nil && !l.instance.dead() {
		known, _ = l.instance.guest.Shells(ask) // unknown shells end with the sandbox
	}
	now := time.Now()
	for _, sh := range known {
		if sh.Result != nil {
			if err := s.opts.Store.EndShell(ctx, sh.ID, now, *sh.Result); err != nil {
				s.log.Error("failed to record the end of a shell", "shell", sh.ID, "error", err)
			}
		}
	}
}

// recordSandboxEnd stores the end of a sandbox, and of its shells whose end was not observed.
// detail is what the driver reported of a lost sandbox.
func (s *Scheduler) recordSandboxEnd(ctx context.Context, id, reason, detail string) error {
	rest := runtime.Result{Ending: runtime.Cancelled, ExitCode: -1, Detail: "its sandbox ended: " + withDetail(reason, detail)}
	if reason == Lost || reason == Unclean {
		rest.Ending = runtime.SandboxLost
	}
	if err := s.opts.Store.EndShells(ctx, id, time.Now(), rest); err != nil {
		return err
	}
	return s.setState(ctx, id, store.Gone, reason)
}

// destroy makes one attempt to remove the sandbox. On success it releases everything that the lease
// held and reports true.
func (s *Scheduler) destroy(ctx context.Context, l *Lease, reason string) bool {
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	var err error
	if l.instance != nil {
		err = l.instance.sandbox.Destroy(ctx)
	} else {
		err = s.opts.Driver.Remove(ctx, l.ID)
	}
	if err != nil {
		s.log.Error("failed to remove sandbox; will retry", "sandbox", l.ID, "error", err)
		return false
	}
	failpoint.Hit("scheduler.end.destroyed")
	if err := s.recordSandboxEnd(ctx, l.ID, reason, l.LostDetail()); err != nil {
		s.log.Error("failed to record the end of a lease; will retry", "sandbox", l.ID, "error", err)
		return false
	}
	if l.hold != nil {
		l.hold.Release() // only now: nothing can write, and no row claims it
	}
	s.mu.Lock()
	delete(s.leases, l.ID)
	delete(s.failedRemovals, l.ID)
	s.mu.Unlock()
	s.releaseReservation(l)
	close(l.gone)
	return true
}

// scheduleRemoval queues a failed removal for retryRemovals. A hold that waits for it stays.
func (s *Scheduler) scheduleRemoval(b failedRemoval) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.hold = s.failedRemovals[b.row.ID].hold
	s.failedRemovals[b.row.ID] = b
}

// forgetFailedRemoval ends the retries for a sandbox that was removed, and releases what waited for
// that.
func (s *Scheduler) forgetFailedRemoval(id string) {
	s.mu.Lock()
	hold := s.failedRemovals[id].hold
	delete(s.failedRemovals, id)
	s.mu.Unlock()
	if hold != nil {
		hold.Release()
	}
}
