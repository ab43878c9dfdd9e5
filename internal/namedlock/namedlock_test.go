package namedlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLocksSerializePerName(t *testing.T) {
	var l Locks
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			unlock, err := l.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			inside.Add(-1)
			unlock()
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d calls were inside at once, want 1", most.Load())
	}
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock = %v, want the context error", err)
	}
	other, err := l.Lock(ctx, "b")
	if err != nil {
		t.Fatalf("another name: %v", err)
	}
	other()
	if len(l.held) != 1 {
		t.Errorf("%d locks are held, want 1", len(l.held))
	}
	unlock()
	if len(l.held) != 0 {
		t.Errorf("%d locks are left, want 0", len(l.held))
	}
}
