package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"pgregory.net/rapid"

	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// line is a fake pool: the last turns of its waiting callers.
type line struct{ turns []uint64 }

func (l *line) turn(more int) (uint64, bool) {
	if more >= len(l.turns) {
		return 0, false
	}
	return l.turns[more], true
}

func (b *hostCapacity) waits() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Len()
}

func TestHostCapacityServesInOrder(t *testing.T) {
	b := newHostCapacity(2, 100)
	from := &poolDemand{nextWaiter: (&line{turns: []uint64{1, 1, 1, 1}}).turn}
	if err := b.reserve(t.Context(), 200, from); !errdefs.IsFailedPrecondition(err) {
		t.Fatal(err)
	}
	if err := b.reserve(t.Context(), 60, from); err != nil {
		t.Fatal(err)
	}
	big := make(chan error, 1)
	go func() { big <- b.reserve(context.Background(), 80, from) }()
	eventually(t, "the big one waits", func() bool { return b.waits() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	small := make(chan error, 1)
	go func() { small <- b.reserve(ctx, 10, from) }()
	eventually(t, "the small one waits", func() bool { return b.waits() == 2 })
	cancel()
	if err := <-small; !errdefs.IsResourceExhausted(err) {
		t.Fatalf("a small one overtook: %v", err)
	}
	b.release(60)
	if err := <-big; err != nil {
		t.Fatal(err)
	}
}

func TestWaitingCallersComeBeforePoolFilling(t *testing.T) {
	b := newHostCapacity(1, 100)
	fill, often, seldom := &poolDemand{
		nextWaiter: (&line{}).turn,
	}, &poolDemand{
		nextWaiter: (&line{turns: []uint64{7}}).turn,
	}, &poolDemand{
		nextWaiter: (&line{turns: []uint64{3}}).turn,
	}
	if err := b.reserve(t.Context(), 1, fill); err != nil {
		t.Fatal(err)
	}
	if b.isStarved() {
		t.Error("nobody waits")
	}
	got := make(chan string, 4)
	for i, w := range []struct {
		name string
		from *poolDemand
	}{{"fill", fill}, {"often", often}, {"seldom", seldom}, {"second of often", often}} {
		go func() {
			if err := b.reserve(context.Background(), 1, w.from); err != nil {
				t.Error(err)
			}
			got <- w.name
		}()
		eventually(t, w.name+" waits", func() bool { return b.waits() == i+1 })
	}
	if !b.isStarved() {
		t.Error("somebody waits")
	}
	for _, want := range []string{"seldom", "often", "fill", "second of often"} {
		b.release(1)
		if name := <-got; name != want {
			t.Errorf("%s came, want %s", name, want)
		}
	}
}

// In any order of events the capacity is never exceeded, no request waits while it fits and is
// next, and nothing leaks.
func TestHostCapacityInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		count, memory := rapid.IntRange(1, 4).Draw(rt, "count"), rapid.Int64Range(4, 12).Draw(rt, "memory")
		b := newHostCapacity(count, memory)
		sources := []*poolDemand{}
		for range 3 {
			l := &line{turns: rapid.SliceOfN(rapid.Uint64Range(0, 5), 0, 3).Draw(rt, "turns")}
			sources = append(sources, &poolDemand{nextWaiter: l.turn})
		}
		type held struct {
			memory int64
			from   *poolDemand
		}
		var mu sync.Mutex
		var have []held
		var cancels []func() // each returns when its call has returned
		var answered atomic.Int64
		var group sync.WaitGroup
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"take", "take", "give", "cancel"}).Draw(rt, "do") {
			case "take":
				h := held{rapid.Int64Range(1, 4).Draw(rt, "of"), rapid.SampledFrom(sources).Draw(rt, "from")}
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				cancels = append(cancels, func() { cancel(); <-done })
				group.Go(func() {
					defer close(done)
					defer answered.Add(1)
					if b.reserve(ctx, h.memory, h.from) != nil {
						return
					}
					mu.Lock()
					have = append(have, h)
					mu.Unlock()
					b.created(h.from)
				})
			case "give":
				mu.Lock()
				if len(have) > 0 {
					h := have[0]
					have = have[1:]
					mu.Unlock()
					b.release(h.memory)
				} else {
					mu.Unlock()
				}
			case "cancel":
				if len(cancels) > 0 {
					cancels[rapid.IntRange(0, len(cancels)-1).Draw(rt, "which")]()
				}
			}
			for b.waits()+int(answered.Load()) != len(cancels) { // each request waits or has its answer
				time.Sleep(20 * time.Microsecond)
			}
			b.mu.Lock()
			if b.used > count || b.bytes > memory || b.used < 0 || b.bytes < 0 {
				rt.Fatalf("%d of %d, %d of %d", b.used, count, b.bytes, memory)
			}
			if e, _ := b.next(); e != nil && b.fits(e.Value.(*capacityRequest).memory) {
				rt.Fatalf("one waits with room for it")
			}
			b.mu.Unlock()
		}
		for _, cancel := range cancels {
			cancel()
		}
		group.Wait()
		for _, h := range have {
			b.release(h.memory)
		}
		if b.used != 0 || b.bytes != 0 || b.waiting.Len() != 0 {
			rt.Fatalf("left: %d, %d bytes, %d waiting", b.used, b.bytes, b.waiting.Len())
		}
		for _, s := range sources {
			if s.creating != 0 {
				rt.Fatalf("%d are being made", s.creating)
			}
		}
	})
}

func two(o *Options) {
	other := o.Templates[0]
	other.Name = "other"
	other.Pool = pool.Settings{Min: 0, Max: 10, Rate: 1000, Parallel: 2, MaxAge: time.Hour}
	o.Templates = append(o.Templates, other)
}

// Warm sandboxes of one template are destroyed for a call that waits for another.
func TestIdleWarmSandboxesMakeRoom(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, two, func(o *Options) { o.MaxSandboxes, o.Templates[0].Pool.Min = 3, 3 })
	warm := func() int { return s.Pools()[0].Warm }
	eventually(t, "the host is full", func() bool { return warm() == 3 })
	other := func(r *Request) { r.Template = "other" }
	a, b := s.acquire(t, other), s.acquire(t, other)
	if n := len(w.host.IDs()); n > 3 {
		t.Errorf("%d sandboxes", n)
	}
	if n := warm(); n > 1 {
		t.Errorf("%d are warm", n)
	}
	for _, l := range []*Lease{a, b} {
		if err := s.End(t.Context(), l, Removed, true); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the pool is full again", func() bool { return warm() == 3 })
}

// A caller with many calls in two pools does not delay another caller.
func TestFairOrderSpansTemplates(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, two, func(o *Options) { o.MaxSandboxes, o.Templates[0].Pool.Min = 1, 0 })
	held := s.acquire(t, func(r *Request) { r.Caller = "somebody" })
	type won struct {
		caller string
		lease  *Lease
	}
	got := make(chan won, 16)
	waiting := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waiting
	}
	ask := func(caller, template string) {
		before := waiting()
		go func() {
			l, err := s.tryAcquire(
				context.Background(),
				func(r *Request) { r.Caller, r.Template, r.Wait = caller, template, time.Minute },
			)
			if err != nil {
				t.Error(err)
			}
			got <- won{caller, l}
		}()
		eventually(t, "it waits", func() bool { return waiting() == before+1 })
	}
	for range 3 {
		ask("greedy", "default")
		ask("greedy", "other")
	}
	ask("modest", "other")
	eventually(t, "both pools want one", func() bool {
		return s.Pools()[0].Waiting == 3 && s.Pools()[1].Waiting == 4 && s.capacity.waits() >= 2
	})
	if err := s.End(t.Context(), held, Removed, true); err != nil {
		t.Fatal(err)
	}
	var order []string
	for range 7 {
		next := <-got
		order = append(order, next.caller)
		if next.lease == nil {
			t.FailNow()
		}
		if err := s.End(t.Context(), next.lease, Removed, true); err != nil {
			t.Fatal(err)
		}
	}
	if at := slices.Index(order, "modest"); at > 2 {
		t.Errorf("served: %v", order)
	}
}

func TestQueueSharePerCallerIsBounded(t *testing.T) {
	s := newWorld(t).start(t, func(o *Options) { o.MaxSandboxes = 1 })
	held := s.acquire(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	greedy := func(r *Request) { r.Caller, r.Quotas.Waiting = "greedy", 1 }
	go func() {
		_, err := s.tryAcquire(ctx, greedy)
		ended <- err
	}()
	eventually(t, "it waits", func() bool { return s.Pools()[0].Waiting == 1 })
	_, err := s.tryAcquire(t.Context(), greedy)
	if q, ok := errors.AsType[*QuotaError](err); !ok || q.Quota != "waiting" || !errdefs.IsResourceExhausted(err) {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := s.End(t.Context(), held, Removed, true); err != nil {
		t.Fatal(err)
	}
	s.acquire(t, greedy)
}

func TestUnusedUsageIsDropped(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	for i := range 5 {
		l := s.acquire(t, func(r *Request) { r.Caller = fmt.Sprint("c", i) })
		if err := s.End(t.Context(), l, Removed, true); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "nothing is remembered", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.usage) == 0
	})
	keep := s.acquire(t)
	s.stop()
	s = w.start(t)
	one := runtime.Limits{}.WithDefaults().MemoryBytes
	s.mu.Lock()
	got := *s.usage["me"]
	s.mu.Unlock()
	if got.sandboxes != 1 || got.memory != one {
		t.Fatalf("after a restart: %+v", got)
	}
	if err := s.End(t.Context(), s.Live(keep.ID), Removed, true); err != nil {
		t.Fatal(err)
	}
}
