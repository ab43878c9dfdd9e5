//go:build integration

package containerd

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestListAdoptAndRemoveTwice(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	want := runtime.Found{ID: s.ID(), Template: "base", Build: "test", Running: true}
	if got, err := b.List(t.Context(), owner); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("List = %+v, %v; want %+v and no error", got, err, want)
	}
	if got, err := b.List(t.Context(), "somebody-else"); err != nil || len(got) != 0 {
		t.Errorf("List of another owner = %+v, %v; want none and no error", got, err)
	}
	if _, err := b.Adopt(t.Context(), s.ID()); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Adopt of a sandbox in use: %v, want AlreadyExists", err)
	}
	again := b.spec()
	again.ID = s.ID()
	if _, err := b.Create(t.Context(), again); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Create of the same id: %v, want AlreadyExists", err)
	}
	wantAlive(t, s)
	if _, err := b.Adopt(t.Context(), "not-there"); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of an unknown id: %v, want NotFound", err)
	}
	dir := t.TempDir()
	if err := s.Bind(t.Context(), runtime.Binding{Source: dir}); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	d := b.another(t)
	defer d.Close()
	next, err := d.Adopt(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	wantAlive(t, next)
	if err := next.Unbind(t.Context()); err != nil {
		t.Errorf("unbind what the other bound: %v", err)
	}
	for range 2 {
		if err := errors.Join(next.Destroy(t.Context()), d.Remove(t.Context(), s.ID())); err != nil {
			t.Error(err)
		}
	}
	wantDone(t, next)
	b.wantNothingLeft(t, s.ID())
	if _, err := d.Adopt(t.Context(), s.ID()); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of a removed sandbox: %v, want NotFound", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the workspace: %v", err)
	}
}

func TestEndOfTheFirstProcess(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	wantAlive(t, s)
	if err := unix.Kill(s.Init.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantDone(t, s)
	if _, err := s.Open(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("Open of an ended sandbox: %v, want Unavailable", err)
	}
	if err := s.Release(); err != nil {
		t.Error(err)
	}
	if _, err := b.Adopt(t.Context(), s.ID()); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of an ended sandbox: %v, want NotFound", err)
	}
	if err := b.Remove(t.Context(), s.ID()); err != nil {
		t.Error(err)
	}
	b.wantNothingLeft(t, s.ID())
}

func TestCreateThatFailsLeavesNothing(t *testing.T) {
	b := newBench(t)
	for what, c := range map[string]struct {
		entrypoint []string
		says       string
	}{
		"an entrypoint that is not there": {[]string{"/no/such/entrypoint"}, "/no/such/entrypoint"},
		"an entrypoint that ends":         {[]string{"/bin/sh", "-c", "exit 73"}, "ended"},
	} {
		t.Run(what, func(t *testing.T) {
			spec := b.spec()
			spec.Entrypoint = c.entrypoint
			s, err := b.Create(t.Context(), spec)
			if err == nil {
				// It ended after Create returned: the first Open reports it.
				_, err = s.Open(t.Context())
				if derr := s.Destroy(t.Context()); derr != nil {
					t.Error(derr)
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %v, want it to say %q", err, c.says)
			}
			b.wantNothingLeft(t, spec.ID)
		})
	}
}

func TestCreateThatIsCancelledLeavesNothing(t *testing.T) {
	b := newBench(t)
	for _, after := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 15 * time.Millisecond,
		30 * time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond, 200 * time.Millisecond} {
		spec := b.spec()
		ctx, cancel := context.WithTimeout(t.Context(), after)
		s, err := b.Create(ctx, spec)
		cancel()
		if err == nil {
			err = s.Destroy(t.Context())
		} else if errors.Is(err, context.DeadlineExceeded) || errdefs.IsDeadlineExceeded(err) {
			err = nil
		}
		if err != nil {
			t.Errorf("Create cancelled after %s: %v, want DeadlineExceeded or no error", after, err)
		}
		b.wantNothingLeft(t, spec.ID)
	}
}

func TestSandboxesInParallel(t *testing.T) {
	b := newBench(t)
	var wg sync.WaitGroup
	for range 4 {
		spec := b.spec()
		wg.Go(func() {
			s, err := b.Create(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if err := s.Destroy(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			b.wantNothingLeft(t, spec.ID)
		})
	}
	wg.Wait()
}

// A run directory that is unknown to the daemon, for example after lost records, is removed.
func TestRunDirWithoutARecordIsFound(t *testing.T) {
	b := newBench(t)
	spec := b.spec()
	c, err := rundir.Make(t.Context(), b.RunDirOptions(spec.ID, spec.Limits))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := b.List(t.Context(), owner); err != nil || len(got) != 1 || got[0].ID != spec.ID || got[0].Running {
		t.Errorf("List = %+v, %v; want only %s, not running, and no error", got, err, spec.ID)
	}
	if err := b.Remove(t.Context(), spec.ID); err != nil {
		t.Error(err)
	}
	b.wantNothingLeft(t, spec.ID)
}

// collect runs the daemon's garbage collection.
func (b bench) collect(t *testing.T) {
	t.Helper()
	l, err := b.api.LeasesService().Create(t.Context(), leases.WithRandomID())
	if err == nil {
		err = b.api.LeasesService().Delete(t.Context(), l, leases.SynchronousDelete)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRootOfALiveSandboxStaysAndThenGoes(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	if err := b.Forget(t.Context(), b.image); err != nil {
		t.Fatal(err)
	}
	b.collect(t)
	snaps := b.api.SnapshotService(b.snapshotter)
	if _, err := snaps.Stat(t.Context(), viewName(b.image)); err != nil {
		t.Errorf("the root of a live sandbox: %v", err)
	}
	if got := sh(t, s, "ls /usr/bin | wc -l"); got == "0\n" {
		t.Error("the root of the sandbox is empty, want the image's files")
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.collect(t)
	for _, name := range []string{viewName(b.image), rootName(b.image)} {
		if _, err := snaps.Stat(t.Context(), name); !errdefs.IsNotFound(err) {
			t.Errorf("Stat of the snapshot %s: %v, want NotFound", name, err)
		}
	}
	// A caller that does not know of the removal still gets a sandbox.
	s = b.make(t)
	wantAlive(t, s)
	b.collect(t)
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.collect(t)
	if _, err := snaps.Stat(t.Context(), viewName(b.image)); err != nil {
		t.Errorf("a prepared root without sandboxes: %v", err)
	}
}
