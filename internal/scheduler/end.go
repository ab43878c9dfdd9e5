package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// calmTime is how long calls in a lease that ends get to tell how they ended,
// after their contexts have.
const calmTime = 2 * time.Second

// stuckTime is how long who waits for an end waits for further attempts when
// the first one failed: an engine may be away for hours.
const stuckTime = 4 * sweepTime

// End ends a lease: its calls are cancelled, everything inside is killed and
// nothing is left of the sandbox when Gone is closed. With wait it returns
// then, or when attempts to remove it have failed for stuckTime: the error, of
// class Unavailable, means that the sweep is still trying. Ending twice is the
// same as once.
func (s *Scheduler) End(ctx context.Context, l *Lease, reason string, wait bool) error {
	if l.begin(reason) {
		s.mu.Lock()
		if s.closed {
			// The next process finds the row and goes on from there.
			s.mu.Unlock()
			if err := s.mark(context.WithoutCancel(ctx), l.ID, store.Stopping, reason); err != nil || !wait {
				return err
			}
			return fmt.Errorf("sandbox %s is removed by the next service: %w", l.ID, errStopping)
		}
		s.work.Add(1)
		s.mu.Unlock()
		go func() { // s.work: Run waits for it
			defer s.work.Done()
			s.finish(context.WithoutCancel(ctx), l, reason)
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
		case <-time.After(s.stuckTime):
		}
		select {
		case <-l.gone:
			return nil
		default:
		}
		return fmt.Errorf("sandbox %s could not be removed yet; the service goes on trying, and its log says why: %w", l.ID, errdefs.ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s is still being removed: %w", l.ID, context.Cause(ctx))
	}
}

// finish does what End promised.
func (s *Scheduler) finish(ctx context.Context, l *Lease, reason string) {
	if err := s.mark(ctx, l.ID, store.Stopping, reason); err != nil {
		s.log.Error("lease not marked as stopping", "sandbox", l.ID, "error", err)
	}
	failpoint.Hit("scheduler.end.marked")
	<-l.bound // a mount that is made while the sandbox goes would stay
	select {
	case <-l.idle:
	case <-time.After(calmTime):
	}
	s.settleShells(ctx, l)
	s.carryHome(ctx, l, reason)
	if s.destroy(ctx, l, reason) {
		return
	}
	s.retry(broken{lease: l, reason: reason, row: store.Sandbox{ID: l.ID}})
	close(l.stuck)
}

// settleShells records how the lease's shells ended as far as the guest can
// still tell.
func (s *Scheduler) settleShells(ctx context.Context, l *Lease) {
	rows, err := s.opts.Store.Shells(ctx, l.ID)
	if err != nil || len(rows) == 0 {
		return
	}
	ask, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var known []wire.Shell
	if l.member != nil && !l.member.dead() {
		known, _ = l.member.guest.Shells(ask) // what is not known ends with the sandbox
	}
	now := time.Now()
	for _, sh := range known {
		if sh.Result != nil {
			if err := s.opts.Store.EndShell(ctx, sh.ID, now, *sh.Result); err != nil {
				s.log.Error("end of a shell not recorded", "shell", sh.ID, "error", err)
			}
		}
	}
}

// settleRest records of shells whose end nobody saw that they ended with their
// sandbox, and that it is gone.
func (s *Scheduler) settleRest(ctx context.Context, id, reason string) error {
	rest := runtime.Result{Ending: runtime.Cancelled, ExitCode: -1, Detail: "its sandbox ended: " + reason}
	if reason == Lost || reason == Unclean {
		rest.Ending = runtime.SandboxLost
	}
	if err := s.opts.Store.EndShells(ctx, id, time.Now(), rest); err != nil {
		return err
	}
	return s.mark(ctx, id, store.Gone, reason)
}

// destroy makes one attempt, and on success lets go of all that the lease had.
func (s *Scheduler) destroy(ctx context.Context, l *Lease, reason string) bool {
	ctx, cancel := context.WithTimeout(ctx, destroyTime)
	defer cancel()
	var err error
	if l.member != nil {
		err = l.member.sandbox.Destroy(ctx)
	} else {
		err = s.opts.Driver.Remove(ctx, l.ID)
	}
	if err != nil {
		s.log.Error("sandbox not removed; trying again", "sandbox", l.ID, "error", err)
		return false
	}
	failpoint.Hit("scheduler.end.destroyed")
	if err := s.settleRest(ctx, l.ID, reason); err != nil {
		s.log.Error("end of a lease not recorded; trying again", "sandbox", l.ID, "error", err)
		return false
	}
	if l.hold != nil {
		l.hold.Release() // only now: nothing inside can write, and no row claims it
	}
	s.mu.Lock()
	delete(s.leases, l.ID)
	delete(s.broken, l.ID)
	s.mu.Unlock()
	s.forgetMember(l)
	close(l.gone)
	return true
}

// retry hands a sandbox that could not be removed to the sweep.
func (s *Scheduler) retry(b broken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken[b.row.ID] = b
}
