//go:build integration && faults

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// envVictim makes a run of the test binary the victim: it creates and destroys the sandbox that the
// variable describes, and dies at a failpoint.
const envVictim = "ORCHESTRATOR_DOCKER_VICTIM"

type victim struct {
	Options Options
	Spec    runtime.Spec
}

func TestVictim(t *testing.T) {
	text := os.Getenv(envVictim)
	if text == "" {
		return // not the victim
	}
	var v victim
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	d, err := New(t.Context(), v.Options)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Prepare(t.Context(), v.Spec.Image); err != nil {
		t.Fatal(err)
	}
	box, err := d.Create(t.Context(), v.Spec)
	if err == nil {
		err = box.Destroy(t.Context())
	}
	t.Fatalf("Create and Destroy: %v; want this process killed at the failpoint", err)
}

func TestLeftoversOfKilledProcessAreRemoved(t *testing.T) {
	for _, mode := range modes {
		killAtEveryPoint(t, mode, runtime.ClassContainer, "create.intent", "create.cell", "create.created", "create.started",
			"create.attached",
			"destroy.killed", "destroy.deleted", "destroy.unmounted")
	}
	killAtEveryPoint(t, ModeLocal, runtime.ClassGVisor, "create.intent", "create.cell", "create.created",
		"create.gvisor.cgroups", "create.started", "create.attached",
		"destroy.killed", "destroy.deleted", "destroy.unmounted")
}

func killAtEveryPoint(t *testing.T, mode string, class runtime.Class, points ...string) {
	t.Helper()
	for _, point := range points {
		t.Run(mode+" "+string(class)+" "+point, func(t *testing.T) {
			h := newHost(t)
			d := h.open(t, mode)
			s := h.spec(t)
			s.Class = class
			if err := d.Why(class); err != nil {
				t.Fatal(err) // the class is tried here, so that the victim does not die in the trial
			}
			text, err := json.Marshal(victim{Options{Host: h.engine, StateDir: h.dir, GuestPath: h.guest, Mode: mode}, s})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Remove(context.WithoutCancel(t.Context()), s.ID) })
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestVictim$")
			cmd.Env = append(os.Environ(), envVictim+"="+string(text), failpoint.Env+"=docker."+point)
			out, err := cmd.CombinedOutput()
			exit := (*exec.ExitError)(nil)
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the victim ended with %v, want SIGKILL at %s\n%s", err, point, out)
			}
			if got := ids(t, d, s.Owner); !slices.Equal(got, []string{s.ID}) {
				t.Errorf("listed after the kill = %q, want %q", got, s.ID)
			}
			if err := d.Remove(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, d, s)
		})
	}
}

// The next process removes an interrupted trial of class gvisor before its first operation.
func TestInterruptedTrialIsRemovedAtNextStart(t *testing.T) {
	for _, point := range []string{"create.created", "create.gvisor.cgroups", "create.started", "destroy.deleted"} {
		t.Run(point, func(t *testing.T) {
			h := newHost(t)
			s := h.spec(t)
			s.Class = runtime.ClassGVisor
			text, err := json.Marshal(victim{Options{Host: h.engine, StateDir: h.dir, GuestPath: h.guest, Mode: ModeLocal}, s})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestVictim$")
			cmd.Env = append(os.Environ(), envVictim+"="+string(text), failpoint.Env+"=docker."+point)
			out, err := cmd.CombinedOutput()
			exit := (*exec.ExitError)(nil)
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the victim ended with %v, want SIGKILL at %s\n%s", err, point, out)
			}
			left, err := filepath.Glob(filepath.Join(h.dir, "docker", "sandboxes", proberPrefix+"*"))
			if err != nil || len(left) != 1 {
				t.Fatalf("notes that the victim left = %q, %v; want one and no error", left, err)
			}
			d := h.open(t, ModeLocal)
			nothingLeft(t, d, runtime.Spec{ID: filepath.Base(left[0]), Owner: d.prober()})
		})
	}
}
