package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
)

// TestStopAfterStartKeepsQueuedSandbox ends the caller's context when the engine has started the
// sandbox, and before that is recorded.
func TestStopAfterStartKeepsQueuedSandbox(t *testing.T) {
	w := newWorld(t)
	queue := func(o *Options) { o.Driver = fake.New(fake.Options{Host: w.host, Queue: true}) }
	s := w.start(t, queue)
	r := Request{Caller: "me", Template: "default", TTL: time.Hour, Idle: time.Hour, Lease: store.Lease{Attempt: "a"}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var id string
	q := Queued{Queue: runtime.Queue{Suspended: true}, Keep: func() bool { return ctx.Err() != nil }}
	w.host.SetHook(func(_ context.Context, op fake.Op, _ string) error {
		if op == fake.OpAdopt {
			stop()
		}
		return nil
	})
	q.Waiting = func(string) {
		for id = range w.host.Queued() {
			w.host.Resume(id)
		}
	}
	if l, err := s.AcquireQueued(ctx, r, q); err == nil {
		t.Fatalf("AcquireQueued = lease %s, want an error", l.ID)
	}
	if row := s.row(t, id); !row.Waits() {
		t.Fatalf("row = %+v, want one that waits for the next process", row)
	}
	s.stop()
	s = w.start(t, queue)
	l, err := s.AcquireQueued(t.Context(), r, Queued{Waiting: func(string) {}, Keep: func() bool { return false }})
	if err != nil || l.ID != id {
		t.Fatalf("AcquireQueued = %+v, %v; want sandbox %s", l, err, id)
	}
	if err := s.End(t.Context(), l, Removed, true); err != nil {
		t.Error(err)
	}
}
