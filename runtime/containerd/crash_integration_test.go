//go:build integration

package containerd

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// When the daemon is killed, sandboxes and their commands continue, and callers get an error.
func TestDaemonIsKilledAndComesBack(t *testing.T) {
	b := newBench(t)
	kept, removed, ended := b.make(t), b.make(t), b.make(t)
	slow := make(chan string, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { slow <- sh(t, kept, "sleep 2; echo through") })
	daemon(t, "kill")
	up := sync.OnceFunc(func() { daemon(t, "up") })
	defer up()
	wantAlive(t, kept)
	if err := kept.Bind(t.Context(), runtime.Binding{Source: t.TempDir()}); err != nil {
		t.Errorf("bind without the daemon: %v", err)
	}
	var asking sync.WaitGroup // in parallel: each call waits for the daemon
	for what, ask := range map[string]func() error{
		"list":           func() error { return second(b.List(t.Context(), owner)) },
		"adopt":          func() error { return second(b.Adopt(t.Context(), "nobody-knows-it")) },
		"create":         func() error { return second(b.Create(t.Context(), b.spec())) },
		"prepare":        func() error { return b.Prepare(t.Context(), b.image) },
		"remove":         func() error { return b.Remove(t.Context(), removed.ID()) },
		"remove unknown": func() error { return b.Remove(t.Context(), "nobody-knew-it") },
		"a new driver": func() error {
			return second(New(t.Context(), Options{Address: daemonSocket, StateDir: b.state, GuestPath: b.guest}))
		},
	} {
		asking.Go(func() {
			if err := ask(); !errdefs.IsUnavailable(err) {
				t.Errorf("%s without the daemon: %v, want Unavailable", what, err)
			}
		})
	}
	asking.Wait()
	if err := unix.Kill(ended.Init.Pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	wantDone(t, ended) // needs no daemon
	up()
	if got := <-slow; got != "through\n" {
		t.Errorf("output of the command that ran without the daemon = %q, want %q", got, "through\n")
	}
	b.eventually(t, "the driver notices that the daemon is back",
		func() bool { _, err := b.List(t.Context(), owner); return err == nil })
	wantAlive(t, kept)
	if err := kept.Release(); err != nil {
		t.Error(err)
	}
	next := b.another(t)
	defer next.Close()
	adopted, err := next.Adopt(t.Context(), kept.ID())
	if err != nil {
		t.Fatal(err)
	}
	wantAlive(t, adopted)
	if _, err := next.Adopt(t.Context(), ended.ID()); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of a sandbox that ended without the daemon: %v, want NotFound", err)
	}
	if err := adopted.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	for _, s := range []*ocidriver.Sandbox{removed, ended} {
		if err := b.Remove(t.Context(), s.ID()); err != nil {
			t.Error(err)
		}
		b.wantNothingLeft(t, s.ID())
	}
	b.wantNothingLeft(t, kept.ID())
}

func second[T any](_ T, err error) error { return err }

// eventually waits until ok returns true.
func (b bench) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s, want: %s", patience, what)
		}
	}
}

// If the daemon dies during Create, its leftovers are removed when it is back.
func TestDaemonIsKilledInTheMiddleOfCreate(t *testing.T) {
	b := newBench(t)
	failed := 0
	for _, after := range []time.Duration{
		time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 35 * time.Millisecond, 60 * time.Millisecond,
		100 * time.Millisecond,
	} {
		t.Run(after.String(), func(t *testing.T) {
			spec := b.spec()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			pid, err := peerOf(ctx, daemonSocket)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() { _, err = b.Create(ctx, spec) })
			time.Sleep(after)
			// Without the script, which takes as long as Create.
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if err != nil {
				failed++
			}
			back := func() {
				daemon(t, "up")
				b.eventually(t, "the driver notices that the daemon is back",
					func() bool { _, err := b.List(t.Context(), owner); return err == nil })
			}
			back()
			t.Logf("the call said: %v", err)
			for range 2 {
				if err := b.Remove(t.Context(), spec.ID); err != nil {
					t.Fatal(err)
				}
			}
			// containerd 1.6 does not clean up a bundle without a file "runtime" at its start. The
			// bundle has no shim and is removed at the next start, when no record names it any more.
			bundle := filepath.Join(daemonTasks, b.namespace, spec.ID)
			if ocidriver.Exists(bundle) && !ocidriver.Exists(filepath.Join(bundle, "runtime")) && len(b.shimsOf(spec.ID)) == 0 {
				t.Log("the daemon could not clear away what it had begun")
				daemon(t, "kill")
				back()
			}
			b.wantNothingLeft(t, spec.ID)
		})
	}
	if failed == 0 {
		t.Error("the daemon was killed 0 times in the middle of Create, want at least once")
	}
}

func TestShimIsKilled(t *testing.T) {
	for what, alone := range map[string]bool{"alone": true, "with the daemon": false} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t)
			s := b.make(t)
			shims := b.shimsOf(s.ID())
			if len(shims) != 1 {
				t.Fatalf("shims = %v, want one", shims)
			}
			if !alone {
				daemon(t, "kill")
				defer daemon(t, "up")
			}
			if err := unix.Kill(shims[0], unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if !alone {
				wantAlive(t, s) // only its parent is gone
				daemon(t, "up")
				b.eventually(t, "the driver notices that the daemon is back",
					func() bool { _, err := b.List(t.Context(), owner); return err == nil })
			}
			wantDone(t, s) // the daemon ends a sandbox without a shim
			for range 2 {
				if err := b.Remove(t.Context(), s.ID()); err != nil {
					t.Fatal(err)
				}
			}
			b.wantNothingLeft(t, s.ID())
		})
	}
}

// A stopped shim does not answer, but its sandbox can be removed.
func TestShimThatHangs(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	for _, pid := range b.shimsOf(s.ID()) {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	d := b.another(t)
	defer d.Close()
	var asking sync.WaitGroup // in parallel: each call waits for the shim
	asking.Go(func() {
		if _, err := d.Adopt(t.Context(), s.ID()); !errdefs.IsUnavailable(err) {
			t.Errorf("Adopt: %v, want Unavailable", err)
		}
	})
	asking.Go(func() {
		if got, err := d.List(t.Context(), owner); err != nil || len(got) != 1 || !got[0].Running {
			t.Errorf("List = %+v, %v; want one that runs and no error", got, err)
		}
	})
	asking.Wait()
	if err := d.Remove(t.Context(), s.ID()); err != nil {
		t.Error(err)
	}
	wantDone(t, s)
	if err := s.Release(); err != nil {
		t.Error(err)
	}
	b.wantNothingLeft(t, s.ID())
}
