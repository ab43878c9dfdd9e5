//go:build integration

package containerd

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// gvisorSpec returns a spec of class gvisor, which needs more memory.
func (b bench) gvisorSpec() runtime.Spec {
	spec := b.spec()
	spec.Class, spec.Limits.MemoryBytes = runtime.ClassGVisor, 512<<20
	return spec
}

func (b bench) makeGVisor(t *testing.T) *ocidriver.Sandbox {
	t.Helper()
	s, err := b.Create(t.Context(), b.gvisorSpec())
	if err != nil {
		t.Fatal(err)
	}
	return s.(*ocidriver.Sandbox)
}

// members returns the processes in a sandbox's cgroups. Each must be in all of them.
func members(t *testing.T, id string) (pids []int) {
	t.Helper()
	dirs, err := ocidriver.CgroupsOf(id)
	if err != nil {
		t.Fatal(err)
	}
	for i, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue // ended in between
		}
		var in []int
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				in = append(in, pid)
			}
		}
		if i == 0 || len(in) < len(pids) {
			pids = in
		}
	}
	return pids
}

// wantGone fails the test for each process that still exists. The daemon may have ended the others,
// not the driver.
func (b bench) wantGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if _, err := ocidriver.StartTime(pid); err == nil {
			t.Errorf("process %d exists, want it gone", pid)
		}
	}
}

func (b bench) removeTwice(t *testing.T, s *ocidriver.Sandbox) {
	t.Helper()
	for range 2 {
		if err := b.Remove(t.Context(), s.ID()); err != nil {
			t.Fatal(err)
		}
	}
	b.wantNothingLeft(t, s.ID())
}

func TestGVisor(t *testing.T) {
	b := newBench(t)
	if err := b.Why(runtime.ClassGVisor); err != nil {
		t.Fatal(err)
	}
	t.Run("is adopted and removed", func(t *testing.T) { gvisorAdopted(t, b) })
	t.Run("its kernel is killed", func(t *testing.T) {
		s := b.makeGVisor(t)
		in := members(t, s.ID())
		if err := unix.Kill(s.Init.Pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wantDone(t, s)
		b.removeTwice(t, s)
		b.wantGone(t, in)
	})
	t.Run("its file server is killed", func(t *testing.T) { gvisorFileServerKilled(t, b) })
	t.Run("its shim is killed", func(t *testing.T) {
		s := b.makeGVisor(t)
		in := members(t, s.ID())
		for _, pid := range b.shimsOf(s.ID()) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		wantDone(t, s) // the daemon ends a sandbox without a shim
		b.removeTwice(t, s)
		b.wantGone(t, in)
	})
	t.Run("the daemon is killed and comes back", func(t *testing.T) {
		s := b.makeGVisor(t)
		daemon(t, "kill")
		up := sync.OnceFunc(func() { daemon(t, "up") })
		defer up()
		wantAlive(t, s)
		up()
		b.eventually(t, "the driver notices that the daemon is back",
			func() bool { _, err := b.List(t.Context(), owner); return err == nil })
		wantAlive(t, s)
		in := members(t, s.ID())
		b.removeTwice(t, s)
		b.wantGone(t, in)
	})
	t.Run("is killed in the middle of Create", func(t *testing.T) { gvisorKilledInCreate(t, b) })
}

// gvisorAdopted hands a sandbox to a second driver, which destroys it: nothing must be left.
func gvisorAdopted(t *testing.T, b bench) {
	t.Helper()
	s := b.makeGVisor(t)
	wantAlive(t, s)
	in := members(t, s.ID())
	if len(in) < 2 { // its kernel and its file server
		t.Errorf("processes in its cgroups = %v, want at least two", in)
	}
	if err := s.Bind(t.Context(), runtime.Binding{Source: t.TempDir()}); !errdefs.IsNotImplemented(err) {
		t.Errorf("Bind: %v, want NotImplemented", err)
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
	if err := next.Bind(t.Context(), runtime.Binding{Source: t.TempDir()}); !errdefs.IsNotImplemented(err) {
		t.Errorf("Bind after Adopt: %v, want NotImplemented", err)
	}
	if err := next.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	wantDone(t, next)
	b.wantGone(t, in)
	b.wantNothingLeft(t, s.ID())
}

// gvisorFileServerKilled kills a sandbox's file server and removes the sandbox: nothing may remain.
func gvisorFileServerKilled(t *testing.T, b bench) {
	t.Helper()
	s := b.makeGVisor(t)
	in := members(t, s.ID())
	for _, pid := range in {
		if text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err == nil &&
			strings.Contains(string(text), "gofer") {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	b.removeTwice(t, s)
	b.wantGone(t, in)
}

// gvisorKilledInCreate kills each process at any time during a Create: nothing must be left.
func gvisorKilledInCreate(t *testing.T, b bench) {
	t.Helper()
	for what, prey := range map[string]func(id string) []int{
		"shim":                        b.shimsOf,
		"launcher, or what it became": func(id string) []int { return members(t, id) },
	} {
		failed := 0
		for _, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond,
			150 * time.Millisecond} {
			t.Run(what+" after "+after.String(), func(t *testing.T) {
				spec := b.gvisorSpec()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var wg sync.WaitGroup
				var err error
				wg.Go(func() { _, err = b.Create(ctx, spec) })
				b.eventually(t, "there is something to kill", func() bool { return len(prey(spec.ID)) > 0 })
				time.Sleep(after)
				for _, pid := range prey(spec.ID) {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
				wg.Wait()
				t.Logf("the call said: %v", err)
				if err != nil {
					failed++
					b.wantNothingLeft(t, spec.ID)
				}
				for range 2 {
					if err := b.Remove(t.Context(), spec.ID); err != nil {
						t.Fatal(err)
					}
				}
				b.wantNothingLeft(t, spec.ID)
			})
		}
		if failed == 0 {
			t.Errorf("%s: killed 0 times in the middle of Create, want at least once", what)
		}
	}
}
