package scheduler

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// crashed opens the store of a process that has died.
func (w *world) crashed(t *testing.T, change func(*store.Store)) {
	t.Helper()
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	change(st)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) step(t *testing.T, id string, change func(*store.Sandbox)) {
	t.Helper()
	w.crashed(t, func(st *store.Store) {
		if _, err := st.Update(t.Context(), id, func(b *store.Sandbox) error { change(b); return nil }); err != nil {
			t.Fatal(err)
		}
	})
}

// Killed between the state change and the removal: until the sandbox is gone, it can write to its
// workspace, and its shells have not ended.
func TestRecoverFinishesInterruptedEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	with := func(r *Request) { r.Lease.Workspace = "w" }
	l := s.acquire(t, with)
	s.stop()
	w.step(t, l.ID, func(b *store.Sandbox) { b.State, b.Reason = store.Stopping, Removed })
	w.crashed(t, func(st *store.Store) {
		if err := st.InsertShell(t.Context(), store.Shell{ID: "sh", Sandbox: l.ID, Caller: "me", Started: time.Now()}); err != nil {
			t.Fatal(err)
		}
	})
	w.host.SetHook(fake.Fail(errors.New("the engine says no"), -1, fake.OpDestroy))
	s = w.start(t)
	eventually(t, "the removal was tried", func() bool { // other sandboxes may be created at the same time
		s.mu.Lock()
		defer s.mu.Unlock()
		_, tried := s.failedRemovals[l.ID]
		return tried
	})
	if _, err := s.tryAcquire(t.Context(), with); !errdefs.IsUnavailable(err) {
		t.Errorf("Acquire with its workspace: %v, want Unavailable", err)
	}
	if got, err := s.store.Shell(t.Context(), "sh"); err != nil || got.Result != nil {
		t.Errorf("Shell of the lease = %+v, %v; want no result yet", got, err)
	}
	w.host.SetHook(nil)
	eventually(t, "the sandbox is gone", func() bool { return s.row(t, l.ID).State == store.Gone })
	if got := s.row(t, l.ID).Reason; got != Removed {
		t.Errorf("the lease ended as %q, want %q", got, Removed)
	}
	if got, err := s.store.Shell(t.Context(), "sh"); err != nil || got.Result == nil ||
		got.Result.Ending != runtime.Cancelled {
		t.Errorf("Shell of the lease = %+v, %v; want ending %s", got, err, runtime.Cancelled)
	}
	s.acquire(t, with)
}

func TestRecoverEndsOneShotLease(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	l := s.acquire(t, func(r *Request) { r.Lease.OneShot = true })
	s.stop()
	s = w.start(t)
	eventually(t, "the sandbox is gone", func() bool { return s.row(t, l.ID).State == store.Gone })
}

func TestRecoverIgnoresUnremovableOrphan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.crashed(t, func(st *store.Store) {
		spec := runtime.Spec{
			ID:       "orphan-00",
			Owner:    st.Owner(),
			Template: "default",
			Image:    runtime.Image{ID: "sha256:1"},
			Limits:   runtime.Limits{}.WithDefaults(),
		}
		if _, err := fake.New(fake.Options{Host: w.host}).Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	})
	w.host.SetHook(fake.Fail(errors.New("busy"), 1, fake.OpDestroy))
	s := w.start(t)
	eventually(
		t,
		"the sweep removed it",
		func() bool { return !slices.Contains(w.host.IDs(), "orphan-00") && s.Broken() == 0 },
	)
	eventually(t, "only the warm one counts", func() bool {
		s.capacity.mu.Lock()
		defer s.capacity.mu.Unlock()
		return s.capacity.used == s.Pools()[0].Warm
	})
}

func TestDestroyAllRecordsShellEnds(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	l := s.acquire(t)
	s.stop()
	w.crashed(t, func(st *store.Store) {
		if err := st.InsertShell(t.Context(), store.Shell{ID: "sh", Sandbox: l.ID, Caller: "me", Started: time.Now()}); err != nil {
			t.Fatal(err)
		}
		d := New(Options{Driver: fake.New(fake.Options{Host: w.host}), Store: st, MaxSandboxes: 1})
		if err := d.DestroyAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := st.Shell(t.Context(), "sh"); err != nil || got.Result == nil {
			t.Errorf("Shell after DestroyAll = %+v, %v; want a result", got, err)
		}
	})
}

func TestDestroyAllLeavesNothing(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	s.acquire(t)
	s.stop()
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	d := New(Options{Driver: fake.New(fake.Options{Host: w.host}), Store: st, MaxSandboxes: 1})
	if err := d.DestroyAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	live, err := st.Live(t.Context())
	if err != nil || len(live) != 0 || len(w.host.IDs()) != 0 {
		t.Fatalf("live rows = %v, sandboxes = %v, %v; want none", live, w.host.IDs(), err)
	}
}

// End does not wait as long as the engine is unavailable.
func TestEndReportsFailedRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(t)
	l := s.acquire(t)
	s.removalWait = 0
	w.host.SetHook(fake.Fail(errors.New("the engine is away"), -1, fake.OpDestroy))
	for range 2 {
		if err := s.End(t.Context(), l, Removed, true); !errdefs.IsUnavailable(err) {
			t.Fatalf("End without the engine: %v, want Unavailable", err)
		}
	}
	w.host.SetHook(nil)
	eventually(t, "the sandbox is gone", func() bool {
		select {
		case <-l.Gone():
			return true
		default:
			return false
		}
	})
	if err := s.End(t.Context(), l, Removed, true); err != nil {
		t.Fatal(err)
	}
}
