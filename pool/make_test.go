package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/pool"
)

// TestMakeDisplacesWarm checks that Make counts toward Max, and that one warm sandbox makes room.
func TestMakeDisplacesWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(time.Second)
		p := pool.New(pool.Options[int]{
			Name: "t", Settings: pool.Settings{Min: 2, Max: 2, Rate: 1000, Parallel: 2},
			Create: h.create("warm"), Probe: h.probe, Destroy: h.destroy,
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(5 * time.Second)
		if s := p.Stats(); s.Warm != 2 {
			t.Fatalf("warm = %d, want 2", s.Warm)
		}
		made, err := p.Make(t.Context(), "c", h.create("own"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if s := p.Stats(); s.Warm != 1 || s.Leased != 1 {
			t.Errorf("after Make: %d warm, %d leased; want 1 and 1", s.Warm, s.Leased)
		}
		second, err := p.Make(t.Context(), "c", h.create("own"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Make(t.Context(), "c", h.create("own")); !errors.As(err, new(*pool.EmptyError)) {
			t.Errorf("Make at Max = %v, want an EmptyError", err)
		}
		p.Gone(made)
		fail := errors.New("no volume")
		if _, err := p.Make(t.Context(), "c", func(context.Context) (int, error) { return 0, fail }); !errors.Is(err, fail) {
			t.Errorf("Make = %v, want the error of the creation", err)
		}
		p.Gone(second)
		time.Sleep(10 * time.Second)
		if s := p.Stats(); s.Warm != 2 || s.Leased != 0 || s.Creating != 0 {
			t.Errorf("after Gone: %d warm, %d leased, %d creating; want 2, 0 and 0", s.Warm, s.Leased, s.Creating)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestFailedMakeIsATurn(t *testing.T) {
	h := newHost(0)
	order := &pool.FairOrder{}
	p := pool.New(pool.Options[int]{
		Name: "t", Settings: pool.Settings{Max: 2, Rate: 1000, Parallel: 2}, Order: order,
		Create: h.create("warm"), Probe: h.probe, Destroy: h.destroy,
	})
	fail := errors.New("no volume")
	if _, err := p.Make(t.Context(), "c", func(context.Context) (int, error) { return 0, fail }); !errors.Is(err, fail) {
		t.Fatalf("Make = %v, want the error of the creation", err)
	}
	if got := order.LastServed("c"); got != 1 {
		t.Errorf("last turn of the caller = %d, want 1: it must not come first again", got)
	}
}
