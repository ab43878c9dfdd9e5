package approval

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// wantRefused fails unless the limiter refuses a call of bash by caller a with this retry delay.
func wantRefused(t *testing.T, l *Limiter, r Rate, delay time.Duration) {
	t.Helper()
	if wait, ok := l.Allow("a", "bash", r); ok || wait != delay {
		t.Fatalf("Allow = %v, %t; want %v, false", wait, ok, delay)
	}
}

func TestLimiterReturnsExactRetryDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		r := Rate{MaxCalls: 3, WindowMS: 1000}
		for range 3 {
			if wait, ok := l.Allow("a", "bash", r); !ok {
				t.Fatalf("Allow within the rate = %v, false; want true", wait)
			}
			time.Sleep(100 * time.Millisecond)
		}
		wantRefused(t, &l, r, 700*time.Millisecond)
		if wait, ok := l.Allow("b", "bash", r); !ok {
			t.Fatalf("Allow for another caller = %v, false; want true", wait)
		}
		if wait, ok := l.Allow("a", "fs.read", r); !ok {
			t.Fatalf("Allow for another tool = %v, false; want true", wait)
		}
		time.Sleep(700*time.Millisecond - time.Nanosecond)
		wantRefused(t, &l, r, 1)
		time.Sleep(time.Nanosecond)
		if wait, ok := l.Allow("a", "bash", r); !ok {
			t.Fatalf("Allow after the retry delay = %v, false; want true", wait)
		}
		wantRefused(t, &l, r, 100*time.Millisecond)
		if wait, ok := l.Allow("a", "bash", Rate{}); !ok {
			t.Fatalf("Allow without a rate = %v, false; want true", wait)
		}
		// A lower rate applies at once.
		wantRefused(t, &l, Rate{MaxCalls: 1, WindowMS: 1000}, time.Second)
	})
}

func TestLimiterBoundsEveryWindow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := Rate{MaxCalls: rapid.IntRange(1, 6).Draw(rt, "max"), WindowMS: rapid.Int64Range(1, 500).Draw(rt, "window")}
		gaps := rapid.SliceOfN(rapid.IntRange(0, 300), 1, 60).Draw(rt, "gaps")
		window := time.Duration(r.WindowMS) * time.Millisecond
		synctest.Test(t, func(t *testing.T) {
			var l Limiter
			var allowed []time.Time
			for _, gap := range gaps {
				time.Sleep(time.Duration(gap) * time.Millisecond)
				wait, ok := l.Allow("a", "t", r)
				recent := 0
				for _, at := range allowed {
					if time.Since(at) < window {
						recent++
					}
				}
				if ok != (recent < r.MaxCalls) {
					t.Fatalf("%d calls in the window of %s, at most %d: Allow = %t, want %t",
						recent, window, r.MaxCalls, ok, recent < r.MaxCalls)
				}
				if !ok && (wait <= 0 || wait > window) {
					t.Fatalf("retry delay = %s, want more than 0 and at most %s", wait, window)
				}
				if ok {
					allowed = append(allowed, time.Now())
				}
			}
		})
	})
}

func TestLimiterForgetsIdleCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		r := Rate{MaxCalls: 1, WindowMS: 10_000}
		for i := range maxLimited {
			if _, ok := l.Allow(fmt.Sprint(i), "t", r); !ok {
				t.Fatalf("Allow for caller %d = false, want true", i)
			}
		}
		if wait, ok := l.Allow("one more", "t", r); ok || wait <= 0 {
			t.Fatalf("Allow for one more caller = %v, %t; want false with a delay", wait, ok)
		}
		time.Sleep(10 * time.Second)
		if _, ok := l.Allow("one more", "t", r); !ok || len(l.keys) != 1 {
			t.Fatalf("Allow after the window = %t with %d callers kept; want true with 1", ok, len(l.keys))
		}
	})
}

func BenchmarkLimiter(b *testing.B) {
	var l Limiter
	r := Rate{MaxCalls: 1000, WindowMS: 1}
	b.ReportAllocs()
	for b.Loop() {
		l.Allow("a", "t", r)
	}
}
