package approval

import (
	"slices"
	"sync"
	"time"
)

// Limits of the limiter's memory: pairs of caller and tool, and calls of one pair.
const (
	maxLimited = 20_000
	// MaxRateCalls is the maximum of Rate.MaxCalls.
	MaxRateCalls = 10_000
	sweepEvery   = time.Second
)

// Limiter limits how often a caller may call a tool: any window of Rate.WindowMS contains at most
// Rate.MaxCalls calls. It counts in memory, so windows are empty after a restart. The zero value is
// ready to use. It is safe for concurrent use.
type Limiter struct {
	mu    sync.Mutex
	begin time.Time
	swept time.Duration
	keys  map[limited]*callWindow
}

type limited struct{ caller, tool string }

// callWindow holds the times of the last allowed calls, oldest first, as monotonic time since the
// limiter started.
type callWindow struct {
	times  []time.Duration
	window time.Duration
}

// Allow counts a call if it is allowed now. Otherwise it counts nothing and returns when the next
// call will be allowed. A rate without MaxCalls or WindowMS allows every call.
func (l *Limiter) Allow(caller, tool string, r Rate) (retryAfter time.Duration, ok bool) {
	if r.MaxCalls <= 0 || r.WindowMS <= 0 {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys, l.begin = map[limited]*callWindow{}, time.Now()
	}
	now := time.Since(l.begin)
	key := limited{caller, tool}
	c := l.keys[key]
	if c == nil {
		if len(l.keys) >= maxLimited && !l.sweep(now) {
			return sweepEvery, false // the table is full: refuse new callers
		}
		c = &callWindow{}
		l.keys[key] = c
	}
	c.window = time.Duration(r.WindowMS) * time.Millisecond
	c.dropExpired(now)
	if n := len(c.times); n >= min(r.MaxCalls, MaxRateCalls) {
		return c.times[n-min(r.MaxCalls, MaxRateCalls)] + c.window - now, false
	}
	c.times = append(c.times, now)
	return 0, true
}

// dropExpired removes calls outside the window.
func (c *callWindow) dropExpired(now time.Duration) {
	n := 0
	for n < len(c.times) && now-c.times[n] >= c.window {
		n++
	}
	if n > 0 {
		c.times = slices.Delete(c.times, 0, n)
	}
}

// sweep removes callers without a call in their window. It scans at most once a second.
func (l *Limiter) sweep(now time.Duration) bool {
	if l.swept != 0 && now-l.swept < sweepEvery {
		return false
	}
	l.swept = now
	for k, c := range l.keys {
		if c.dropExpired(now); len(c.times) == 0 {
			delete(l.keys, k)
		}
	}
	return len(l.keys) < maxLimited
}
