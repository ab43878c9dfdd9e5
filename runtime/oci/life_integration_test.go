//go:build integration

package oci

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestListAdoptAndRemoveTwice(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	pid := s.Init.Pid
	wantInUse(t, b, s)
	dir := t.TempDir()
	if err := s.Bind(t.Context(), runtime.Binding{Source: dir}); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
		t.Error("Done is closed after Close of the driver, want a running sandbox")
	default:
	}

	d := b.another(t)
	defer d.Close()
	again, err := d.Adopt(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := again.(*ocidriver.Sandbox).Init.Pid; got != pid {
		t.Errorf("first process = %d, want %d", got, pid)
	}
	if got := sh(t, again, 1000, "echo here"); got.Output != "here\n" {
		t.Errorf("answer after Adopt = %+v, want the output %q", got, "here\n")
	}
	if err := again.Unbind(t.Context()); err != nil {
		t.Errorf("Unbind of what the other driver bound: %v", err)
	}
	for range 2 {
		if err := again.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if err := d.Remove(t.Context(), s.ID()); err != nil {
			t.Error(err)
		}
	}
	wantDone(t, again)
	wantNoCgroup(t, s.ID())
	if got, err := d.List(t.Context(), owner); err != nil || len(got) != 0 {
		t.Errorf("List after Remove = %+v, %v; want none and no error", got, err)
	}
	if _, err := d.Adopt(t.Context(), s.ID()); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of a removed sandbox: %v, want NotFound", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the workspace: %v", err)
	}
}

// wantInUse checks that a driver lists a sandbox that it holds, and refuses to create or adopt it.
func wantInUse(t *testing.T, b bench, s *ocidriver.Sandbox) {
	t.Helper()
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
	if _, err := b.Create(t.Context(), runtime.Spec{
		ID: s.ID(), Owner: owner, Template: "base", Image: runtime.Image{Root: "/"},
	}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Create of the same id: %v, want AlreadyExists", err)
	}
	if _, err := b.Adopt(t.Context(), "not-there"); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of an unknown id: %v, want NotFound", err)
	}
}

func TestEndOfTheFirstProcess(t *testing.T) {
	b := newBench(t)
	for what, end := range map[string]func(*ocidriver.Sandbox){
		"killed":    func(s *ocidriver.Sandbox) { _ = unix.Kill(s.Init.Pid, unix.SIGKILL) },
		"by itself": func(s *ocidriver.Sandbox) { _, _ = ask(t, s, map[string]any{"end": true}) },
	} {
		t.Run(what, func(t *testing.T) {
			s := b.make(t)
			sh(t, s, 0, "true")
			end(s)
			wantDone(t, s)
			if _, err := s.Open(t.Context()); !errdefs.IsUnavailable(err) {
				t.Errorf("Open of an ended sandbox: %v, want Unavailable", err)
			}
			if got, err := b.List(t.Context(), owner); err != nil || len(got) != 1 || got[0].Running {
				t.Errorf("List = %+v, %v; want one, not running, and no error", got, err)
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
			wantNoCgroup(t, s.ID())
		})
	}
}

// If the orchestrator is PID 1 or a subreaper, it must reap the first processes.
func TestFirstProcessIsReaped(t *testing.T) {
	b := newBench(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	s := b.make(t)
	if err := unix.Kill(s.Init.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantDone(t, s)
	if got, err := startStat(s.Init.Pid); err == nil && strings.Contains(got, "(guest) Z") {
		t.Errorf("state of the first process = %s, want no zombie", got)
	}
}

func TestOpenGivesUpWhenTheSandboxEnds(t *testing.T) {
	b := newBench(t)
	spec := specFor(t)
	spec.Entrypoint = []string{"/bin/sh", "-c", "echo no guest here >&2; exec sleep 600"}
	s, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Open(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open without a guest: %v, want %v", err, context.DeadlineExceeded)
	}
	for end := time.Now().Add(patience); s.(*ocidriver.Sandbox).Stderr.(*words).String() == "" && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := s.Open(context.Background())
		failed <- err
	})
	if err := unix.Kill(s.(*ocidriver.Sandbox).Init.Pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := <-failed; !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "no guest here") {
		t.Errorf("Open while the sandbox ended: %v; want Unavailable with %q", err, "no guest here")
	}
}

func TestCreateThatFailsLeavesNothing(t *testing.T) {
	b := newBench(t)
	for what, c := range map[string]struct {
		entrypoint []string
		says       string
	}{
		"an entrypoint that is not there": {[]string{"/no/such/entrypoint"}, "/no/such/entrypoint"},
		"an entrypoint that ends with words": {[]string{"/bin/sh", "-c", "echo the workspace is odd >&2; exit 73"},
			"the workspace is odd"},
	} {
		t.Run(what, func(t *testing.T) {
			spec := specFor(t)
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
			wantNoCgroup(t, spec.ID)
			b.wantNothingLeft(t)
		})
	}
}

func TestCreateThatIsCancelledLeavesNothing(t *testing.T) {
	b := newBench(t)
	for _, after := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 15 * time.Millisecond,
		30 * time.Millisecond, 60 * time.Millisecond} {
		spec := specFor(t)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		s, err := b.Create(ctx, spec)
		cancel()
		if err == nil {
			err = s.Destroy(t.Context())
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Create that is cancelled after %s: %v, want %v", after, err, context.DeadlineExceeded)
		} else {
			err = nil
		}
		if err != nil {
			t.Errorf("Destroy of the sandbox created within %s: %v", after, err)
		}
		wantNoCgroup(t, spec.ID)
		b.wantNothingLeft(t)
	}
}

func TestSandboxesInParallel(t *testing.T) {
	b := newBench(t)
	var wg sync.WaitGroup
	for range 4 {
		spec := specFor(t)
		wg.Go(func() {
			s, err := b.Create(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			if a, err := ask(t, s, map[string]any{"argv": []string{"/bin/echo", "x"}, "uid": 1000}); err != nil ||
				a.Output != "x\n" {
				t.Errorf("answer = %+v, %v; want the output %q and no error", a, err, "x\n")
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
			wantNoCgroup(t, spec.ID)
		})
	}
	wg.Wait()
	b.wantNothingLeft(t)
}
