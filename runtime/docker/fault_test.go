//go:build integration && faults

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"orchestrator/internal/fault"
	"orchestrator/runtime"
)

// envVictim makes a run of the test binary the victim: it makes and destroys the
// sandbox that the variable describes, and dies on the way.
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
	t.Fatalf("nothing killed the victim: %v", err)
}

func TestWhatAKilledProcessLeavesIsFoundAndRemoved(t *testing.T) {
	for _, mode := range modes {
		for _, point := range []string{
			"create.intent", "create.cell", "create.created", "create.started", "create.attached",
			"destroy.killed", "destroy.deleted", "destroy.unmounted",
		} {
			t.Run(mode+" "+point, func(t *testing.T) {
				h := newHost(t)
				d := h.open(t, mode)
				s := h.spec(t)
				text, err := json.Marshal(victim{Options{Host: h.engine, StateDir: h.dir, GuestPath: h.guest, Mode: mode}, s})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Remove(context.WithoutCancel(t.Context()), s.ID) })
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestVictim$")
				cmd.Env = append(os.Environ(), envVictim+"="+string(text), fault.Env+"=docker."+point)
				out, err := cmd.CombinedOutput()
				exit := (*exec.ExitError)(nil)
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the victim was not killed at %s: %v\n%s", point, err, out)
				}
				if got := ids(t, d, s.Owner); !slices.Equal(got, []string{s.ID}) {
					t.Errorf("found afterwards: %q", got)
				}
				if err := d.Remove(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
				nothingLeft(t, d, s)
			})
		}
	}
}
