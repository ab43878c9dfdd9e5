package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// A lease can be listed and removed before it is handed out.
func TestEndDuringBind(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding, goOn := make(chan string, 1), make(chan struct{})
	w.host.SetHook(func(_ context.Context, op fake.Op, id string) error {
		if op == fake.OpBind {
			binding <- id
			<-goOn
		}
		return nil
	})
	got := make(chan error, 1)
	go func() {
		_, err := s.tryAcquire(context.Background(), func(r *Request) { r.Lease.Workspace = "w" })
		got <- err
	}()
	l := s.Live(<-binding)
	if _, err := l.Enter(t.Context()); !errdefs.IsUnavailable(err) {
		t.Fatalf("Enter during bind: %v, want Unavailable", err)
	}
	if err := s.End(t.Context(), l, Removed, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease is stopping", func() bool { return s.row(t, l.ID).State == store.Stopping })
	select {
	case <-l.Gone():
		t.Error("the sandbox was destroyed during a bind, want it kept until the bind ends")
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	if err := <-got; !errdefs.IsNotFound(err) {
		t.Errorf("Acquire of a lease that was removed: %v, want NotFound", err)
	}
	eventually(t, "the workspace is free", func() bool {
		got, err := s.volumes.Get("w")
		return err == nil && len(got.Leases) == 0 && len(s.liveLeases()) == 0
	})
	if st := s.Pools()[0]; st.Leased != 0 {
		t.Errorf("pool = %+v, want none leased", st)
	}
}

// endIdle pings the guest between reading the clock and ending the lease.
func TestLeaseInUseAgainIsNotIdle(t *testing.T) {
	s := newWorld(t).start(t)
	l := s.acquire(t)
	use, err := l.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.End(t.Context(), l, Idle, false); err != nil {
			t.Fatal(err)
		}
		if l.Ended() != "" {
			t.Fatalf("lease ended as %q during or right after a call, want it live", l.Ended())
		}
		use.Leave()
	}
}

// A guest that does not answer may have a running shell.
func TestSlowGuestIsNotIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(t)
	asked := make(chan struct{}, 1)
	l := s.acquire(t)
	w.host.SetHook(func(ctx context.Context, op fake.Op, id string) error {
		if op != fake.OpOpen || id != l.ID {
			return nil
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	})
	l.mu.Lock()
	l.IdleTime = time.Millisecond
	l.mu.Unlock()
	<-asked
	select {
	case <-asked: // so the first ping had no answer
	case <-l.Gone():
		t.Fatal("the lease of a guest that does not answer ended, want it live")
	}
	w.host.SetHook(nil)
	<-l.Gone()
}

// The end of an unknown lease removes its sandbox by id. Nothing may be counted for it after that.
func TestEndedLeaseRejectsInstance(t *testing.T) {
	s := newWorld(t).start(t)
	row := s.row(t, s.acquire(t).ID)
	unknown := newLease(row, nil, nil)
	if !unknown.beginEnd(Removed) {
		t.Fatal("beginEnd = false, want true")
	}
	if known, err := s.resolveLease(t.Context(), unknown, row); !known || !errdefs.IsNotFound(err) {
		t.Fatalf("resolveLease = %t, %v; want true and NotFound", known, err)
	}
	if st := s.Pools()[0]; unknown.instance != nil || st.Leased != 1 {
		t.Fatalf("instance = %v, pool = %+v; want none and 1 leased", unknown.instance, st)
	}
}

// Repeated requests for a busy workspace use no sandboxes.
func TestBusyWorkspaceUsesNoSandbox(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	with := func(r *Request) { r.Lease.Workspace = "w" }
	s.acquire(t, with)
	eventually(t, "one is warm", func() bool { return s.Pools()[0].Warm == 1 })
	created := len(w.host.Created())
	for range 5 {
		if _, err := s.tryAcquire(t.Context(), with); !errdefs.IsUnavailable(err) {
			t.Fatalf("Acquire with a busy workspace: %v, want Unavailable", err)
		}
	}
	if st := s.Pools()[0]; st.Warm != 1 || len(w.host.Created()) != created {
		t.Fatalf("pool = %+v, %d sandboxes created; want 1 warm and 0 created", st, len(w.host.Created())-created)
	}
}
