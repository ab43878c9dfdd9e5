package pool_test

import (
	"math"
	"math/rand"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/pool"
)

// trace is a rate of arrivals a second at each moment.
type trace func(at time.Duration) float64

func steady(rate float64) trace { return func(time.Duration) float64 { return rate } }

// served counts the arrivals of a trace that got a warm sandbox and those that did not.
type served struct{ warm, cold int }

func (s served) share() float64 { return float64(s.warm) / float64(max(1, s.warm+s.cold)) }

// play lets callers arrive at random, at the rate of the trace, each with one sandbox for hold. It
// calls look every second. It counts the callers that arrive after the first minute.
func play(t *testing.T, r rig, seed int64, tr trace, long, hold time.Duration,
	look func(at time.Duration, s pool.Stats)) (got served) {
	t.Helper()
	rnd := rand.New(rand.NewSource(seed))
	var mu sync.Mutex
	var group sync.WaitGroup
	const step = 5 * time.Millisecond
	for at := time.Duration(0); at < long; at += step {
		if rnd.Float64() < tr(at)*step.Seconds() {
			group.Go(func() {
				id, warm, err := r.take(t.Context(), "a", pool.Wait)
				if err != nil {
					t.Error(err)
					return
				}
				if at >= time.Minute {
					mu.Lock()
					if warm {
						got.warm++
					} else {
						got.cold++
					}
					mu.Unlock()
				}
				time.Sleep(hold)
				r.done(id)
			})
		}
		time.Sleep(step)
		if look != nil && at%time.Second == 0 {
			look(at, r.Stats())
		}
	}
	group.Wait()
	return got
}

func adaptive(low, high int) pool.Settings {
	return pool.Settings{Min: low, Max: high, Rate: 20, Parallel: 4, MaxAge: time.Hour, Adaptive: true}
}

// A creation takes 100 ms. A fixed pool of one is too small for these rates.
func TestAdaptiveServesSteadyLoadWarm(t *testing.T) {
	for _, rate := range []float64{1, 5, 15} {
		var got, fixed served
		synctest.Test(t, func(t *testing.T) {
			got = play(t, start(t, adaptive(1, 40)), 1, steady(rate), 10*time.Minute, 200*time.Millisecond, nil)
		})
		synctest.Test(t, func(t *testing.T) {
			s := adaptive(1, 40)
			s.Adaptive = false
			fixed = play(t, start(t, s), 1, steady(rate), 10*time.Minute, 200*time.Millisecond, nil)
		})
		t.Logf("%v a second: %.2f %% warm, of a fixed pool of one %.2f %%", rate, 100*got.share(), 100*fixed.share())
		if got.share() < 0.99 || fixed.share() > got.share() {
			t.Errorf("%v a second: %+v, fixed pool: %+v; want at least 99 %% warm and no fewer than the fixed pool", rate,
				got, fixed)
		}
	}
}

// A burst raises the target at once. Without load it falls slowly to Min.
func TestAdaptiveRemembersBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, adaptive(1, 30))
		settle(10 * time.Second)
		burst := func() (warm int) {
			var mu sync.Mutex
			var group sync.WaitGroup
			for range 12 {
				group.Go(func() {
					id, was, err := r.take(t.Context(), "a", pool.Wait)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if was {
						warm++
					}
					mu.Unlock()
					r.done(id)
				})
			}
			group.Wait()
			return warm
		}
		if warm := burst(); warm != 1 {
			t.Errorf("the first burst took %d warm, want 1", warm)
		}
		settle(5 * time.Second)
		if s := r.Stats(); s.Target < 12 || s.Target > 13 || s.Warm != s.Target {
			t.Errorf("5 s after the burst: %+v, want a target of 12 or 13, all warm", s)
		}
		settle(20 * time.Second)
		if warm := burst(); warm < 11 {
			t.Errorf("the second burst took %d warm, want at least 11", warm)
		}
		last := 99
		for at := range 60 {
			settle(15 * time.Second)
			s := r.Stats()
			if s.Target > last {
				t.Errorf("without load: %+v, want a target of at most %d", s, last)
			}
			if last = s.Target; at == 3 && s.Target < 8 {
				t.Errorf("a minute later: %+v, want a target of at least 8", s)
			}
		}
		if s := r.Stats(); s.Target != 1 || s.Warm != 1 {
			t.Errorf("15 minutes later: %+v, want target 1, warm 1", s)
		}
	})
}

// The pool follows demand that comes in waves, and stays between Min and Max.
func TestAdaptiveFollowsWaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		day := func(at time.Duration) float64 { // half an hour for a day
			return max(0, 10*math.Sin(2*math.Pi*at.Minutes()/30))
		}
		noon, night := 0, 99
		got := play(t, start(t, adaptive(2, 9)), 7, day, time.Hour, 100*time.Millisecond,
			func(at time.Duration, s pool.Stats) {
				if s.Target < 2 || s.Target > 9 || s.Warm+s.Creating+s.Leased > 9 {
					t.Errorf("after %s: %+v, want a target from 2 to 9 and at most 9 sandboxes", at, s)
				}
				switch m := at.Minutes(); {
				case m > 6 && m < 9:
					noon = max(noon, s.Target)
				case m > 28 && m < 30:
					night = min(night, s.Target)
				}
			})
		if noon < 4 || night != 2 || got.share() < 0.97 {
			t.Errorf("target %d at noon, %d at night, %.2f %% warm; want at least 4, exactly 2, at least 97 %%", noon, night,
				100*got.share())
		}
	})
}

func TestAdaptiveWithoutLoadIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, adaptive(0, 5))
		settle(time.Hour)
		if s := r.Stats(); s.Target != 0 || s.Created != 0 {
			t.Errorf("without load: %+v, want target 0, created 0", s)
		}
		r.done(r.mustTake(t, pool.Cold))
		settle(5 * time.Second)
		if s := r.Stats(); s.Warm != 1 {
			t.Errorf("after one take: %+v, want warm 1", s)
		}
		settle(10 * time.Minute)
		if s := r.Stats(); s.Warm != 0 || s.Target != 0 {
			t.Errorf("10 minutes later: %+v, want target 0, warm 0", s)
		}
	})
}

// Resize keeps as many warm sandboxes as the new settings allow.
func TestResizeKeepsWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Min: 4, Max: 8, Rate: 10, Parallel: 2, MaxAge: time.Hour})
		settle(10 * time.Second)
		before := r.host.ids()
		s := r.Stats().Settings
		s.Min = 6
		r.Resize(s)
		settle(10 * time.Second)
		if got := r.Stats(); got.Warm != 6 || got.Created != 6 {
			t.Errorf("Min 6: %+v, want warm 6, created 6", got)
		}
		s.Min = 2
		r.Resize(s)
		settle(time.Second)
		if got := r.Stats(); got.Warm < 5 {
			t.Errorf("Min 2, at once: %+v, want at least 5 warm", got)
		}
		settle(time.Minute)
		if got := r.Stats(); got.Warm != 2 || got.Created != 6 {
			t.Errorf("Min 2, a minute later: %+v, want warm 2, created 6", got)
		}
		s.Max = 1
		s.Min = 1
		r.Resize(s)
		settle(time.Second)
		if got := r.Stats(); got.Warm != 1 {
			t.Errorf("Max 1: %+v, want warm 1", got)
		}
		if len(before) != 4 {
			t.Errorf("began with %v, want 4", before)
		}
	})
}

// Remove gives all callers the reason and destroys the warm sandboxes. Replace brings the pool
// back.
func TestRemoveDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Min: 2, Max: 3, Rate: 10, Parallel: 2, MaxAge: time.Hour})
		settle(10 * time.Second)
		mine := []int{r.mustTake(t, pool.Wait), r.mustTake(t, pool.Wait), r.mustTake(t, pool.Wait)}
		told := make(chan error, 1)
		go func() { // told receives when it ends
			_, _, err := r.take(t.Context(), "a", pool.Wait)
			told <- err
		}()
		synctest.Wait()
		r.done(mine[0])
		synctest.Wait() // one is being created for the waiting caller
		r.Remove(errGone)
		if err := <-told; err != errGone {
			t.Errorf("Take of a waiting caller = %v, want %v", err, errGone)
		}
		if _, _, err := r.take(t.Context(), "a", pool.Cold); err != errGone {
			t.Errorf("Take of a later caller = %v, want %v", err, errGone)
		}
		settle(10 * time.Second)
		if s := r.Stats(); s.Warm != 0 || s.Creating != 0 || s.Leased != 2 || s.Target != 0 || r.Empty() {
			t.Errorf("after Remove: %+v, empty %v; want leased 2, the rest 0, and not empty", s, r.Empty())
		}
		r.done(mine[1])
		r.done(mine[2])
		if !r.Empty() {
			t.Errorf("Empty = false with %+v, want true", r.Stats())
		}
		r.Replace(pool.Settings{Min: 1, Max: 3, Rate: 10}, r.host.create("back"))
		settle(10 * time.Second)
		r.done(r.mustTake(t, pool.Refuse))
	})
}
