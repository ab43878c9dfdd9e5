package pool_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/pool"
)

func TestFillsToMinAndRefillsAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		if s := r.Stats(); s.Warm != 2 || s.Creating != 0 || s.Created != 2 {
			t.Fatalf("at first: %+v, want warm 2, creating 0, created 2", s)
		}
		for range 2 {
			if _, warm, err := r.take(t.Context(), "a", pool.Refuse); err != nil || !warm {
				t.Fatalf("Take: warm %v, %v; want true and no error", warm, err)
			}
		}
		settle(300 * time.Millisecond) // a token each was saved up, two at most
		if s := r.Stats(); s.Warm != 2 || s.Leased != 2 {
			t.Errorf("after two were taken: %+v, want warm 2, leased 2", s)
		}
		for range 2 {
			r.mustTake(t, pool.Refuse)
		}
		settle(5 * time.Second)
		if s := r.Stats(); s.Warm != 1 || s.Leased != 4 || s.Creating != 0 {
			t.Errorf("at Max: %+v, want warm 1, leased 4, creating 0", s)
		}
	})
}

// After a take, the pool waits before it refills, unless a caller waits.
func TestRefillWaitsAfterTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Min: 1, Max: 5, Rate: 100, Parallel: 1, MaxAge: time.Hour, RefillDelay: 3 * time.Second})
		settle(time.Second) // nothing is taken: it fills at once
		warm := func(want int, when string) {
			t.Helper()
			if s := r.Stats(); s.Warm != want || s.Creating != 0 {
				t.Errorf("%s: %+v, want warm %d, creating 0", when, s, want)
			}
		}
		warm(1, "at first")
		first := r.mustTake(t, pool.Refuse)
		settle(2 * time.Second)
		warm(0, "while one is used")
		r.done(first)
		settle(200 * time.Millisecond)
		warm(1, "after its use")
		r.mustTake(t, pool.Refuse)
		settle(time.Second)
		began := time.Now()
		if r.mustTake(t, pool.Wait); time.Since(began) > 200*time.Millisecond {
			t.Errorf("the waiting caller got one after %s, want at most 200 ms", time.Since(began))
		}
		settle(time.Second)
		warm(0, "two seconds after the first was taken")
		settle(1200 * time.Millisecond)
		warm(1, "though both are used still")
	})
}

func TestEmptyPoolAnswersByMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Min: 0, Max: 1, Rate: 2, Parallel: 1, MaxAge: time.Hour})
		_, _, err := r.take(t.Context(), "a", pool.Refuse)
		var empty *pool.EmptyError
		if !errors.As(err, &empty) || !errdefs.IsResourceExhausted(err) || empty.RetryAfter <= 0 ||
			empty.Template != "python" {
			t.Errorf("Take(Refuse) = %v, want an EmptyError of python with RetryAfter", err)
		}
		began := time.Now()
		id, warm, err := r.take(t.Context(), "a", pool.Cold)
		if err != nil || warm || time.Since(began) != 100*time.Millisecond {
			t.Errorf("Take(Cold): warm %v, %v after %v; want false and no error after 100 ms", warm, err, time.Since(began))
		}
		if _, _, err := r.take(t.Context(), "a", pool.Cold); !errors.As(err, &empty) {
			t.Errorf("Take(Cold) at Max = %v, want an EmptyError", err)
		}
		over := errors.New("time is over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, over)
		defer cancel()
		if _, _, err := r.take(ctx, "a", pool.Wait); !errors.Is(err, over) {
			t.Errorf("Take(Wait) at Max = %v, want %v", err, over)
		}
		time.AfterFunc(3*time.Second, func() { r.done(id) })
		began = time.Now()
		if _, _, err := r.take(t.Context(), "a", pool.Wait); err != nil || time.Since(began) != 3100*time.Millisecond {
			t.Errorf("Take(Wait) = %v after %v, want no error after 3.1 s", err, time.Since(began))
		}
	})
}

// Two concurrent callers of Take(Cold) do not both get the last place.
func TestColdCountsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Min: 0, Max: 2, Rate: 1, Parallel: 1, MaxAge: time.Hour})
		var mu sync.Mutex
		refused := 0
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, _, err := r.take(ctx, "a", pool.Cold)
				mu.Lock()
				defer mu.Unlock()
				if empty := (*pool.EmptyError)(nil); errors.As(err, &empty) {
					refused++
				} else if err != nil {
					t.Errorf("Take(Cold) = %v, want an EmptyError or none", err)
				}
			})
		}
		group.Wait()
		if refused != 2 {
			t.Errorf("%d were refused, want 2 of 4", refused)
		}
	})
}

func TestTakeSkipsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settings
		s.Min = 3
		r := start(t, s)
		settle(10 * time.Second)
		ids := r.host.ids()
		r.host.mu.Lock()
		r.host.dead[ids[0]], r.host.dead[ids[1]] = true, true
		r.host.mu.Unlock()
		if id := r.mustTake(t, pool.Refuse); id != ids[2] {
			t.Errorf("took %d, want %d", id, ids[2])
		}
		settle(10 * time.Second)
		if s := r.Stats(); s.Warm != 3 || s.Leased != 1 {
			t.Errorf("afterwards: %+v, want warm 3, leased 1", s)
		}
		r.host.mu.Lock()
		defer r.host.mu.Unlock()
		for _, id := range ids[:2] {
			if !strings.Contains(r.host.why[id], "it is dead") {
				t.Errorf("%d was destroyed because %q, want a reason with %q", id, r.host.why[id], "it is dead")
			}
		}
	})
}

// Take with a cancelled context does not destroy a warm sandbox.
func TestCancelledTakeKeepsWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 5 {
			if _, _, err := r.take(ctx, "a", pool.Wait); !errors.Is(err, context.Canceled) {
				t.Errorf("Take with a cancelled context = %v, want context.Canceled", err)
			}
		}
		if s := r.Stats(); s.Warm != 2 || s.Leased != 0 || s.Waiting != 0 || s.Created != 2 {
			t.Errorf("afterwards: %+v, want warm 2, leased 0, waiting 0, created 2", s)
		}
	})
}

func TestWaitersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Min: 0, Max: 1, Rate: 1, Parallel: 1, MaxAge: time.Hour})
		first := r.mustTake(t, pool.Wait)
		var mu sync.Mutex
		var order []string
		var group sync.WaitGroup
		for _, name := range []string{"greedy", "greedy", "greedy", "greedy", "b", "c", "b"} {
			group.Go(func() {
				id, _, err := r.take(t.Context(), name, pool.Wait)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				r.done(id)
			})
			synctest.Wait()
		}
		if s := r.Stats(); s.Waiting != 7 {
			t.Errorf("before: %+v, want waiting 7", s)
		}
		r.done(first)
		group.Wait()
		want := "greedy b c greedy b greedy greedy"
		if got := strings.Join(order, " "); got != want {
			t.Errorf("served %q, want %q", got, want)
		}
	})
}

func TestCreateFailuresBackOffAndReachWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		r.host.fail(-1)
		r.mustTake(t, pool.Refuse)
		r.mustTake(t, pool.Refuse)
		began := time.Now()
		if _, _, err := r.take(t.Context(), "a", pool.Wait); !errors.Is(err, errCreate) {
			t.Errorf("Take(Wait) = %v, want %v", err, errCreate)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Take(Wait) returned after %v, want at most 10 s", took)
		}
		settle(10 * time.Minute)
		before := r.Stats()
		if before.LastError != errCreate.Error() || before.Failed < 5 {
			t.Errorf("while creations fail: %+v, want the last error %v and at least 5 failures", before, errCreate)
		}
		settle(time.Minute)
		if tries := r.Stats().Failed - before.Failed; tries < 1 || tries > 3 {
			t.Errorf("%d tries in a minute, want about one in 30 seconds", tries)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := r.take(ctx, "a", pool.Wait); err == nil || !strings.Contains(err.Error(), errCreate.Error()) {
			t.Errorf("Take(Wait) until the deadline = %v, want an error with %q", err, errCreate)
		}
		r.host.fail(0)
		settle(time.Minute)
		if s := r.Stats(); s.Warm != 2 {
			t.Errorf("when creations succeed again: %+v, want warm 2", s)
		}
	})
}

// Expired sandboxes are replaced one by one, each after its replacement exists.
func TestExpiredAreReplacedOneByOne(t *testing.T) {
	for _, most := range []int{3, 5} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, pool.Settings{Min: 3, Max: most, Rate: 1, Parallel: 3, MaxAge: time.Hour})
			settle(59 * time.Minute)
			old := r.host.ids()
			fewest := 3
			for range 3000 { // five minutes
				settle(100 * time.Millisecond)
				fewest = min(fewest, r.Stats().Warm)
			}
			want := 3
			if most == 3 {
				want = 2 // no room for one more
			}
			if fewest != want {
				t.Errorf("Max %d: at least %d were warm, want %d", most, fewest, want)
			}
			for _, id := range r.host.ids() {
				if slices.Contains(old, id) {
					t.Errorf("Max %d: the expired %d exists, want it replaced", most, id)
				}
			}
			if s := r.Stats(); s.Warm != 3 || s.Created != 6 {
				t.Errorf("Max %d: %+v, want warm 3, created 6", most, s)
			}
		})
	}
}

func TestExpiredStayWhileCreateFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		r.host.fail(-1)
		settle(3 * time.Hour)
		if s := r.Stats(); s.Warm != 2 {
			t.Errorf("past their age: %+v, want warm 2", s)
		}
		r.mustTake(t, pool.Refuse)
	})
}

func TestRestartAdoptsWarmAndTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		taken := r.mustTake(t, pool.Refuse)
		settle(10 * time.Second)
		r.stop()
		if _, _, err := r.take(t.Context(), "a", pool.Wait); !errdefs.IsUnavailable(err) {
			t.Errorf("Take after the end = %v, want Unavailable", err)
		}
		warm := r.Rest()
		if len(warm) != 2 || len(r.Rest()) != 0 {
			t.Fatalf("Rest = %v, want 2 at first and none then", warm)
		}
		next := pool.New(pool.Options[int]{Name: "python", Settings: settings, Create: r.host.create("new"),
			Probe: r.host.probe, Destroy: r.host.destroy})
		next.AdoptTaken(taken)
		for _, id := range warm {
			if !next.Adopt(id, time.Now()) {
				t.Errorf("Adopt(%d) = false, want true", id)
			}
		}
		if s := next.Stats(); s.Warm != 2 || s.Leased != 1 {
			t.Errorf("after adoption: %+v, want warm 2, leased 1", s)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := next.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		settle(10 * time.Second)
		again := rig{Pool: next, host: r.host}
		if id := again.mustTake(t, pool.Refuse); id != warm[0] {
			t.Errorf("took %d, want %d", id, warm[0])
		}
		for _, id := range []int{taken, warm[0]} {
			again.done(id)
		}
		settle(10 * time.Second)
		cancel()
		running.Wait()
		for _, id := range next.Rest() {
			r.host.destroy(t.Context(), id, "rest")
		}
	})
}

func TestAdoptionStopsAtMax(t *testing.T) {
	h := newHost(0)
	p := pool.New(pool.Options[int]{Name: "a", Settings: settings, Create: h.create(""), Probe: h.probe,
		Destroy: h.destroy})
	for i := range 8 {
		p.AdoptTaken(i)
	}
	if p.Adopt(100, time.Now()) {
		t.Error("Adopt beyond Max = true, want false")
	}
	if s := p.Stats(); s.Leased != 8 || s.Warm != 0 {
		t.Errorf("after adoption: %+v, want leased 8, warm 0", s)
	}
}
