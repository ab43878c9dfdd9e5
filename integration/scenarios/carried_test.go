//go:build integration

package scenarios

import (
	osexec "os/exec"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// strong has a template of class gvisor beside the default one, which has not
// the room for large workspaces.
const strong = `
templates:
  default:
    limits: {memory: 256MiB, pids: 160}
    pool: {min: 0, max: 4, rate: 10, parallel: 2}
  walled:
    class: gvisor
    limits: {memory: 256MiB, pids: 160, scratch: 4MiB}
    pool: {min: 0, max: 4, rate: 10, parallel: 2}
`

func needGVisor(t *testing.T) {
	t.Helper()
	if _, err := osexec.LookPath("runsc"); err != nil {
		t.Skip("runsc is not installed: run integration/scripts/deps.sh")
	}
}

// A workspace in a sandbox of class gvisor: carried there, back at the end and
// when asked for; the next lease has it.
func TestWorkspaceIsCopiedIntoGVisor(t *testing.T) {
	t.Parallel()
	needGVisor(t)
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: strong, Seed: &seed})
	name := workspace(t, s)
	files := s.Client.WorkspaceFiles(name)
	put(t, files, "given", "1")
	put(t, files, "goes", "2")
	sb := lease(t, s, v1.SandboxRequest{Workspace: name, Class: "gvisor", WhenEmpty: "cold"})
	if sb.Class != "gvisor" || sb.Template != "walled" {
		t.Errorf("leased %+v", sb)
	}
	// gVisor's kernel says that it is of that day, whatever its version. Its dmesg is refused by our filter.
	contains(t, sh(t, s, sb.ID, "uname -v"), "Sun Jan 10 15:06:54 PST 2016")
	if got := sh(t, s, sb.ID, "cat given; rm goes; echo 3 >given; mkdir -p d/e; echo new >d/e/f; ln -s given link; echo d/e/*"); got != "1d/e/f\n" {
		t.Errorf("inside: %q", got)
	}
	if got := get(t, files, "given"); got != "1" {
		t.Errorf("before it is synced the workspace has %q", got)
	}
	if got, err := s.Client.SyncSandbox(within(t), sb.ID); err != nil || !got.Carried || got.Entries != 5 {
		t.Errorf("sync: %+v, %v", got, err)
	}
	if got := get(t, files, "given") + get(t, files, "d/e/f"); got != "3\nnew\n" {
		t.Errorf("after it was synced the workspace has %q", got)
	}
	// A writer that nobody ended is ended before its files are carried.
	if _, err := s.Client.StartShell(within(t), sb.ID, v1.ShellRequest{Exec: v1.Exec{Command: "echo last >last; while :; do echo x >>log; sleep 0.05; done"}}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "the writer writes", func() bool { return sh(t, s, sb.ID, "wc -l <log 2>/dev/null || echo 0") != "0\n" })
	release(t, s, sb.ID)
	if got := get(t, files, "last"); got != "last\n" {
		t.Errorf("after the lease the workspace has %q", got)
	}
	if _, err := files.Stat(within(t), "goes"); !errdefs.IsNotFound(err) {
		t.Errorf("what was removed inside is there: %v", err)
	}
	next := lease(t, s, v1.SandboxRequest{Workspace: name, Template: "walled", WhenEmpty: "cold", ReadOnly: true})
	if got := sh(t, s, next.ID, "cat given d/e/f link; echo lost >>d/e/f 2>/dev/null; chmod u+w given; echo lost >given; true"); got != "3\nnew\n3\n" {
		t.Errorf("the next lease has %q", got)
	}
	release(t, s, next.ID)
	if got := get(t, files, "given"); got != "3\n" {
		t.Errorf("what was read-only changed: %q", got)
	}
	// The other class sees the same by a mount.
	plain := lease(t, s, v1.SandboxRequest{Workspace: name, WhenEmpty: "cold"})
	if got := sh(t, s, plain.ID, "cat given d/e/f"); got != "3\nnew\n" {
		t.Errorf("a mounted lease has %q", got)
	}
	release(t, s, plain.ID)
}

// A class that is too weak, and a workspace that is too large, are told as such.
func TestUncopyableWorkspaceIsRefused(t *testing.T) {
	t.Parallel()
	needGVisor(t)
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: strong, Seed: &seed})
	_, err := s.Client.CreateSandbox(within(t), v1.SandboxRequest{Template: "default", Class: "gvisor"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "walled") || !strings.Contains(err.Error(), "default") {
		t.Errorf("a weaker template: %v", err)
	}
	_, err = s.Client.CreateSandbox(within(t), v1.SandboxRequest{Class: "vm"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "vm") {
		t.Errorf("a class that no template has: %v", err)
	}
	name := workspace(t, s)
	put(t, s.Client.WorkspaceFiles(name), "big", strings.Repeat("x", 5<<20))
	_, err = s.Client.CreateSandbox(within(t), v1.SandboxRequest{Template: "walled", Workspace: name, WhenEmpty: "cold"})
	for _, word := range []string{name, "5MiB", "4MiB", "limits.scratch"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("a workspace that does not fit: %v, want %s in it", err, word)
		}
	}
	noLease(t, s)
}

// Docker without anything but its API carries as well.
func TestWorkspaceIsCopiedOverStdio(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "docker", Mode: "stdio", Config: onDemand, Seed: &seed})
	name := workspace(t, s)
	put(t, s.Client.WorkspaceFiles(name), "given", "1")
	sb := lease(t, s, v1.SandboxRequest{Workspace: name, WhenEmpty: "cold"})
	if got := sh(t, s, sb.ID, "cat given; echo 2 >new; stat -c %u given new"); got != "11000\n1000\n" {
		t.Errorf("inside: %q", got)
	}
	release(t, s, sb.ID)
	if got := get(t, s.Client.WorkspaceFiles(name), "new"); got != "2\n" {
		t.Errorf("after the lease the workspace has %q", got)
	}
	r, err := s.Client.Run(within(t), v1.Run{Exec: v1.Exec{Command: "cat new; echo 3 >new"}, Workspace: name, WhenEmpty: "cold"})
	if err != nil || r.Stdout != "2\n" {
		t.Errorf("a run: %+v, %v", r, err)
	}
	noLease(t, s)
	if got := get(t, s.Client.WorkspaceFiles(name), "new"); got != "3\n" {
		t.Errorf("after the run the workspace has %q", got)
	}
}
