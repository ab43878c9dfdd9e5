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
	Warm, Leased, Lost, Removed, Unknown int
}

// left is why a sandbox ends that nobody waits for any more.
const left = "its process ended"

// recoverParallel bounds adoptions and removals at once.
const recoverParallel = 8

// Recover compares what was promised with what the engine has, once, before
// Run: sandboxes are adopted, finished or removed. A dead engine is an error;
// an engine that cannot tell of one sandbox leaves that lease unknown, and Run
// asks again.
func (s *Scheduler) Recover(ctx context.Context) (Recovered, error) {
	rows, err := s.opts.Store.Live(ctx)
	if err != nil {
		return Recovered{}, err
	}
	found, err := s.opts.Driver.List(ctx, s.opts.Store.Owner())
	if err != nil {
		return Recovered{}, fmt.Errorf("look for sandboxes of an earlier process: %w", err)
	}
	known := make(map[string]bool, len(rows))
	for _, row := range rows {
		if row.Runtime != s.opts.Driver.Name() {
			return Recovered{}, fmt.Errorf("state directory has sandboxes of runtime %s: start with that, or take them down first: %w", row.Runtime, errdefs.ErrFailedPrecondition)
		}
		known[row.ID] = true
		s.budget.force(row.Memory)
	}
	// Leases hold their workspaces before anything that takes time: those that
	// live before those whose end was under way.
	for _, state := range []store.State{store.Leased, store.Stopping} {
		for _, row := range rows {
			if row.State == state && row.Caller != "" {
				s.takeUp(ctx, row)
			}
		}
	}
	c := &counter{}
	var g errgroup.Group // none of them stops the others
	g.SetLimit(recoverParallel)
	for _, f := range found {
		if !known[f.ID] {
			g.Go(func() error { s.removeOrphan(ctx, f, c); return nil })
		}
	}
	for _, row := range rows {
		g.Go(func() error { s.recoverRow(ctx, row, c); return nil })
	}
	_ = g.Wait()
	return c.sum(), context.Cause(ctx)
}

// removeOrphan removes what the engine has and nobody was promised.
func (s *Scheduler) removeOrphan(ctx context.Context, f runtime.Found, c *counter) {
	s.log.Warn("removing a sandbox that is not recorded", "sandbox", f.ID, "template", f.Template)
	c.add(func(r *Recovered) { r.Removed++ })
	s.budget.force(0)
	s.discarded(ctx, store.Sandbox{ID: f.ID, Template: f.Template}, store.Gone, s.removeByID(f.ID))
}

// discarded discards what an earlier process left. What cannot be removed is
// for the sweep, and keeps nobody from starting.
func (s *Scheduler) discarded(ctx context.Context, row store.Sandbox, to store.State, remove func(context.Context) error) {
	if err := s.discard(ctx, row, to, left, remove); err != nil {
		s.log.Error("sandbox not removed; trying again", "sandbox", row.ID, "error", err)
	}
}

func (s *Scheduler) recoverRow(ctx context.Context, row store.Sandbox, c *counter) {
	remove := s.removeByID(row.ID)
	l := s.Live(row.ID)
	switch {
	case l != nil && row.State == store.Leased && !row.Lease.OneShot:
		s.recoverLease(ctx, l, row, c)
		return
	case l != nil:
		c.add(func(r *Recovered) { r.Removed++ })
		s.findCarried(ctx, l, row)
		if err := s.End(ctx, l, cmp.Or(row.Reason, left), false); err != nil {
			s.log.Error("lease not ended", "sandbox", l.ID, "error", err)
		}
		return
	case row.State == store.Warm:
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
	s.discarded(ctx, row, to, remove)
}

// keepWarm puts a warm sandbox back into its pool if it is still what the
// template says and this program made it.
func (s *Scheduler) keepWarm(ctx context.Context, m *member, row store.Sandbox) bool {
	t, ok := s.template(row.Template)
	if !ok || row.Build != s.build(t) {
		return false
	}
	m.hooks = t.stays()
	if err := m.probe(ctx); err != nil {
		return false
	}
	p := s.pool(row.Template)
	return p != nil && p.Adopt(m, row.Created)
}

// takeUp makes a lease of an earlier process known, with its workspace: while
// a sandbox may live, nobody else gets what it can write to.
func (s *Scheduler) takeUp(ctx context.Context, row store.Sandbox) {
	hold, err := s.hold(ctx, row.ID, row.Lease)
	if err != nil {
		s.log.Error("workspace of a lease is not held", "sandbox", row.ID, "workspace", row.Lease.Workspace, "error", err)
	}
	l := newLease(row, nil, hold)
	s.count(row.Caller, row.Memory)
	close(l.bound) // what the earlier process had bound stays so
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[l.ID] = l
}

func (s *Scheduler) recoverLease(ctx context.Context, l *Lease, row store.Sandbox, c *counter) {
	switch known, err := s.resolve(ctx, l, row); {
	case !known:
		s.log.Warn("the engine cannot tell whether a leased sandbox lives; asking again", "sandbox", l.ID, "error", err)
		c.add(func(r *Recovered) { r.Unknown++ })
	case err != nil:
		c.add(func(r *Recovered) { r.Lost++ })
	default:
		c.add(func(r *Recovered) { r.Leased++ })
	}
}

// resolve finds out what became of a leased sandbox. known false: the engine
// could not tell; the lease stays as promised. An error with known true: the
// lease is over, and its end is under way.
func (s *Scheduler) resolve(ctx context.Context, l *Lease, row store.Sandbox) (known bool, err error) {
	m, err := s.adopt(ctx, row)
	if errdefs.IsNotFound(err) {
		return true, errors.Join(err, s.End(ctx, l, Lost, false))
	}
	if err != nil {
		return false, err
	}
	ping, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	pong, err := m.guest.Ping(ping)
	if err != nil {
		return false, errors.Join(err, m.sandbox.Release())
	}
	s.settleUnstarted(ctx, m)
	p := s.pool(row.Template)
	if p != nil {
		p.AdoptTaken(m) // before its end can say that it is gone
	}
	if !l.found(m) {
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

// settleUnstarted records of shells that were promised, and that the guest does
// not know, that nobody saw their end: else they would run for ever. Nothing
// is started in the sandbox meanwhile.
func (s *Scheduler) settleUnstarted(ctx context.Context, m *member) {
	rows, err := s.opts.Store.Shells(ctx, m.id)
	if err != nil || !slices.ContainsFunc(rows, unended) {
		return
	}
	ask, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	known, err := m.guest.Shells(ask)
	if err != nil {
		s.log.Warn("shells of a sandbox not compared", "sandbox", m.id, "error", err)
		return
	}
	lost := runtime.Result{Ending: runtime.SandboxLost, ExitCode: -1, Detail: "it had not started when the service ended"}
	for _, row := range rows {
		if !unended(row) || slices.ContainsFunc(known, func(sh wire.Shell) bool { return sh.ID == row.ID }) {
			continue
		}
		if err := s.opts.Store.EndShell(ctx, row.ID, time.Now(), lost); err != nil {
			s.log.Warn("end of a shell not recorded", "shell", row.ID, "error", err)
		}
	}
}

func unended(sh store.Shell) bool { return sh.Result == nil }

// resolveUnknown asks again about leases nobody could tell of.
func (s *Scheduler) resolveUnknown(ctx context.Context) {
	for _, l := range s.all() {
		l.mu.Lock()
		unknown := l.member == nil && l.reason == ""
		l.mu.Unlock()
		if !unknown {
			continue
		}
		row, err := s.opts.Store.Sandbox(ctx, l.ID)
		if err != nil {
			continue
		}
		if known, err := s.resolve(ctx, l, row); known {
			s.log.Info("found out what became of a leased sandbox", "sandbox", l.ID, "error", err)
		}
	}
}

func (s *Scheduler) adopt(ctx context.Context, row store.Sandbox) (*member, error) {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	sb, err := s.opts.Driver.Adopt(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	return newMember(row, sb), nil
}
