package approval

import (
	"slices"
	"sync"
	"time"
)

// Bounds of the limiter's memory: callers and tools that are counted at once,
// and calls of one that are.
const (
	maxLimited = 20_000
	// MaxRateCalls is the most that Rate.MaxCalls may be.
	MaxRateCalls = 10_000
	sweepEvery   = time.Second
)

// Limiter bounds how often a caller may call a tool: no window of Rate.WindowMS
// holds more than Rate.MaxCalls calls, wherever it begins. It counts in memory:
// after a restart of the service, windows begin empty. The zero value is ready;
// it may be used concurrently.
type Limiter struct {
	mu    sync.Mutex
	begin time.Time
	swept time.Duration
	keys  map[limited]*calls
}

type limited struct{ caller, tool string }

// calls are the times of the last calls that were allowed, the oldest first, as
// the monotonic time since the limiter's begin.
type calls struct {
	times  []time.Duration
	window time.Duration
}

// Allow counts a call, if it is allowed now. If not, it says in how long the
// next one will be, and counts nothing. A rate without MaxCalls or WindowMS
// allows everything.
func (l *Limiter) Allow(caller, tool string, r Rate) (retryAfter time.Duration, ok bool) {
	if r.MaxCalls <= 0 || r.WindowMS <= 0 {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys, l.begin = map[limited]*calls{}, time.Now()
	}
	now := time.Since(l.begin)
	key := limited{caller, tool}
	c := l.keys[key]
	if c == nil {
		if len(l.keys) >= maxLimited && !l.sweep(now) {
			return sweepEvery, false // more callers than can be counted: none is let by
		}
		c = &calls{}
		l.keys[key] = c
	}
	c.window = time.Duration(r.WindowMS) * time.Millisecond
	c.drop(now)
	if n := len(c.times); n >= min(r.MaxCalls, MaxRateCalls) {
		return c.times[n-min(r.MaxCalls, MaxRateCalls)] + c.window - now, false
	}
	c.times = append(c.times, now)
	return 0, true
}

// drop forgets calls that are out of the window.
func (c *calls) drop(now time.Duration) {
	n := 0
	for n < len(c.times) && now-c.times[n] >= c.window {
		n++
	}
	if n > 0 {
		c.times = slices.Delete(c.times, 0, n)
	}
}

// sweep makes room by forgetting who made no call in their window. It looks at
// all at most once a second.
func (l *Limiter) sweep(now time.Duration) bool {
	if l.swept != 0 && now-l.swept < sweepEvery {
		return false
	}
	l.swept = now
	for k, c := range l.keys {
		if c.drop(now); len(c.times) == 0 {
			delete(l.keys, k)
		}
	}
	return len(l.keys) < maxLimited
}
