package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Intervals of periodic work.
const (
	tickInterval   = 250 * time.Millisecond // deadlines and dead sandboxes
	flushInterval  = 5 * time.Second        // storing last uses
	sweepInterval  = 5 * time.Second        // retrying failed removals
	forgetInterval = 10 * time.Minute       // deleting rows of ended leases
)

// keepRows bounds the rows of ended leases, whatever their age.
const keepRows = 10_000

// idleProbeParallel bounds concurrent probes of idle guests.
const idleProbeParallel = 16

// runDeadlines ends due leases and stores last uses until ctx ends. It never waits for the engine.
func (s *Scheduler) runDeadlines(ctx context.Context) error {
	t := time.NewTicker(tickInterval)
	defer t.Stop()
	var flushed time.Time
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			s.storeLastUses(context.WithoutCancel(ctx))
			return nil
		case now = <-t.C:
		}
		s.endDue(ctx, now)
		if now.Sub(flushed) >= flushInterval {
			flushed = now
			s.storeLastUses(ctx)
		}
	}
}

// runRepairs retries failed removals and unknown leases and deletes old rows, until ctx ends.
func (s *Scheduler) runRepairs(ctx context.Context) error {
	t := time.NewTimer(tickInterval) // first run soon after a restart
	defer t.Stop()
	var forgot time.Time
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return nil
		case now = <-t.C:
		}
		t.Reset(sweepInterval)
		s.retryRemovals(ctx)
		s.resolveUnknown(ctx)
		s.forgetRemovedTemplates()
		if now.Sub(forgot) >= forgetInterval {
			forgot = now
			s.deleteOldRows(ctx, now)
		}
	}
}

// deleteOldRows deletes the rows of ended leases and compacts the database.
func (s *Scheduler) deleteOldRows(ctx context.Context, now time.Time) {
	_, err := s.opts.Store.Forget(ctx, now.Add(-s.opts.Keep))
	if err == nil {
		_, err = s.opts.Store.Trim(ctx, keepRows)
	}
	if err != nil {
		s.log.Warn("failed to delete old rows", "error", err)
		return
	}
	freed, err := s.opts.Store.Compact(ctx)
	switch {
	case err != nil:
		s.log.Warn("failed to compact the database", "error", err)
	case freed > 0:
		s.log.Info("compacted the database", "bytes", freed)
	}
}

func (s *Scheduler) endDue(ctx context.Context, now time.Time) {
	var asking errgroup.Group
	asking.SetLimit(idleProbeParallel)
	for _, l := range s.liveLeases() {
		switch reason := l.endReason(now); reason {
		case "":
		case Idle:
			asking.Go(func() error { s.endIdle(ctx, l); return nil })
		default:
			s.endNow(ctx, l, reason)
		}
	}
	_ = asking.Wait()
}

// endIdle ends a lease unless a background shell runs in it. If the guest does not answer, it tries
// again later: a slow guest is not idle.
func (s *Scheduler) endIdle(ctx context.Context, l *Lease) {
	ping, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	switch p, err := l.instance.guest.Ping(ping); {
	case err != nil:
		s.log.Debug("failed to ping an idle sandbox", "sandbox", l.ID, "error", err)
	case p.Commands > p.Warm:
		l.touch()
	default:
		s.endNow(ctx, l, Idle)
	}
}

func (s *Scheduler) endNow(ctx context.Context, l *Lease, reason string) {
	if err := s.End(ctx, l, reason, false); err != nil {
		s.log.Error("failed to end a lease", "sandbox", l.ID, "reason", reason, "error", err)
	}
}

func (s *Scheduler) storeLastUses(ctx context.Context) {
	used := map[string]time.Time{}
	for _, l := range s.liveLeases() {
		if at, dirty := l.takeUnsavedUse(); dirty {
			used[l.ID] = at
		}
	}
	if len(used) == 0 {
		return
	}
	if err := s.opts.Store.Touch(ctx, used); err != nil {
		s.log.Warn("failed to store last uses", "error", err)
	}
}

// retryRemovals retries all failed removals once.
func (s *Scheduler) retryRemovals(ctx context.Context) {
	s.mu.Lock()
	todo := slices.Collect(maps.Values(s.failedRemovals))
	s.mu.Unlock()
	for _, b := range todo {
		if ctx.Err() != nil {
			return
		}
		if b.lease != nil {
			s.destroy(ctx, b.lease, b.reason)
			continue
		}
		// It stays queued until it is removed, because a hold may wait for that.
		if err := s.discard(ctx, b.row, b.to, b.reason, b.remove); err != nil {
			s.log.Error("failed to remove sandbox; will retry", "sandbox", b.row.ID, "error", err)
		}
	}
}

// Broken returns the number of sandboxes whose removal will be retried.
func (s *Scheduler) Broken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failedRemovals)
}
