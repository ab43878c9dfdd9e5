//go:build integration && faults

package oci

import (
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Variables of the process that dies.
const (
	crashState = "ORCHESTRATOR_TEST_OCI_STATE"
	crashGuest = "ORCHESTRATOR_TEST_OCI_GUEST"
	crashUser  = "ORCHESTRATOR_TEST_OCI_USER" // "own": with a user namespace; "trial": try one
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
	if os.Getenv(crashUser) == "trial" {
		t.Fatal(d.CheckUserNamespace(t.Context(), runtime.ClassContainer))
	}
	spec := specFor(t)
	spec.UserNamespace = os.Getenv(crashUser) != ""
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
		t.Run(point, func(t *testing.T) { testCrash(t, point, "", adoptable) })
	}
}

func TestCrashWithUserNamespace(t *testing.T) {
	for point, adoptable := range map[string]bool{
		"oci.create.ids.claimed": false, "oci.create.ids.noted": false, "oci.create.overlay": false,
		"oci.create.attached": true, "oci.destroy.deleted": false, "oci.destroy.unmounted": false,
	} {
		t.Run(point, func(t *testing.T) { testCrash(t, point, "own", adoptable) })
	}
}

func TestCrashInTrialOfUserNamespace(t *testing.T) {
	for _, point := range []string{"oci.create.ids.claimed", "oci.create.overlay", "oci.create.attached",
		"oci.destroy.unmounted"} {
		t.Run(point, func(t *testing.T) {
			b := newBench(t)
			crash(t, b, point, "trial")
			if err := b.another(t).Close(); err != nil { // its start removes what is left
				t.Fatal(err)
			}
			b.wantNothingLeft(t)
		})
	}
}

// crash runs TestCrashProcess until a point, at which it kills itself.
func crash(t *testing.T, b bench, point, user string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashProcess$")
	cmd.Env = append(os.Environ(), failpoint.Env+"="+point, crashState+"="+b.state, crashGuest+"="+b.guest,
		crashUser+"="+user)
	out, err := cmd.CombinedOutput()
	if status, ok := cmd.ProcessState.Sys().(interface{ Signal() unix.Signal }); !ok || status.Signal() != unix.SIGKILL {
		t.Fatalf("the process ended with %v, want SIGKILL at %s\n%s", err, point, out)
	}
}

// testCrash kills a process that creates and destroys a sandbox at a point, and removes what is
// left.
func testCrash(t *testing.T, point, user string, adoptable bool) {
	t.Helper()
	b := newBench(t)
	crash(t, b, point, user)
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
}
