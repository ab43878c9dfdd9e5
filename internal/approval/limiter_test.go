package approval

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestLimiterReturnsExactRetryDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Limiter
		r := Rate{MaxCalls: 3, WindowMS: 1000}
		for range 3 {
			if _, ok := l.Allow("a", "bash", r); !ok {
				t.Fatal("refused")
			}
			time.Sleep(100 * time.Millisecond)
		}
		wait, ok := l.Allow("a", "bash", r)
		if ok || wait != 700*time.Millisecond {
			t.Fatal(wait, ok)
		}
		if _, ok := l.Allow("b", "bash", r); !ok {
			t.Fatal("another caller was refused")
		}
		if _, ok := l.Allow("a", "fs.read", r); !ok {
			t.Fatal("another tool was refused")
		}
		time.Sleep(wait - time.Nanosecond)
		if again, ok := l.Allow("a", "bash", r); ok || again != 1 {
			t.Fatal(again, ok)
		}
		time.Sleep(time.Nanosecond)
		if _, ok := l.Allow("a", "bash", r); !ok {
			t.Fatal("refused at the time it had said")
		}
		if wait, ok := l.Allow("a", "bash", r); ok || wait != 100*time.Millisecond {
			t.Fatal(wait, ok)
		}
		if _, ok := l.Allow("a", "bash", Rate{}); !ok {
			t.Fatal("no rate refuses nothing")
		}
		// A lower rate applies at once.
		if wait, ok := l.Allow("a", "bash", Rate{MaxCalls: 1, WindowMS: 1000}); ok || wait != time.Second {
			t.Fatal(wait, ok)
		}
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
					t.Fatalf("%d calls in the window of %s, at most %d: allowed %v", recent, window, r.MaxCalls, ok)
				}
				if !ok && (wait <= 0 || wait > window) {
					t.Fatalf("wait %s", wait)
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
				t.Fatal(i)
			}
		}
		if wait, ok := l.Allow("one more", "t", r); ok || wait <= 0 {
			t.Fatal(wait, ok)
		}
		time.Sleep(10 * time.Second)
		if _, ok := l.Allow("one more", "t", r); !ok || len(l.keys) != 1 {
			t.Fatal(ok, len(l.keys))
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
