//go:build integration

package docker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestSandboxLivesAndLeavesNothing(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			d := h.open(t, mode)
			s := h.spec(t)
			box := create(t, d, s)
			if box.ID() != s.ID {
				t.Errorf("ID = %s, want %s", box.ID(), s.ID)
			}
			found, err := d.List(t.Context(), s.Owner)
			if want := (runtime.Found{ID: s.ID, Template: "default", Build: "test", Running: true}); err != nil ||
				!slices.Equal(found, []runtime.Found{want}) {
				t.Errorf("List = %+v, %v; want %+v and no error", found, err, want)
			}
			if got := ids(t, d, "someone-else"); len(got) != 0 {
				t.Errorf("List of another owner = %q, want nothing", got)
			}
			walls(t, box, s)
			if _, err := d.Create(t.Context(), s); !errdefs.IsAlreadyExists(err) {
				t.Errorf("Create of the same id: %v, want AlreadyExists", err)
			}
			if _, err := d.Adopt(t.Context(), s.ID); !errdefs.IsAlreadyExists(err) {
				t.Errorf("Adopt of a sandbox in use: %v, want AlreadyExists", err)
			}
			ask(t, box, "/proc/self/status") // the failed calls did not change it
			for range 2 {
				if err := box.Destroy(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			ended(t, box)
			if _, err := box.Open(t.Context()); !errdefs.IsUnavailable(err) {
				t.Errorf("Open of a destroyed sandbox: %v, want Unavailable", err)
			}
			nothingLeft(t, d, s)
			for range 2 {
				if err := d.Remove(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := d.Adopt(t.Context(), s.ID); !errdefs.IsNotFound(err) {
				t.Errorf("Adopt of a destroyed sandbox: %v, want NotFound", err)
			}
		})
	}
}

func walls(t *testing.T, box *Sandbox, s runtime.Spec) {
	t.Helper()
	status := ask(t, box, "/proc/self/status")
	for _, line := range []string{"CapBnd:\t00000000000000e0", "CapEff:\t00000000000000e0", "CapInh:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line+"\n") {
			t.Errorf("status lacks %q, want it in\n%s", line, status)
		}
	}
	// PATH and LANG, the engine's HOSTNAME and HOME, the shell's PWD
	if env := strings.Split(strings.Trim(ask(t, box, "/proc/1/environ"), "\x00"), "\x00"); len(env) > 5 {
		t.Errorf("environment of PID 1 = %q, want at most 5 variables", env)
	}
	if dev := ask(t, box, "/proc/net/dev"); strings.Count(dev, ":") != 1 || !strings.Contains(dev, "lo:") {
		t.Errorf("interfaces, want only lo:\n%s", dev)
	}
	for _, path := range []string{"/x", "/etc/x", wire.RunDir + "/x", "/proc/sys/kernel/msgmni"} {
		if got := ask(t, box, "write "+path); got == "write: <nil>" {
			t.Errorf("write to %s succeeded, want an error", path)
		}
	}
	for _, path := range []string{"/tmp/x", wire.Workspace + "/x", "/run/x"} {
		got := ask(t, box, "write "+path)
		// The stand-in is root without CAP_DAC_OVERRIDE, so it may not write to /workspace.
		if path != wire.Workspace+"/x" && got != "write: <nil>" {
			t.Errorf("write to %s: %s, want no error", path, got)
		}
	}
	mounts := ask(t, box, "/proc/self/mountinfo")
	for _, at := range []string{"/tmp", "/home/user", "/run", wire.RunDir, wire.Workspace, "/dev/shm"} {
		if !strings.Contains(mounts, " "+at+" ") {
			t.Errorf("%s is not a mount, want it in\n%s", at, mounts)
		}
	}
	if !strings.Contains(mounts, "size=65536k") || s.Limits.TmpBytes != 0 {
		t.Errorf("/tmp limit %d; want the default, and a file system of 64 MiB in\n%s", s.Limits.TmpBytes, mounts)
	}
	if got := ask(t, box, "/proc/self/limits"); !strings.Contains(got,
		"Max open files            4096                 4096") {
		t.Errorf("limits, want 4096 open files:\n%s", got)
	}
}

func TestKilledPIDOneIsSeenAndRemoved(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			d := h.open(t, mode)
			s := h.spec(t)
			box := create(t, d, s)
			got, err := d.api.ContainerInspect(t.Context(), containerName(s.ID), client.ContainerInspectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p, err := openProcess(got.Container.State.Pid, got.Container.ID, got.Container.ID)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			p.Close()
			ended(t, box)
			if got := ids(t, d, s.Owner); !slices.Equal(got, []string{s.ID}) {
				t.Errorf("listed after its death = %q, want %q", got, s.ID)
			}
			if err := box.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, d, s)
		})
	}
}

func TestADeadSandboxIsNotAdoptedButRemoved(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeLocal)
	s := h.spec(t)
	box := create(t, d, s)
	if err := box.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.ContainerKill(t.Context(), containerName(s.ID), client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(60 * time.Second)
	for {
		again, err := d.Adopt(t.Context(), s.ID)
		if errdefs.IsNotFound(err) {
			break
		}
		// The engine may notice the death later than the kernel.
		if err == nil {
			err = again.Release()
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("Adopt of a dead sandbox: %v, want NotFound", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := d.Remove(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, d, s)
}

func TestNextProcessAdopts(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			first := h.open(t, mode)
			s := h.spec(t)
			box := create(t, first, s)
			ask(t, box, "write /tmp/kept")
			if err := errors.Join(box.Release(), first.Close()); err != nil {
				t.Fatal(err)
			}
			next := h.open(t, ModeAuto)
			adopted, err := next.Adopt(t.Context(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			if got := ask(t, adopted, "/tmp/kept"); got != "x" {
				t.Errorf("kept file = %q, want %q", got, "x")
			}
			if err := adopted.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			ended(t, adopted)
			nothingLeft(t, next, s)
		})
	}
}

func TestRemoveWorksFromEveryState(t *testing.T) {
	h := newHost(t)
	for _, mode := range modes {
		d := h.open(t, mode)
		img := h.image(t)
		if err := d.Prepare(t.Context(), img); err != nil {
			t.Fatal(err)
		}
		known, err := d.prepared(t.Context(), img)
		if err != nil {
			t.Fatal(err)
		}
		for state, until := range map[string]int{"noted": 0, "created": 1, "running": 2, "released": 3} {
			t.Run(mode+" "+state, func(t *testing.T) {
				s := h.spec(t)
				s.Limits = s.Limits.WithDefaults()
				if err := d.writeNote(s); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Remove(context.WithoutCancel(t.Context()), s.ID) })
				box := newSandbox(d, s.ID, mode, "")
				steps := []func() error{
					func() error { return box.make(t.Context(), s, known) },
					func() error { return box.start(t.Context()) },
					func() error { return box.attach(t.Context(), s.Limits) },
				}
				for _, step := range steps[:until] {
					if err := step(); err != nil {
						t.Fatal(err)
					}
				}
				<-box.turn
				// As after a crash: this process holds nothing.
				if err := box.Release(); err != nil {
					t.Fatal(err)
				}
				if got := ids(t, d, s.Owner); !slices.Equal(got, []string{s.ID}) {
					t.Errorf("listed = %q, want %q", got, s.ID)
				}
				if err := d.Remove(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
				nothingLeft(t, d, s)
			})
		}
	}
}

func TestACreateThatFailsLeavesNothing(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			d := h.open(t, mode)
			s := h.spec(t)
			if err := d.Prepare(t.Context(), s.Image); err != nil {
				t.Fatal(err)
			}
			s.Entrypoint = []string{"/no/such/entrypoint"}
			if _, err := d.Create(t.Context(), s); err == nil {
				t.Error("Create with an entrypoint that does not exist succeeded, want error")
			}
			nothingLeft(t, d, s)
			s.Entrypoint = nil
			cut, cancel := context.WithTimeoutCause(t.Context(), 15*time.Millisecond, errors.New("cut short"))
			defer cancel()
			if _, err := d.Create(cut, s); err == nil {
				t.Error("Create that was cut short succeeded, want error")
			}
			nothingLeft(t, d, s)
		})
	}
}

func TestWorkspaceAppearsInARunningSandbox(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeAuto)
	box := create(t, d, h.spec(t))
	source := filepath.Join(h.dir, "workspace")
	if err := errors.Join(os.Mkdir(source, 0o755),
		os.WriteFile(filepath.Join(source, "f"), []byte("hello"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := box.Bind(t.Context(), runtime.Binding{Source: source, ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, box, wire.Workspace+"/f"); got != "hello" {
		t.Errorf("file of the workspace = %q, want %q", got, "hello")
	}
	if got := ask(t, box, "write "+wire.Workspace+"/g"); !strings.Contains(got, "read-only") {
		t.Errorf("write to a read-only workspace: %q, want %q in it", got, "read-only")
	}
	if err := box.Unbind(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, box, wire.Workspace+"/f"); !strings.Contains(got, "no such file") {
		t.Errorf("file of the workspace after Unbind = %q, want %q in it", got, "no such file")
	}
	if mounts := ask(t, box, "/proc/self/mountinfo"); !strings.Contains(mounts, wire.CgroupDir+"/") {
		t.Errorf("no cgroup is bound, want %s/ in\n%s", wire.CgroupDir, mounts)
	}
}
