package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host creates sandboxes and checks how the pool uses them.
type host struct {
	delay time.Duration // of a creation

	mu       sync.Mutex
	next     int
	live     map[int]string // id → generation
	most     int            // live and being created, ever
	creating int
	failing  int // number of creations that fail; negative: all
	dead     map[int]bool
	why      map[int]string // why it was destroyed
	handed   map[int]bool
	wrong    []string
}

var errCreate = errors.New("the engine has no luck")

func newHost(delay time.Duration) *host {
	return &host{delay: delay, live: map[int]string{}, dead: map[int]bool{}, why: map[int]string{}, handed: map[int]bool{}}
}

func (h *host) blame(format string, args ...any) {
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

func (h *host) create(generation string) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		h.mu.Lock()
		h.creating++
		h.most = max(h.most, len(h.live)+h.creating)
		h.mu.Unlock()
		var err error
		select {
		case <-time.After(h.delay):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.creating--
		if err != nil {
			return 0, err
		}
		if h.failing != 0 {
			h.failing = max(-1, h.failing-1)
			return 0, errCreate
		}
		h.next++
		h.live[h.next] = generation
		return h.next, nil
	}
}

func (h *host) probe(_ context.Context, id int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead[id] {
		return errors.New("it is dead")
	}
	return nil
}

func (h *host) destroy(_ context.Context, id int, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, live := h.live[id]; !live {
		h.blame("%d was destroyed twice: %s, before: %s; want once", id, why, h.why[id])
	}
	if h.handed[id] && why != "done" {
		h.blame("%d was destroyed while leased: %s; want it kept", id, why)
	}
	delete(h.live, id)
	h.why[id] = why
}

func (h *host) fail(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing = n
}

func (h *host) ids() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]int, 0, len(h.live))
	for id := range h.live {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// rig is a running pool in a bubble of synctest.
type rig struct {
	*pool.Pool[int]
	host *host
	stop func()
}

var settings = pool.Settings{Min: 2, Max: 5, Rate: 1, Parallel: 2, MaxAge: time.Hour}

func start(t *testing.T, s pool.Settings) rig {
	t.Helper()
	h := newHost(100 * time.Millisecond)
	p := pool.New(pool.Options[int]{Name: "python", Settings: s, Create: h.create("old"), Probe: h.probe,
		Destroy: h.destroy})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	r := rig{Pool: p, host: h, stop: func() { cancel(); running.Wait() }}
	t.Cleanup(func() {
		r.stop()
		for _, id := range p.Rest() {
			h.destroy(context.Background(), id, "rest")
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for id := range h.live {
			if !h.handed[id] {
				t.Errorf("%d is alive at the end, want it destroyed", id)
			}
		}
		for _, w := range h.wrong {
			t.Error(w)
		}
		if h.most > s.Max {
			t.Errorf("%d sandboxes existed at once, want at most %d", h.most, s.Max)
		}
	})
	return r
}

// take calls Take and checks that the pool returns each sandbox once.
func (r rig) take(ctx context.Context, caller string, mode pool.Mode) (int, bool, error) {
	id, warm, err := r.Take(ctx, caller, mode)
	if err != nil {
		return 0, false, err
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	if r.host.handed[id] {
		r.host.blame("Take returned %d twice, want once", id)
	}
	if _, live := r.host.live[id]; !live {
		r.host.blame("Take returned %d after its end: %s; want a live one", id, r.host.why[id])
	}
	r.host.handed[id] = true
	return id, warm, nil
}

// done destroys a taken sandbox and reports it gone.
func (r rig) done(id int) {
	r.host.destroy(context.Background(), id, "done")
	r.Gone(id)
}

func (r rig) mustTake(t *testing.T, mode pool.Mode) int {
	t.Helper()
	id, _, err := r.take(t.Context(), "caller", mode)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
