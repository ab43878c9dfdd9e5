package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// How often things are looked at.
const (
	tickTime   = 250 * time.Millisecond // deadlines and dead sandboxes
	flushTime  = 5 * time.Second        // last uses go to the store
	sweepTime  = 5 * time.Second        // what could not be removed is tried again
	forgetTime = 10 * time.Minute       // ended rows are dropped
)

// keepRows is how many leases that ended can be looked at, however new they are.
const keepRows = 10_000

// askParallel bounds how many guests are asked at once whether they are idle.
const askParallel = 16

// tick ends leases that are due and records uses. It waits for no engine.
func (s *Scheduler) tick(ctx context.Context) error {
	t := time.NewTicker(tickTime)
	defer t.Stop()
	var flushed time.Time
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			s.flush(context.WithoutCancel(ctx))
			return nil
		case now = <-t.C:
		}
		s.endDue(ctx, now)
		if now.Sub(flushed) >= flushTime {
			flushed = now
			s.flush(ctx)
		}
	}
}

// repair tries failed removals again, asks again about leases nobody could
// tell of, and forgets old rows.
func (s *Scheduler) repair(ctx context.Context) error {
	t := time.NewTimer(tickTime) // soon after a restart
	defer t.Stop()
	var forgot time.Time
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return nil
		case now = <-t.C:
		}
		t.Reset(sweepTime)
		s.sweep(ctx)
		s.resolveUnknown(ctx)
		s.clear()
		if now.Sub(forgot) >= forgetTime {
			forgot = now
			s.forget(ctx, now)
		}
	}
}

// forget drops the rows of what ended, and keeps the database as small as what
// is left of it.
func (s *Scheduler) forget(ctx context.Context, now time.Time) {
	_, err := s.opts.Store.Forget(ctx, now.Add(-s.opts.Keep))
	if err == nil {
		_, err = s.opts.Store.Trim(ctx, keepRows)
	}
	if err != nil {
		s.log.Warn("old rows not forgotten", "error", err)
		return
	}
	freed, err := s.opts.Store.Compact(ctx)
	switch {
	case err != nil:
		s.log.Warn("database not made smaller", "error", err)
	case freed > 0:
		s.log.Info("database made smaller", "bytes", freed)
	}
}

func (s *Scheduler) endDue(ctx context.Context, now time.Time) {
	var asking errgroup.Group
	asking.SetLimit(askParallel)
	for _, l := range s.all() {
		switch reason := l.due(now); reason {
		case "":
		case Idle:
			asking.Go(func() error { s.endIdle(ctx, l); return nil })
		default:
			s.endNow(ctx, l, reason)
		}
	}
	_ = asking.Wait()
}

// endIdle ends a lease unless a background shell is busy in it. Where nobody
// can tell, it is asked again: a slow guest is not an idle one.
func (s *Scheduler) endIdle(ctx context.Context, l *Lease) {
	ping, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	switch p, err := l.member.guest.Ping(ping); {
	case err != nil:
		s.log.Debug("cannot tell whether an idle sandbox is busy", "sandbox", l.ID, "error", err)
	case p.Commands > p.Warm:
		l.touch()
	default:
		s.endNow(ctx, l, Idle)
	}
}

func (s *Scheduler) endNow(ctx context.Context, l *Lease, reason string) {
	if err := s.End(ctx, l, reason, false); err != nil {
		s.log.Error("lease not ended", "sandbox", l.ID, "reason", reason, "error", err)
	}
}

func (s *Scheduler) flush(ctx context.Context) {
	used := map[string]time.Time{}
	for _, l := range s.all() {
		if at, dirty := l.flush(); dirty {
			used[l.ID] = at
		}
	}
	if len(used) == 0 {
		return
	}
	if err := s.opts.Store.Touch(ctx, used); err != nil {
		s.log.Warn("last uses not recorded", "error", err)
	}
}

// sweep tries again to remove what could not be removed.
func (s *Scheduler) sweep(ctx context.Context) {
	s.mu.Lock()
	todo := slices.Collect(maps.Values(s.broken))
	s.mu.Unlock()
	for _, b := range todo {
		if ctx.Err() != nil {
			return
		}
		if b.lease != nil {
			s.destroy(ctx, b.lease, b.reason)
			continue
		}
		s.mu.Lock()
		delete(s.broken, b.row.ID)
		s.mu.Unlock()
		if err := s.discard(ctx, b.row, b.to, b.reason, b.remove); err != nil { // it puts itself back
			s.log.Error("sandbox not removed; trying again", "sandbox", b.row.ID, "error", err)
		}
	}
}

// Broken is how many sandboxes wait for another attempt to remove them.
func (s *Scheduler) Broken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.broken)
}
