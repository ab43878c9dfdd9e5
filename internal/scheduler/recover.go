package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"golang.org/x/sync/errgroup"
)

// Recovered counts what Recover found.
type Recovered struct {
	Warm, Leased, Lost, Removed, Unknown, Queued int
}

// reasonProcessEnded is the reason for sandboxes that the earlier process no longer needs.
const reasonProcessEnded = "its process ended"

// recoverParallel bounds concurrent adoptions and removals.
const recoverParallel = 8

// Recover compares the stored sandboxes with those of the engine and adopts, ends or removes each.
// It must be called once, before Run. It fails if the engine is unavailable. If the engine cannot
// answer for one sandbox, that lease stays unknown and Run asks again.
func (s *Scheduler) Recover(ctx context.Context) (Recovered, error) {
	rows, err := s.opts.Store.Live(ctx)
	if err != nil {
		return Recovered{}, err
	}
	found, err := s.opts.Driver.List(ctx, s.opts.Store.Owner())
	if err != nil {
		return Recovered{}, fmt.Errorf("list sandboxes of an earlier process: %w", err)
	}
	known := make(map[string]bool, len(rows))
	for _, row := range rows {
		if row.Runtime != s.opts.Driver.Name() {
			return Recovered{}, fmt.Errorf(
				"state directory has sandboxes of runtime %s: start with that, or take them down first: %w",
				row.Runtime,
				errdefs.ErrFailedPrecondition,
			)
		}
		known[row.ID] = true
		if !row.Lease.Native {
			s.capacity.forceReserve(row.Memory)
		}
	}
	// Hold all workspaces before slower work, those of live leases first.
	for _, state := range []store.State{store.Leased, store.Stopping} {
		for _, row := range rows {
			if row.State == state && row.Caller != "" {
				s.restoreLease(ctx, row)
			}
		}
	}
	holds := s.holdClaims(ctx, rows)
	c := &recoveryCounter{}
	var g errgroup.Group // no context: a failure does not stop the others
	g.SetLimit(recoverParallel)
	for _, f := range found {
		if !known[f.ID] {
			g.Go(func() error { s.removeOrphan(ctx, f, c); return nil })
		}
	}
	for _, row := range rows {
		g.Go(func() error {
			s.recoverRow(ctx, row, c)
			s.releaseAfterRemoval(row.ID, holds[row.ID])
			return nil
		})
	}
	_ = g.Wait()
	return c.total(), context.Cause(ctx)
}

// removeOrphan removes a sandbox of the engine that is not stored.
func (s *Scheduler) removeOrphan(ctx context.Context, f runtime.Found, c *recoveryCounter) {
	s.log.Warn("removing a sandbox that is not recorded", "sandbox", f.ID, "template", f.Template)
	c.add(func(r *Recovered) { r.Removed++ })
	s.capacity.forceReserve(0)
	s.discardOrLog(ctx, store.Sandbox{ID: f.ID, Template: f.Template}, store.Gone, s.removeByID(f.ID))
}

// discardOrLog discards a sandbox of an earlier process. A failure is logged and retried later, and
// does not prevent the start.
func (s *Scheduler) discardOrLog(
	ctx context.Context,
	row store.Sandbox,
	to store.State,
	remove func(context.Context) error,
) {
	if err := s.discard(ctx, row, to, reasonProcessEnded, remove); err != nil {
		s.log.Error("failed to remove sandbox; will retry", "sandbox", row.ID, "error", err)
	}
}

func (s *Scheduler) recoverRow(ctx context.Context, row store.Sandbox, c *recoveryCounter) {
	remove := s.removeByID(row.ID)
	l := s.Live(row.ID)
	switch {
	case row.Waits(): // AcquireQueued continues, or WithdrawQueued removes it
		c.add(func(r *Recovered) { r.Queued++ })
		return
	case l != nil && row.State == store.Leased && !row.Lease.OneShot:
		s.recoverLease(ctx, l, row, c)
		return
	case l != nil:
		c.add(func(r *Recovered) { r.Removed++ })
		s.adoptForCopyBack(ctx, l, row)
		if err := s.End(ctx, l, cmp.Or(row.Reason, reasonProcessEnded), false); err != nil {
			s.log.Error("failed to end a lease", "sandbox", l.ID, "error", err)
		}
		return
	case row.State == store.Warm && !row.Lease.Claim:
		m, err := s.adopt(ctx, row)
		if err == nil && s.keepWarm(ctx, m, row) {
			c.add(func(r *Recovered) { r.Warm++ })
			return
		}
		if err == nil {
			remove = m.sandbox.Destroy
		}
	}
	c.add(func(r *Recovered) { r.Removed++ })
	to := store.Gone
	if row.State == store.Creating {
		to = store.Failed
	}
	s.discardOrLog(ctx, row, to, remove)
}

// keepWarm returns a warm sandbox to its pool and reports true if its fingerprint matches and it
// passes the probe.
func (s *Scheduler) keepWarm(ctx context.Context, m *instance, row store.Sandbox) bool {
	t, ok := s.template(row.Template)
	if !ok || row.Build != s.fingerprint(t) {
		return false
	}
	m.hooks = t.backgroundHooks()
	if err := m.probe(ctx); err != nil {
		return false
	}
	p := s.pool(row.Template)
	return p != nil && p.Adopt(m, row.Created)
}

// restoreLease restores a lease of an earlier process and holds its workspace, so that no other
// lease can write to it while the sandbox may be alive.
func (s *Scheduler) restoreLease(ctx context.Context, row store.Sandbox) {
	hold, err := s.holdWorkspace(ctx, row.ID, row.Lease, nil) // an overlay is mounted already
	if err != nil {
		s.log.Error(
			"failed to hold the workspace of a lease",
			"sandbox",
			row.ID,
			"workspace",
			row.Lease.Workspace,
			"error",
			err,
		)
	}
	l := newLease(row, nil, hold)
	s.chargeQuota(row.Caller, row.Memory)
	s.keepName(row.Caller, row.Lease.Name)
	close(l.bound) // the earlier process has bound it
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[l.ID] = l
}

func (s *Scheduler) recoverLease(ctx context.Context, l *Lease, row store.Sandbox, c *recoveryCounter) {
	switch known, err := s.resolveLease(ctx, l, row); {
	case !known:
		s.log.Warn("engine did not report the state of a leased sandbox; will retry", "sandbox", l.ID, "error", err)
		c.add(func(r *Recovered) { r.Unknown++ })
	case err != nil:
		c.add(func(r *Recovered) { r.Lost++ })
	default:
		c.add(func(r *Recovered) { r.Leased++ })
	}
}

// resolveLease finds out whether a leased sandbox is alive. known is false if the engine cannot
// answer; the lease then stays unchanged. If known is true, an error means that the lease is
// ending.
func (s *Scheduler) resolveLease(ctx context.Context, l *Lease, row store.Sandbox) (known bool, err error) {
	m, err := s.adopt(ctx, row)
	if errdefs.IsNotFound(err) {
		l.setDetail(runtime.EndReasonIn(err))
		return true, errors.Join(err, s.End(ctx, l, Lost, false))
	}
	if err != nil {
		return false, err
	}
	ping, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	pong, err := m.guest.Ping(ping)
	if err != nil {
		return false, errors.Join(err, m.sandbox.Release())
	}
	s.endUnstartedShells(ctx, m)
	p := s.pool(row.Template)
	if row.Lease.Native {
		p = nil
	}
	if p != nil {
		p.AdoptTaken(m) // before the lease can end and report it gone
	}
	if !l.setInstance(m) {
		if p != nil {
			p.Gone(m)
		}
		return true, errors.Join(l.Cause(), m.sandbox.Release())
	}
	if !pong.Claimed || checkPong(pong) != nil {
		return true, errors.Join(errdefs.ErrAborted, s.End(ctx, l, Abandoned, false))
	}
	return true, nil
}

// endUnstartedShells stores an end for shells that the guest does not know. They were stored but
// never started, and would otherwise appear to run indefinitely. No shell can start in the sandbox
// during the call.
func (s *Scheduler) endUnstartedShells(ctx context.Context, m *instance) {
	rows, err := s.opts.Store.Shells(ctx, m.id)
	if err != nil || !slices.ContainsFunc(rows, hasNoResult) {
		return
	}
	ask, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	known, err := m.guest.Shells(ask)
	if err != nil {
		s.log.Warn("failed to compare shells with the guest", "sandbox", m.id, "error", err)
		return
	}
	lost := runtime.Result{
		Ending:   runtime.SandboxLost,
		ExitCode: -1,
		Detail:   "it had not started when the service stopped",
	}
	for _, row := range rows {
		if !hasNoResult(row) || slices.ContainsFunc(known, func(sh wire.Shell) bool { return sh.ID == row.ID }) {
			continue
		}
		if err := s.opts.Store.EndShell(ctx, row.ID, time.Now(), lost); err != nil {
			s.log.Warn("failed to record the end of a shell", "shell", row.ID, "error", err)
		}
	}
}

func hasNoResult(sh store.Shell) bool { return sh.Result == nil }

// resolveUnknown retries the leases that resolveLease could not resolve.
func (s *Scheduler) resolveUnknown(ctx context.Context) {
	for _, l := range s.liveLeases() {
		l.mu.Lock()
		unknown := l.instance == nil && l.reason == ""
		l.mu.Unlock()
		if !unknown {
			continue
		}
		row, err := s.opts.Store.Sandbox(ctx, l.ID)
		if err != nil {
			continue
		}
		if known, err := s.resolveLease(ctx, l, row); known {
			s.log.Info("resolved the state of a leased sandbox", "sandbox", l.ID, "error", err)
		}
	}
}

func (s *Scheduler) adopt(ctx context.Context, row store.Sandbox) (*instance, error) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	sb, err := s.opts.Driver.Adopt(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	return newInstance(row, sb), nil
}
