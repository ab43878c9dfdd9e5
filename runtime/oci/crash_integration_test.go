//go:build integration && faults

package oci

import (
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
)

// Variables of the process that dies.
const (
	crashState = "ORCHESTRATOR_TEST_OCI_STATE"
	crashGuest = "ORCHESTRATOR_TEST_OCI_GUEST"
)

// TestCrashProcess is the process that TestCrashAnywhere starts, not a test: it creates and
// destroys a sandbox and dies in between.
func TestCrashProcess(t *testing.T) {
	state := os.Getenv(crashState)
	if state == "" {
		return
	}
	d, err := New(t.Context(),
		Options{StateDir: state, GuestPath: os.Getenv(crashGuest), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	spec := specFor(t)
	s, err := d.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCrashAnywhere(t *testing.T) {
	for point, adoptable := range map[string]bool{
		"oci.create.intent": false, "oci.create.cell": false, "oci.create.overlay": false, "oci.create.started": false,
		"oci.create.attached": true, "oci.destroy.killed": false, "oci.destroy.deleted": false,
		"oci.destroy.unmounted": false,
	} {
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			cmd := exec.Command(os.Args[0], "-test.run=^TestCrashProcess$")
			cmd.Env = append(os.Environ(), failpoint.Env+"="+point, crashState+"="+b.state, crashGuest+"="+b.guest)
			out, err := cmd.CombinedOutput()
			if status, ok := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); !ok || status.Signal() != unix.SIGKILL {
				t.Fatalf("the process ended with %v, want SIGKILL at %s\n%s", err, point, out)
			}
			found, err := b.List(t.Context(), owner)
			if err != nil || len(found) != 1 {
				t.Fatalf("List = %+v, %v; want one and no error", found, err)
			}
			id := found[0].ID
			if found[0].Running != adoptable {
				t.Errorf("running = %v, want %v", found[0].Running, adoptable)
			}
			s, err := b.Adopt(t.Context(), id)
			if (err == nil) != adoptable {
				t.Errorf("Adopt: %v; want success: %v", err, adoptable)
			}
			if err == nil {
				if got := sh(t, s, 1000, "echo here"); got.Output != "here\n" {
					t.Errorf("answer of the adopted sandbox = %+v, want the output %q", got, "here\n")
				}
			}
			for range 2 {
				if err := b.Remove(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			wantNoCgroup(t, id)
			b.wantNothingLeft(t)
		})
	}
}
