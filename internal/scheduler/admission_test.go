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
		t.Fatalf("reserve of more than the capacity: %v, want FailedPrecondition", err)
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
	eventually(t, "the small request waits", func() bool { return b.waits() == 2 })
	cancel()
	if err := <-small; !errdefs.IsResourceExhausted(err) {
		t.Fatalf("small request behind a large one: %v, want ResourceExhausted", err)
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
		t.Error("isStarved() = true without a waiting caller, want false")
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
		t.Error("isStarved() = false with waiting callers, want true")
	}
	for _, want := range []string{"seldom", "often", "fill", "second of often"} {
		b.release(1)
		if name := <-got; name != want {
			t.Errorf("admitted %s, want %s", name, want)
		}
	}
}

// capacityModel makes random requests to a host's capacity and records which were admitted.
type capacityModel struct {
	*hostCapacity
	sources []*poolDemand

	group    sync.WaitGroup
	answered atomic.Int64
	cancels  []func() // each returns when its call has returned

	held   sync.Mutex
	admits []capacityHeld
}

type capacityHeld struct {
	memory int64
	from   *poolDemand
}

func newCapacityModel(rt *rapid.T) *capacityModel {
	count, memory := rapid.IntRange(1, 4).Draw(rt, "count"), rapid.Int64Range(4, 12).Draw(rt, "memory")
	m := &capacityModel{hostCapacity: newHostCapacity(count, memory)}
	for range 3 {
		l := &line{turns: rapid.SliceOfN(rapid.Uint64Range(0, 5), 0, 3).Draw(rt, "turns")}
		m.sources = append(m.sources, &poolDemand{nextWaiter: l.turn})
	}
	return m
}

// take starts a request.
func (m *capacityModel) take(rt *rapid.T) {
	h := capacityHeld{rapid.Int64Range(1, 4).Draw(rt, "of"), rapid.SampledFrom(m.sources).Draw(rt, "from")}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	m.cancels = append(m.cancels, func() { cancel(); <-done })
	m.group.Go(func() {
		defer close(done)
		defer m.answered.Add(1)
		if m.reserve(ctx, h.memory, h.from) != nil {
			return
		}
		m.held.Lock()
		m.admits = append(m.admits, h)
		m.held.Unlock()
		m.created(h.from)
	})
}

// give releases what the first admitted request holds, if there is one.
func (m *capacityModel) give() {
	m.held.Lock()
	if len(m.admits) == 0 {
		m.held.Unlock()
		return
	}
	h := m.admits[0]
	m.admits = m.admits[1:]
	m.held.Unlock()
	m.release(h.memory)
}

// check fails if the capacity is exceeded, or if the next request waits although it fits.
func (m *capacityModel) check(rt *rapid.T) {
	for m.waits()+int(m.answered.Load()) != len(m.cancels) { // each request waits or has its answer
		time.Sleep(20 * time.Microsecond)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used > m.count || m.bytes > m.memory || m.used < 0 || m.bytes < 0 {
		rt.Fatalf("%d sandboxes with %d bytes, want 0 to %d with 0 to %d", m.used, m.bytes, m.count, m.memory)
	}
	if e, _ := m.next(); e != nil && m.fits(e.Value.(*capacityRequest).memory) {
		rt.Fatalf("a request of %d bytes waits with %d of %d bytes used, want it admitted",
			e.Value.(*capacityRequest).memory, m.bytes, m.memory)
	}
}

// end cancels all requests, releases all and fails if anything is still counted.
func (m *capacityModel) end(rt *rapid.T) {
	for _, cancel := range m.cancels {
		cancel()
	}
	m.group.Wait()
	for _, h := range m.admits {
		m.release(h.memory)
	}
	if m.used != 0 || m.bytes != 0 || m.waiting.Len() != 0 {
		rt.Fatalf("%d sandboxes, %d bytes and %d waiting are left, want 0", m.used, m.bytes, m.waiting.Len())
	}
	for _, s := range m.sources {
		if s.creating != 0 {
			rt.Fatalf("%d sandboxes are being created, want 0", s.creating)
		}
	}
}

// In any order of events the capacity is never exceeded, no request waits while it fits and is
// next, and nothing leaks.
func TestHostCapacityInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newCapacityModel(rt)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"take", "take", "give", "cancel"}).Draw(rt, "do") {
			case "take":
				m.take(rt)
			case "give":
				m.give()
			case "cancel":
				if len(m.cancels) > 0 {
					m.cancels[rapid.IntRange(0, len(m.cancels)-1).Draw(rt, "which")]()
				}
			}
			m.check(rt)
		}
		m.end(rt)
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
		t.Errorf("%d sandboxes, want at most 3", n)
	}
	if n := warm(); n > 1 {
		t.Errorf("%d warm sandboxes, want at most 1", n)
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
		eventually(t, "the request waits", func() bool { return waiting() == before+1 })
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
		t.Errorf("callers were served as %v, want modest among the first three", order)
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
	eventually(t, "the request waits", func() bool { return s.Pools()[0].Waiting == 1 })
	_, err := s.tryAcquire(t.Context(), greedy)
	if q, ok := errors.AsType[*QuotaError](err); !ok || q.Quota != "waiting" || !errdefs.IsResourceExhausted(err) {
		t.Fatalf("second waiting call: %v, want ResourceExhausted for quota waiting", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled call: %v, want %v", err, context.Canceled)
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
	eventually(t, "the usage is dropped", func() bool {
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
		t.Fatalf("usage after a restart = %+v, want 1 sandbox and %d bytes", got, one)
	}
	if err := s.End(t.Context(), s.Live(keep.ID), Removed, true); err != nil {
		t.Fatal(err)
	}
}
