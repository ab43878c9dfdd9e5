package scheduler

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

// world is a state directory and an engine that outlive schedulers.
type world struct {
	dir  string
	host *fake.Host
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{dir: t.TempDir(), host: &fake.Host{}}
}

// service is one process that uses a world.
type service struct {
	*Scheduler
	store   *store.Store
	volumes *volumes.Manager
	stop    func()
}

func (w *world) start(t *testing.T, change ...func(*Options)) *service {
	t.Helper()
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	v, err := volumes.Open(filepath.Join(w.dir, "workspaces"), volumes.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Driver: fake.New(
			fake.Options{Host: w.host},
		), Store: st, Volumes: v, MaxSandboxes: 20, MaxMemory: 1 << 40, Queue: 100, Build: "b",
		Templates: []Template{{
			Name: "default", Spec: runtime.Spec{Image: runtime.Image{ID: "sha256:1"}, Limits: runtime.Limits{}.WithDefaults()},
			Pool: pool.Settings{Min: 1, Max: 10, Rate: 1000, Parallel: 2, MaxAge: time.Hour},
		}},
	}
	for _, c := range change {
		c(&o)
	}
	s := &service{Scheduler: New(o), store: st, volumes: v}
	if _, err := s.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		st.Close()
	}
	t.Cleanup(s.stop)
	return s
}

func (s *service) acquire(t *testing.T, change ...func(*Request)) *Lease {
	t.Helper()
	l, err := s.tryAcquire(t.Context(), change...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (s *service) tryAcquire(ctx context.Context, change ...func(*Request)) (*Lease, error) {
	r := Request{Caller: "me", Template: "default", TTL: time.Hour, Idle: time.Hour, Mode: pool.Wait, Wait: time.Minute}
	for _, c := range change {
		c(&r)
	}
	return s.Acquire(ctx, r)
}

var eventually = testenv.Eventually

func (s *service) row(t *testing.T, id string) store.Sandbox {
	t.Helper()
	row, err := s.store.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func TestLeaseEndsOnce(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	l := s.acquire(t)
	if got := s.row(t, l.ID); got.State != store.Leased || got.Caller != "me" {
		t.Fatalf("row = %+v, want leased by me", got)
	}
	use, err := l.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- s.End(context.Background(), l, Removed, true) }()
	}
	<-use.Ctx.Done() // calls are cancelled with the reason
	if e, ok := errors.AsType[*EndedError](context.Cause(use.Ctx)); !ok || e.Reason != Removed {
		t.Fatalf("cause = %v, want an EndedError with reason %s", context.Cause(use.Ctx), Removed)
	}
	use.Leave()
	use.Leave()
	for range 2 {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	if got := s.row(t, l.ID); got.State != store.Gone || got.Reason != Removed || got.Ended.IsZero() {
		t.Fatalf("row = %+v, want gone with reason %s and an end", got, Removed)
	}
	if _, err := s.Lease(t.Context(), "me", l.ID); !errdefs.IsNotFound(err) {
		t.Fatalf("Lease of an ended lease: %v, want NotFound", err)
	}
	if _, err := l.Enter(t.Context()); !errdefs.IsNotFound(err) {
		t.Fatalf("Enter of an ended lease: %v, want NotFound", err)
	}
}

func TestLeaseOfAnotherCallerIsNotFound(t *testing.T) {
	s := newWorld(t).start(t)
	l := s.acquire(t)
	if _, err := s.Lease(t.Context(), "you", l.ID); !errdefs.IsNotFound(err) {
		t.Fatalf("Lease of another caller: %v, want NotFound", err)
	}
	if _, err := s.Row(t.Context(), "you", l.ID); !errdefs.IsNotFound(err) {
		t.Fatalf("Row of another caller: %v, want NotFound", err)
	}
}

func TestDueLeaseEnds(t *testing.T) { //nolint:tparallel // the leases are short, so other tests must not delay them
	const soon = 2 * time.Second // a busy machine may use some of it to hand the lease out
	for _, c := range []struct {
		reason string
		change func(*Request)
		then   func(*world, *Lease)
	}{
		{Expired, func(r *Request) { r.TTL = soon }, nil},
		{Idle, func(r *Request) { r.Idle = soon }, nil},
		{Lost, func(*Request) {}, func(w *world, l *Lease) { w.host.Kill(l.ID) }},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.start(t)
			l := s.acquire(t, c.change)
			if c.then != nil {
				c.then(w, l)
			}
			eventually(t, "the lease ended", func() bool { return s.row(t, l.ID).State == store.Gone })
			if got := s.row(t, l.ID).Reason; got != c.reason {
				t.Fatalf("the lease ended as %q, want %q", got, c.reason)
			}
		})
	}
}

func TestWorkspaceIsHeldUntilSandboxIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	with := func(r *Request) { r.Lease.Workspace = "w" }
	l := s.acquire(t, with)
	if _, ok := w.host.Bound(l.ID); !ok {
		t.Fatal("the workspace is not bound, want it bound")
	}
	if _, err := s.tryAcquire(t.Context(), with); !errdefs.IsUnavailable(err) {
		t.Fatalf("Acquire by a second writer: %v, want Unavailable", err)
	}
	w.host.SetHook(fake.Fail(errors.New("the engine says no"), 1, fake.OpDestroy))
	if err := s.End(t.Context(), l, Removed, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a first attempt failed", func() bool { return s.Broken() == 1 || s.row(t, l.ID).State == store.Gone })
	eventually(t, "the sweep removed it", func() bool { return s.row(t, l.ID).State == store.Gone })
	s.acquire(t, with)
}

func TestFailedBindLeavesNothing(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.host.SetHook(fake.Fail(errors.New("no mount today"), 1, fake.OpBind))
	if _, err := s.tryAcquire(t.Context(), func(r *Request) { r.Lease.Workspace = "w" }); err == nil {
		t.Fatal("Acquire with a failed bind succeeded, want an error")
	}
	eventually(t, "the sandbox is gone and the workspace free", func() bool {
		got, err := s.volumes.Get("w")
		return err == nil && len(got.Leases) == 0 && len(s.liveLeases()) == 0
	})
}

func TestHandOverKeepsLeasesAndWarmSandboxes(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	l := s.acquire(t, func(r *Request) { r.Env = map[string]string{"A": "b"} })
	eventually(t, "one is warm", func() bool { return s.Pools()[0].Warm == 1 })
	before := len(w.host.Created())
	s.stop()
	if len(w.host.IDs()) != 2 {
		t.Fatalf("sandboxes = %v, want 2", w.host.IDs())
	}
	s = w.start(t)
	got, err := s.Lease(t.Context(), "me", l.ID)
	if err != nil {
		t.Fatal(err)
	}
	use, err := got.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p, err := use.Ping(t.Context()); err != nil || !p.Claimed {
		t.Fatalf("Ping = %+v, %v; want a claimed guest", p, err)
	}
	use.Leave()
	if st := s.Pools()[0]; st.Warm != 1 || st.Leased != 1 || len(w.host.Created()) != before {
		t.Fatalf("pool = %+v, %d sandboxes created; want 1 warm, 1 leased and 0 created",
			st, len(w.host.Created())-before)
	}
}

func TestOtherBuildReplacesWarmSandboxes(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	eventually(t, "one is warm", func() bool { return s.Pools()[0].Warm == 1 })
	old := w.host.IDs()[0]
	s.stop()
	s = w.start(t, func(o *Options) { o.Build = "newer" })
	eventually(t, "a new one is warm", func() bool { return s.Pools()[0].Warm == 1 })
	for _, id := range w.host.IDs() {
		if id == old {
			t.Fatalf("sandbox %s of the old build exists, want it replaced", id)
		}
	}
}

func TestRecoverAfterCrash(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	kept, lost, half := s.acquire(t), s.acquire(t), s.acquire(t)
	s.stop()
	w.host.Vanish(lost.ID)
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	// A stored sandbox whose container was never created, and an unknown container.
	if err := st.Insert(t.Context(), store.Sandbox{ID: "intended1", State: store.Creating, Template: "default",
		Runtime: "fake", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	orphan := runtime.Spec{
		ID:       "orphan-00",
		Owner:    st.Owner(),
		Template: "default",
		Image:    runtime.Image{ID: "sha256:1"},
		Limits:   runtime.Limits{}.WithDefaults(),
	}
	if _, err := fake.New(fake.Options{Host: w.host}).Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Update(t.Context(), half.ID, func(b *store.Sandbox) error { b.State = store.Stopping; return nil }); err != nil {
		t.Fatal(err)
	}
	st.Close()
	s = w.start(t)
	if _, err := s.Lease(t.Context(), "me", kept.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is settled", func() bool {
		return s.row(t, lost.ID).State == store.Gone && s.row(t, half.ID).State == store.Gone &&
			s.row(t, "intended1").State == store.Failed
	})
	if got := s.row(t, lost.ID).Reason; got != Lost {
		t.Fatalf("the lost lease ended as %q, want %q", got, Lost)
	}
	for _, id := range w.host.IDs() {
		if id == "orphan-00" {
			t.Fatalf("sandboxes = %v, want the orphan removed", w.host.IDs())
		}
	}
}

func TestUnknownLeaseIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(t)
	l := s.acquire(t)
	s.stop()
	w.host.SetHook(fake.Fail(fmt.Errorf("timeout: %w", errdefs.ErrUnavailable), 3, fake.OpAdopt))
	s = w.start(t)
	got, err := s.Lease(t.Context(), "me", l.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.Enter(t.Context()); err != nil && !errdefs.IsUnavailable(err) {
		t.Fatalf("Enter: %v, want success or Unavailable", err)
	}
	eventually(t, "the lease is found again", func() bool {
		use, err := got.Enter(t.Context())
		if err == nil {
			use.Leave()
		}
		return err == nil
	})
}

func TestRecoverRejectsOtherRuntime(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	s.acquire(t)
	s.stop()
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	other := New(Options{Driver: fake.New(fake.Options{Name: "other"}), Store: st, MaxSandboxes: 1})
	if _, err := other.Recover(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("Recover with another driver: %v, want FailedPrecondition", err)
	}
}

func TestMaxSandboxesIsEnforced(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, func(o *Options) { o.MaxSandboxes = 2 })
	a, b := s.acquire(t), s.acquire(t)
	_, err := s.tryAcquire(t.Context(), func(r *Request) { r.Wait = 200 * time.Millisecond })
	if !errdefs.IsUnavailable(err) && !errdefs.IsResourceExhausted(err) {
		t.Fatalf("Acquire on a full host: %v, want Unavailable or ResourceExhausted", err)
	}
	if n := len(w.host.IDs()); n != 2 {
		t.Fatalf("%d sandboxes, want 2", n)
	}
	if err := s.End(t.Context(), a, Removed, true); err != nil {
		t.Fatal(err)
	}
	s.acquire(t)
	_ = b
}
