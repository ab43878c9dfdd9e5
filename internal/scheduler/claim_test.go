package scheduler

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// claimDriver is a fake cluster whose default template has volume claims.
type claimDriver struct {
	*fake.Driver

	mu      sync.Mutex
	fail    error
	created []runtime.Claim
	removed []string
}

func (d *claimDriver) ClaimBytes(template string) int64 {
	if template == "default" {
		return 1 << 30
	}
	return 0
}

func (d *claimDriver) RemoveClaim(_ context.Context, workspace string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removed = append(d.removed, workspace)
	return nil
}

func (d *claimDriver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	d.mu.Lock()
	if spec.Claim != nil {
		d.created = append(d.created, *spec.Claim)
	}
	fail := d.fail
	d.mu.Unlock()
	if spec.Claim != nil && fail != nil {
		return nil, fail
	}
	return d.Driver.Create(ctx, spec)
}

func (d *claimDriver) setFail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

// claims returns the claims of the sandboxes that were created.
func (d *claimDriver) claims() []runtime.Claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.created
}

func (w *world) startWithClaims(t *testing.T) (*service, *claimDriver) {
	t.Helper()
	caps := runtime.AllYes()
	caps[runtime.CapLateBind] = "no: it is a cluster"
	d := &claimDriver{Driver: fake.New(fake.Options{Host: w.host, Capabilities: caps})}
	s := w.start(t, func(o *Options) {
		o.Driver = d
		plain := o.Templates[0]
		plain.Name, plain.Pool.Min = "plain", 0
		o.Templates = append(o.Templates, plain)
	})
	return s, d
}

func inWorkspace(r *Request) { r.Lease.Workspace = "w" }

// TestLeaseWithClaimGetsItsOwnSandbox checks that the sandbox is created with the volume, that the
// volume has one lease, and that a restart keeps it.
func TestLeaseWithClaimGetsItsOwnSandbox(t *testing.T) {
	w := newWorld(t)
	s, d := w.startWithClaims(t)
	made, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := s.acquire(t, inWorkspace)
	if got := d.claims(); len(got) != 1 || got[0] != (runtime.Claim{Workspace: made.ID, Bytes: 1 << 30}) {
		t.Fatalf("created with claims %+v, want one of workspace %s", got, made.ID)
	}
	if row := s.row(t, l.ID); row.Warm || !row.Lease.Claim || row.Lease.CarryBytes != 0 {
		t.Errorf("row = %+v, want a cold sandbox with a claim and no copy", row)
	}
	var busy *volumes.BusyError
	if _, err := s.tryAcquire(t.Context(), inWorkspace); !errors.As(err, &busy) || busy.Lease != l.ID {
		t.Errorf("second lease: %v, want a BusyError that names %s", err, l.ID)
	}
	s.stop()
	s, d = w.startWithClaims(t)
	l = s.Live(l.ID)
	if l == nil {
		t.Fatal("the lease is lost after a restart")
	}
	if _, err := s.tryAcquire(t.Context(), inWorkspace); !errors.As(err, &busy) {
		t.Errorf("second lease after a restart: %v, want a BusyError", err)
	}
	if err := s.End(t.Context(), l, Removed, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the workspace is free", func() bool { return s.volumes.FreeClaim("w", volumes.ReadWrite) == nil })
	l = s.acquire(t, inWorkspace, func(r *Request) { r.Lease.ReadOnly = true })
	if got := d.claims(); len(got) != 1 || got[0] != (runtime.Claim{Workspace: made.ID, Bytes: 1 << 30, Made: true, ReadOnly: true}) {
		t.Errorf("created with claims %+v, want the read-only one that was made", got)
	}
	if err := s.End(t.Context(), l, Removed, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the workspace is deleted", func() bool { return s.volumes.Delete(t.Context(), "w") == nil })
	if len(d.removed) != 1 || d.removed[0] != made.ID {
		t.Errorf("removed claims %q, want %s", d.removed, made.ID)
	}
}

// TestClaimIsHeldUntilItsSandboxIsRemoved checks that a sandbox that could not be removed keeps the
// workspace, also after a restart: it may have the volume.
func TestClaimIsHeldUntilItsSandboxIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, d := w.startWithClaims(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.host.SetHook(fake.Fail(errors.New("the engine is away"), -1, fake.OpDestroy))
	d.setFail(errdefs.ErrResourceExhausted)
	if _, err := s.tryAcquire(t.Context(), inWorkspace); !errdefs.IsResourceExhausted(err) {
		t.Fatalf("lease that fails: %v, want the driver's error", err)
	}
	var busy *volumes.BusyError
	if err := s.volumes.FreeClaim("w", volumes.ReadWrite); !errors.As(err, &busy) {
		t.Errorf("FreeClaim after a failed removal = %v, want a BusyError", err)
	}
	s.stop()
	s, _ = w.startWithClaims(t)
	if err := s.volumes.FreeClaim("w", volumes.ReadWrite); !errors.As(err, &busy) {
		t.Errorf("FreeClaim after a restart = %v, want a BusyError", err)
	}
	w.host.SetHook(nil)
	eventually(t, "the workspace is free", func() bool { return s.volumes.FreeClaim("w", volumes.ReadWrite) == nil })
	s.acquire(t, inWorkspace)
}

// TestRecoverHoldsClaimOfUnleasedSandbox checks a process that was killed before it recorded a
// lease: the sandbox may have the volume until it is removed.
func TestRecoverHoldsClaimOfUnleasedSandbox(t *testing.T) {
	t.Parallel()
	for _, state := range []store.State{store.Creating, store.Warm} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s, d := w.startWithClaims(t)
			if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			d.setFail(errdefs.ErrResourceExhausted) // records the claim
			if _, err := s.tryAcquire(t.Context(), inWorkspace); !errdefs.IsResourceExhausted(err) {
				t.Fatalf("lease that fails: %v, want the driver's error", err)
			}
			s.stop()
			row := store.Sandbox{
				ID: "unleased-1", State: state, Template: "default", Runtime: d.Name(), Created: time.Now(),
				Lease: store.Lease{Workspace: "w", Claim: true},
			}
			w.crashed(t, func(st *store.Store) {
				if err := st.Insert(t.Context(), row); err != nil {
					t.Fatal(err)
				}
			})
			w.host.SetHook(fake.Fail(errors.New("the engine is away"), -1, fake.OpDestroy))
			s, _ = w.startWithClaims(t)
			var busy *volumes.BusyError
			if err := s.volumes.FreeClaim("w", volumes.ReadWrite); !errors.As(err, &busy) || busy.Lease != row.ID {
				t.Errorf("FreeClaim = %v, want a BusyError that names %s", err, row.ID)
			}
			w.host.SetHook(nil)
			eventually(t, "the workspace is free", func() bool { return s.volumes.FreeClaim("w", volumes.ReadWrite) == nil })
			if got := s.row(t, row.ID); !got.State.Ended() {
				t.Errorf("state of the sandbox = %s, want an ended one", got.State)
			}
		})
	}
}

// TestClaimIsReservedBeforeItIsRecorded checks that a refused reservation records no claim, and
// that a reservation ends after the record.
func TestClaimIsReservedBeforeItIsRecorded(t *testing.T) {
	s, _ := newWorld(t).startWithClaims(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claimed := func() bool {
		got, err := s.volumes.Get("w")
		if err != nil {
			t.Error(err)
		}
		return got.Claim != ""
	}
	refuse := func(r *Request) {
		r.ReserveClaim = func(context.Context, int64) (func(), error) { return nil, errdefs.ErrResourceExhausted }
	}
	if _, err := s.tryAcquire(t.Context(), inWorkspace, refuse); !errdefs.IsResourceExhausted(err) || claimed() {
		t.Errorf("refused reservation: %v, workspace is a claim %t; want ResourceExhausted and no claim", err, claimed())
	}
	var before, after bool
	reserve := func(r *Request) {
		r.ReserveClaim = func(_ context.Context, bytes int64) (func(), error) {
			if before = claimed(); bytes != 1<<30 {
				t.Errorf("ReserveClaim of %d bytes, want %d", bytes, 1<<30)
			}
			return func() { after = claimed() }, nil
		}
	}
	if s.acquire(t, inWorkspace, reserve); before || !after {
		t.Errorf("workspace is a claim at the reservation %t, and at its end %t; want false and true", before, after)
	}
}

func TestNativeLeaseOfClaimIsRefused(t *testing.T) {
	w := newWorld(t)
	s, _ := w.startWithClaims(t)
	r := Request{Caller: "ann", Template: "default", Lease: store.Lease{Workspace: "w"}}
	_, err := s.AcquireQueued(t.Context(), r, Queued{Keep: func() bool { return false }})
	if e, ok := errors.AsType[*usererror.InvalidError](err); !ok || e.Field != "workspace" || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("AcquireQueued with a workspace = %v, want FailedPrecondition of field workspace", err)
	}
}

// TestDestroyAllNeedsNoWorkspaces checks the scheduler of a service that is taken down: it has
// none.
func TestDestroyAllNeedsNoWorkspaces(t *testing.T) {
	w := newWorld(t)
	s, d := w.startWithClaims(t)
	l := s.acquire(t)
	s.stop()
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := New(Options{Driver: d, Store: st}).DestroyAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, err := d.List(t.Context(), st.Owner()); err != nil || len(found) > 0 {
		t.Errorf("after DestroyAll, List = %v, %v; want no sandbox, not even %s", found, err, l.ID)
	}
}

// TestLeaseThatClaimCannotServeIsRefused checks what a claim excludes, and that a failed creation
// leaves the workspace free.
func TestLeaseThatClaimCannotServeIsRefused(t *testing.T) {
	s, d := newWorld(t).startWithClaims(t)
	if _, err := s.volumes.Create(t.Context(), "w", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.setFail(errdefs.ErrResourceExhausted)
	if _, err := s.tryAcquire(t.Context(), inWorkspace); !errdefs.IsResourceExhausted(err) {
		t.Errorf("lease without a volume: %v, want the driver's error", err)
	}
	d.setFail(nil)
	eventually(t, "the workspace is free", func() bool { return s.volumes.FreeClaim("w", volumes.ReadWrite) == nil })
	for name, change := range map[string]func(*Request){
		"overlay":            func(r *Request) { r.Lease.Overlay = true },
		"a template without": func(r *Request) { r.Template = "plain" },
	} {
		if _, err := s.tryAcquire(t.Context(), inWorkspace, change); !errors.As(err, new(*volumes.ClaimError)) {
			t.Errorf("lease with %s: %v, want a ClaimError", name, err)
		}
	}
	refuse := func(r *Request) { r.Mode = pool.Refuse }
	if _, err := s.tryAcquire(t.Context(), inWorkspace, refuse); !errors.As(err, new(*usererror.InvalidError)) {
		t.Errorf("lease that refuses a new sandbox: %v, want an InvalidError", err)
	}
	if l := s.acquire(t); s.row(t, l.ID).Lease.Claim {
		t.Error("a lease without a workspace has a claim")
	}
	eventually(t, "no sandbox is left over", func() bool { return s.Pools()[0].Leased == 1 })
}
