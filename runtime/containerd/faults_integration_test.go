//go:build integration && faults

package containerd

import (
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// crashVar is the variable with the crash for the process that dies.
const crashVar = "ORCHESTRATOR_TEST_CONTAINERD_CRASH"

// crash describes the sandbox that the process which dies creates.
type crash struct {
	State, Guest string
	Spec         runtime.Spec
}

// TestCrashProcess is the process that TestCrashAnywhere starts, not a test: it prepares an image,
// creates and destroys a sandbox, and dies in between.
func TestCrashProcess(t *testing.T) {
	text := os.Getenv(crashVar)
	if text == "" {
		return
	}
	var c crash
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	d, err := New(t.Context(),
		Options{Address: daemonSocket, StateDir: c.State, GuestPath: c.Guest, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Prepare(t.Context(), c.Spec.Image); err != nil {
		t.Fatal(err)
	}
	s, err := d.Create(t.Context(), c.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// die runs another process that dies at a failpoint.
func (b bench) die(t *testing.T, point string, spec runtime.Spec) {
	t.Helper()
	text, err := json.Marshal(crash{State: b.state, Guest: b.guest, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashProcess$")
	cmd.Env = append(os.Environ(), failpoint.Env+"="+point, crashVar+"="+string(text))
	out, err := cmd.CombinedOutput()
	if status, ok := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); !ok || status.Signal() != unix.SIGKILL {
		t.Fatalf("the process ended with %v, want SIGKILL at %s\n%s", err, point, out)
	}
}

func TestCrashAnywhere(t *testing.T) {
	for point, adoptable := range map[string]bool{
		"containerd.create.intent": false, "containerd.create.cell": false, "containerd.create.made": false,
		"containerd.create.started":  true,
		"containerd.create.attached": true, "containerd.destroy.killed": false, "containerd.destroy.task": false,
		"containerd.destroy.cell": false,
	} {
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			spec := b.spec()
			b.die(t, point, spec)
			found, err := b.List(t.Context(), owner)
			if err != nil || len(found) != 1 || found[0].ID != spec.ID {
				t.Fatalf("List = %+v, %v; want only %s and no error", found, err, spec.ID)
			}
			if found[0].Running != adoptable {
				t.Errorf("running = %v, want %v", found[0].Running, adoptable)
			}
			s, err := b.Adopt(t.Context(), spec.ID)
			if (err == nil) != adoptable {
				t.Errorf("Adopt: %v; want success: %v", err, adoptable)
			}
			if err == nil {
				wantAlive(t, s)
			}
			for range 2 {
				if err := b.Remove(t.Context(), spec.ID); err != nil {
					t.Fatal(err)
				}
			}
			b.wantNothingLeft(t, spec.ID)
		})
	}
}

// If a process dies while it prepares an image, the next one completes the image.
func TestCrashWhilePreparing(t *testing.T) {
	for _, point := range []string{"containerd.prepare.layers", "containerd.prepare.root"} {
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			if err := b.Forget(t.Context(), b.image); err != nil {
				t.Fatal(err)
			}
			b.die(t, point, b.spec())
			s := b.make(t)
			wantAlive(t, s)
			if err := s.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
