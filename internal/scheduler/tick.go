package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"
)

// How often things are looked at.
const (
	tickTime   = 250 * time.Millisecond // deadlines and dead sandboxes
	flushTime  = 5 * time.Second        // last uses go to the store
	sweepTime  = 5 * time.Second        // what could not be removed is tried again
	forgetTime = 10 * time.Minute       // ended rows are dropped
)

// tick ends leases that are due, records uses, tries failed removals again
// and forgets old rows.
func (s *Scheduler) tick(ctx context.Context) error {
	t := time.NewTicker(tickTime)
	defer t.Stop()
	var flushed, swept, forgot time.Time
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
		if now.Sub(swept) >= sweepTime {
			swept = now
			s.sweep(ctx)
			s.resolveUnknown(ctx)
		}
		if now.Sub(forgot) >= forgetTime {
			forgot = now
			if _, err := s.opts.Store.Forget(ctx, now.Add(-s.opts.Keep)); err != nil {
				s.log.Warn("old rows not forgotten", "error", err)
			}
		}
	}
}

func (s *Scheduler) endDue(ctx context.Context, now time.Time) {
	for _, l := range s.all() {
		reason := l.due(now)
		if reason == Idle && s.busy(ctx, l) {
			l.touch()
			continue
		}
		if reason == "" {
			continue
		}
		if err := s.End(ctx, l, reason, false); err != nil {
			s.log.Error("lease not ended", "sandbox", l.ID, "reason", reason, "error", err)
		}
	}
}

// busy says whether a background shell keeps a lease from being idle.
func (s *Scheduler) busy(ctx context.Context, l *Lease) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	p, err := l.member.guest.Ping(ctx)
	return err == nil && p.Commands > 0
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
