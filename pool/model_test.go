package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sandbox-orchestrator/orchestrator/pool"
)

func TestReplaceDrainsOldGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, settings)
		settle(10 * time.Second)
		mine := r.mustTake(t, pool.Refuse)
		settle(50 * time.Millisecond) // one more is being created
		if s := r.Stats(); s.Creating != 1 {
			t.Fatalf("before: %+v, want creating 1", s)
		}
		s := settings
		s.Min = 3
		r.Replace(s, r.host.create("new"))
		if _, _, err := r.take(t.Context(), "a", pool.Refuse); err == nil {
			t.Error("Take returned a sandbox of the old template, want an error")
		}
		id := r.mustTake(t, pool.Wait)
		settle(10 * time.Second)
		if s := r.Stats(); s.Warm != 3 || s.Leased != 2 {
			t.Errorf("afterwards: %+v, want warm 3, leased 2", s)
		}
		r.host.mu.Lock()
		for id, generation := range r.host.live {
			if id != mine && generation != "new" {
				t.Errorf("%d has generation %q, want new", id, generation)
			}
		}
		if r.host.live[id] != "new" {
			t.Errorf("the waiting caller got %d of generation %q, want new", id, r.host.live[id])
		}
		r.host.mu.Unlock()
		r.done(mine)
		r.done(id)
	})
}

func TestStopEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, pool.Settings{Max: 1})
		r.mustTake(t, pool.Wait)
		ended := make(chan error, 1)
		go func() { // ended receives when it ends
			_, _, err := r.take(t.Context(), "a", pool.Wait)
			ended <- err
		}()
		synctest.Wait()
		r.stop()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "stopping") {
			t.Errorf("Take of a waiting caller = %v, want an error with %q", err, "stopping")
		}
	})
}

var errGone = errors.New("it has been removed")

// step is one event of a pool.
type step struct {
	Do     string
	Caller string
	Mode   pool.Mode
	Time   time.Duration
	N      int
}

func drawSteps(t *rapid.T) []step {
	one := rapid.Custom(func(t *rapid.T) step {
		return step{
			Do: rapid.SampledFrom([]string{"take", "take", "take", "take", "done", "done", "done", "wait", "wait", "fail",
				"heal", "kill", "replace", "resize", "remove"}).Draw(t, "do"),
			Caller: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "caller"),
			Mode:   rapid.SampledFrom([]pool.Mode{pool.Wait, pool.Cold, pool.Refuse}).Draw(t, "mode"),
			Time: time.Duration(rapid.SampledFrom([]int{0, 1, 50, 99, 100, 101, 500, 3000, 60_000, 4_000_000}).Draw(t,
				"ms")) * time.Millisecond,
			N: rapid.IntRange(0, 5).Draw(t, "n"),
		}
	})
	return rapid.SliceOfN(one, 1, 40).Draw(t, "steps")
}

// player carries out steps and checks the invariants of the pool after each.
type player struct {
	rig
	settings pool.Settings
	removed  bool
	ctx      context.Context
	taking   sync.WaitGroup
	mu       sync.Mutex
	mine     []int
	bad      []string
}

func (p *player) blame(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad = append(p.bad, fmt.Sprintf(format, args...))
}

func (p *player) play(s step, i int) {
	switch s.Do {
	case "take":
		p.taking.Go(func() { p.takeOne(s) })
	case "done":
		p.finish(s.N)
	case "wait":
		time.Sleep(s.Time)
	case "fail":
		p.host.fail(s.N)
	case "heal":
		p.host.fail(0)
	case "kill":
		for n, id := range p.host.ids() {
			if n == s.N {
				p.host.mu.Lock()
				p.host.dead[id] = true
				p.host.mu.Unlock()
			}
		}
	case "replace":
		p.removed = false
		p.Replace(p.settings, p.host.create(fmt.Sprint(i)))
	case "resize": // Max stays
		p.settings.Min, p.settings.Adaptive = min(s.N, p.settings.Max), s.N%2 == 0
		p.Resize(p.settings)
	case "remove":
		p.removed = true
		p.Remove(errGone)
	}
	synctest.Wait()
	p.check(s)
}

func (p *player) takeOne(s step) {
	ctx, cancel := context.WithTimeout(p.ctx, s.Time)
	defer cancel()
	id, _, err := p.take(ctx, s.Caller, s.Mode)
	empty := (*pool.EmptyError)(nil)
	switch {
	case err == nil:
		p.mu.Lock()
		p.mine = append(p.mine, id)
		p.mu.Unlock()
	case errors.As(err, &empty) && s.Mode != pool.Wait, errors.Is(err, errCreate), errors.Is(err, errGone),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
	default:
		p.blame("Take(%v) = %v, want one of the expected errors", s.Mode, err)
	}
}

func (p *player) finish(n int) {
	p.mu.Lock()
	if n >= len(p.mine) {
		p.mu.Unlock()
		return
	}
	id := p.mine[n]
	p.mine = slices.Delete(p.mine, n, n+1)
	p.mu.Unlock()
	p.done(id)
}

func (p *player) check(after step) {
	s := p.Stats()
	live := len(p.host.ids())
	if s.Warm+s.Creating+s.Leased > p.settings.Max || live > p.settings.Max {
		p.blame("after %+v: %d live, %+v; want at most Max, %d", after, live, s, p.settings.Max)
	}
	if s.Warm+s.Leased != live {
		p.blame("after %+v: %d live, %+v; want as many warm and leased", after, live, s)
	}
	if p.removed && (s.Warm > 0 || s.Waiting > 0) {
		p.blame("after %+v: the removed pool has %+v, want no warm and no waiting", after, s)
	}
	if s.Waiting > 0 && s.Warm > 0 {
		p.blame("after %+v: %+v, want nobody waiting while some are warm", after, s)
	}
}

// settled checks what must hold once creations succeed and no step follows.
func (p *player) settled() {
	p.host.fail(0)
	time.Sleep(2 * time.Hour)
	synctest.Wait()
	p.taking.Wait()
	synctest.Wait()
	want := min(p.settings.Min, p.settings.Max-len(p.mine))
	if p.removed {
		want = 0
	}
	rests := func(s pool.Stats) bool {
		return s.Warm >= want && s.Warm <= p.settings.Max && s.Creating == 0 && s.Waiting == 0 && s.Leased == len(p.mine)
	}
	s := p.Stats()
	for range 50 { // expired ones are replaced all the time: one may be under way
		if rests(s) {
			break
		}
		time.Sleep(37 * time.Millisecond)
		synctest.Wait()
		s = p.Stats()
	}
	if !rests(s) {
		p.blame("at rest: %+v, want warm from %d to %d, leased %d, the rest 0", s, want, p.settings.Max, len(p.mine))
	}
	for len(p.mine) > 0 {
		p.finish(0)
	}
}

func TestPoolKeepsInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := pool.Settings{Min: rapid.IntRange(0, 4).Draw(rt, "min"),
			Rate:     rapid.SampledFrom([]float64{0.1, 1, 50}).Draw(rt, "rate"),
			Parallel: rapid.IntRange(1, 3).Draw(rt, "parallel"), MaxAge: time.Minute}
		s.Max = max(1, s.Min+rapid.IntRange(0, 3).Draw(rt, "room"))
		steps := drawSteps(rt)
		var bad []string
		synctest.Test(t, func(t *testing.T) {
			p := &player{rig: start(t, s), settings: s, ctx: t.Context()}
			for i, step := range steps {
				p.play(step, i)
			}
			p.settled()
			bad = p.bad
		})
		if len(bad) > 0 {
			rt.Fatalf("%s", strings.Join(bad, "\n"))
		}
	})
}

// A caller that is served while it gives up either keeps the sandbox or returns it.
func TestCancelDuringTakeLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(0)
		var mu sync.Mutex
		var leave context.CancelFunc
		create := h.create("")
		p := pool.New(pool.Options[int]{Name: "a", Settings: pool.Settings{Max: 1}, Probe: h.probe, Destroy: h.destroy,
			Create: func(ctx context.Context) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				leave()
				return create(ctx)
			}})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		r := rig{Pool: p, host: h}
		for range 300 {
			leaving, cancel := context.WithCancel(t.Context())
			mu.Lock()
			leave = cancel
			mu.Unlock()
			id, _, err := r.take(leaving, "a", pool.Wait)
			cancel()
			synctest.Wait()
			if s := p.Stats(); err != nil && s.Leased != 0 || err == nil && s.Leased != 1 {
				t.Fatalf("Take = %v, then %+v; want leased 1 after success, 0 after an error", err, s)
			}
			if err == nil {
				r.done(id)
			}
			if id, _, err := r.take(t.Context(), "a", pool.Wait); err != nil {
				t.Fatal(err)
			} else {
				r.done(id)
			}
		}
		cancel()
		running.Wait()
		for _, id := range p.Rest() {
			h.destroy(t.Context(), id, "rest")
		}
	})
}
