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
			t.Fatalf("at first: %+v", s)
		}
		for range 2 {
			if _, warm, err := r.take(t.Context(), "a", pool.Refuse); err != nil || !warm {
				t.Fatalf("warm %v, %v", warm, err)
			}
		}
		settle(300 * time.Millisecond) // a token each was saved up, two at most
		if s := r.Stats(); s.Warm != 2 || s.Leased != 2 {
			t.Errorf("after two were taken: %+v", s)
		}
		for range 2 {
			r.mustTake(t, pool.Refuse)
		}
		settle(5 * time.Second)
		if s := r.Stats(); s.Warm != 1 || s.Leased != 4 || s.Creating != 0 {
			t.Errorf("at Max: %+v", s)
		}
	})
}

// After a take, the pool waits before it refills, unless a caller waits.
func TestAPoolSettlesBeforeItFillsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Min: 1, Max: 5, Rate: 100, Parallel: 1, MaxAge: time.Hour, RefillDelay: 3 * time.Second})
		settle(time.Second) // nothing is taken: it fills up at once
		warm := func(want int, when string) {
			t.Helper()
			if s := r.Stats(); s.Warm != want || s.Creating != 0 {
				t.Errorf("%s: %+v", when, s)
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
			t.Errorf("who waits got one after %s", time.Since(began))
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
			t.Errorf("refuse: %v", err)
		}
		began := time.Now()
		id, warm, err := r.take(t.Context(), "a", pool.Cold)
		if err != nil || warm || time.Since(began) != 100*time.Millisecond {
			t.Errorf("cold: warm %v, %v, %v", warm, err, time.Since(began))
		}
		if _, _, err := r.take(t.Context(), "a", pool.Cold); !errors.As(err, &empty) {
			t.Errorf("cold at Max: %v", err)
		}
		over := errors.New("time is over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, over)
		defer cancel()
		if _, _, err := r.take(ctx, "a", pool.Wait); !errors.Is(err, over) {
			t.Errorf("wait at Max: %v", err)
		}
		time.AfterFunc(3*time.Second, func() { r.done(id) })
		began = time.Now()
		if _, _, err := r.take(t.Context(), "a", pool.Wait); err != nil || time.Since(began) != 3100*time.Millisecond {
			t.Errorf("wait: %v, %v", err, time.Since(began))
		}
	})
}

// Two who go cold at once do not both count the last place as theirs.
func TestColdCountsThoseWhoWait(t *testing.T) {
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
					t.Error(err)
				}
			})
		}
		group.Wait()
		if refused != 2 {
			t.Errorf("%d were refused, want 2 of 4", refused)
		}
	})
}

func TestDeadOnesAreSkipped(t *testing.T) {
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
			t.Errorf("afterwards: %+v", s)
		}
		r.host.mu.Lock()
		defer r.host.mu.Unlock()
		for _, id := range ids[:2] {
			if !strings.Contains(r.host.why[id], "it is dead") {
				t.Errorf("%d: %q", id, r.host.why[id])
			}
		}
	})
}

// A caller that goes away does not cost the pool a good one.
func TestACallerThatIsGoneTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 5 {
			if _, _, err := r.take(ctx, "a", pool.Wait); !errors.Is(err, context.Canceled) {
				t.Errorf("take: %v", err)
			}
		}
		if s := r.Stats(); s.Warm != 2 || s.Leased != 0 || s.Waiting != 0 || s.Created != 2 {
			t.Errorf("afterwards: %+v", s)
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
			t.Errorf("waiting: %+v", s)
		}
		r.done(first)
		group.Wait()
		if got := strings.Join(order, " "); got != "greedy b c greedy b greedy greedy" {
			t.Errorf("served: %s", got)
		}
	})
}

func TestFailuresBackOffAndAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		r.host.fail(-1)
		r.mustTake(t, pool.Refuse)
		r.mustTake(t, pool.Refuse)
		began := time.Now()
		if _, _, err := r.take(t.Context(), "a", pool.Wait); !errors.Is(err, errCreate) {
			t.Errorf("a waiter is told %v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it was told after %v", took)
		}
		settle(10 * time.Minute)
		before := r.Stats()
		if before.LastError != errCreate.Error() || before.Failed < 5 {
			t.Errorf("while it fails: %+v", before)
		}
		settle(time.Minute)
		if tries := r.Stats().Failed - before.Failed; tries < 1 || tries > 3 {
			t.Errorf("%d tries in a minute, want about one in 30 seconds", tries)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := r.take(ctx, "a", pool.Wait); err == nil || !strings.Contains(err.Error(), errCreate.Error()) {
			t.Errorf("a waiter whose time is over is told %v", err)
		}
		r.host.fail(0)
		settle(time.Minute)
		if s := r.Stats(); s.Warm != 2 {
			t.Errorf("when it works again: %+v", s)
		}
	})
}

// Old ones are replaced one by one, each after another one is there.
func TestOldOnesAreReplacedOneByOne(t *testing.T) {
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
				t.Errorf("Max %d: only %d were warm, want %d", most, fewest, want)
			}
			for _, id := range r.host.ids() {
				if slices.Contains(old, id) {
					t.Errorf("Max %d: %d is still there", most, id)
				}
			}
			if s := r.Stats(); s.Warm != 3 || s.Created != 6 {
				t.Errorf("Max %d: %+v", most, s)
			}
		})
	}
}

func TestOldOnesStayWhileNothingNewCanBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		r.host.fail(-1)
		settle(3 * time.Hour)
		if s := r.Stats(); s.Warm != 2 {
			t.Errorf("past their age: %+v", s)
		}
		r.mustTake(t, pool.Refuse)
	})
}

func TestARestartGoesOnWithWhatThereWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		taken := r.mustTake(t, pool.Refuse)
		settle(10 * time.Second)
		r.stop()
		if _, _, err := r.take(t.Context(), "a", pool.Wait); !errdefs.IsUnavailable(err) {
			t.Errorf("after the end: %v", err)
		}
		warm := r.Rest()
		if len(warm) != 2 || len(r.Rest()) != 0 {
			t.Fatalf("rest: %v", warm)
		}
		next := pool.New(pool.Options[int]{Name: "python", Settings: settings, Create: r.host.create("new"),
			Probe: r.host.probe, Destroy: r.host.destroy})
		next.AdoptTaken(taken)
		for _, id := range warm {
			if !next.Adopt(id, time.Now()) {
				t.Errorf("%d is not adopted", id)
			}
		}
		if s := next.Stats(); s.Warm != 2 || s.Leased != 1 {
			t.Errorf("adopted: %+v", s)
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
		t.Error("adopted over Max")
	}
	if s := p.Stats(); s.Leased != 8 || s.Warm != 0 {
		t.Errorf("%+v", s)
	}
}
