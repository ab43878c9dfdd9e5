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

// gvisorConfig has a template of class gvisor beside the default one. Its scratch space is too
// small for large workspaces.
const gvisorConfig = `
templates:
  default:
    limits: {memory: 256MiB, pids: 160}
    pool: {min: 0, max: 4, rate: 10, parallel: 2}
  walled:
    class: gvisor
    limits: {memory: 256MiB, pids: 160, scratch: 4MiB}
    pool: {min: 0, max: 4, rate: 10, parallel: 2}
`

// needGVisor skips the test if runsc is not installed.
func needGVisor(t *testing.T) {
	t.Helper()
	if _, err := osexec.LookPath("runsc"); err != nil {
		t.Skip("runsc is not installed: run integration/scripts/deps.sh")
	}
}

// TestWorkspaceIsCopiedIntoGVisor checks that a sandbox of class gvisor gets a copy of its
// workspace, which is copied back on request and at the end of the lease. The next lease must have
// it.
func TestWorkspaceIsCopiedIntoGVisor(t *testing.T) {
	t.Parallel()
	needGVisor(t)
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: gvisorConfig, Seed: &seed})
	name := workspace(t, s)
	files := s.Client.Workspaces.Files(name)
	put(t, files, "given", "1")
	put(t, files, "goes", "2")
	sb := lease(t, s, v1.SandboxRequest{Workspace: name, Class: "gvisor", WhenEmpty: "cold"})
	if sb.Class != "gvisor" || sb.Template != "walled" {
		t.Errorf("leased %+v, want class gvisor and template walled", sb)
	}
	// gVisor's kernel reports this date in every version. The seccomp filter forbids its dmesg.
	assertContains(t, sh(t, s, sb.ID, "uname -v"), "Sun Jan 10 15:06:54 PST 2016")
	command := "cat given; rm goes; echo 3 >given; mkdir -p d/e; echo new >d/e/f; ln -s given link; echo d/e/*"
	if got := sh(t, s, sb.ID, command); got != "1d/e/f\n" {
		t.Errorf("the sandbox printed %q, want the given file and d/e/f", got)
	}
	if got := get(t, files, "given"); got != "1" {
		t.Errorf("before SyncSandbox the workspace's file is %q, want it unchanged: 1", got)
	}
	if got, err := s.Client.SyncSandbox(within(t), sb.ID); err != nil || !got.Carried || got.Entries != 5 {
		t.Errorf("SyncSandbox = %+v, %v; want 5 copied entries", got, err)
	}
	if got := get(t, files, "given") + get(t, files, "d/e/f"); got != "3\nnew\n" {
		t.Errorf("after SyncSandbox the workspace's files are %q, want %q", got, "3\nnew\n")
	}
	// Releasing the sandbox must end the writer before the files are copied.
	writer := "echo last >last; while :; do echo x >>log; sleep 0.05; done"
	if _, err := s.Client.StartShell(within(t), sb.ID, v1.ShellRequest{Exec: v1.Exec{Command: writer}}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Short, "the writer writes", func() bool {
		return sh(t, s, sb.ID, "wc -l <log 2>/dev/null || echo 0") != "0\n"
	})
	release(t, s, sb.ID)
	if got := get(t, files, "last"); got != "last\n" {
		t.Errorf("after the lease the workspace's file last is %q, want %q", got, "last\n")
	}
	if _, err := files.Stat(within(t), "goes"); !errdefs.IsNotFound(err) {
		t.Errorf("Stat of a file that the sandbox removed: %v, want not found", err)
	}
	next := lease(t, s, v1.SandboxRequest{Workspace: name, Template: "walled", WhenEmpty: "cold", ReadOnly: true})
	command = "cat given d/e/f link; echo lost >>d/e/f 2>/dev/null; chmod u+w given; echo lost >given; true"
	if got := sh(t, s, next.ID, command); got != "3\nnew\n3\n" {
		t.Errorf("the next lease's files are %q, want %q", got, "3\nnew\n3\n")
	}
	release(t, s, next.ID)
	if got := get(t, files, "given"); got != "3\n" {
		t.Errorf("after a read-only lease the workspace's file is %q, want %q", got, "3\n")
	}
	// A sandbox of class container mounts the same workspace.
	plain := lease(t, s, v1.SandboxRequest{Workspace: name, WhenEmpty: "cold"})
	if got := sh(t, s, plain.ID, "cat given d/e/f"); got != "3\nnew\n" {
		t.Errorf("a mounted lease's files are %q, want %q", got, "3\nnew\n")
	}
	release(t, s, plain.ID)
}

// TestUncopyableWorkspaceIsRefused checks that a template of a weaker class and a workspace that is
// too large are refused with the reason.
func TestUncopyableWorkspaceIsRefused(t *testing.T) {
	t.Parallel()
	needGVisor(t)
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: gvisorConfig, Seed: &seed})
	_, err := s.Client.CreateSandbox(within(t), v1.SandboxRequest{Template: "default", Class: "gvisor"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "walled") ||
		!strings.Contains(err.Error(), "default") {
		t.Errorf("CreateSandbox with a template of a weaker class: %v, want both templates' names", err)
	}
	_, err = s.Client.CreateSandbox(within(t), v1.SandboxRequest{Class: "vm"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "vm") {
		t.Errorf("CreateSandbox with an unknown class: %v, want failed precondition with its name", err)
	}
	name := workspace(t, s)
	put(t, s.Client.Workspaces.Files(name), "big", strings.Repeat("x", 5<<20))
	_, err = s.Client.CreateSandbox(within(t), v1.SandboxRequest{Template: "walled", Workspace: name, WhenEmpty: "cold"})
	for _, word := range []string{name, "5MiB", "4MiB", "limits.scratch"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("CreateSandbox with a workspace that is too large: %v, want %s in it", err, word)
		}
	}
	awaitNoLease(t, s)
}

// TestWorkspaceIsCopiedOverStdio checks that workspaces are copied if only the engine's API can be
// reached.
func TestWorkspaceIsCopiedOverStdio(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "docker", Mode: "stdio", Config: onDemand, Seed: &seed})
	name := workspace(t, s)
	put(t, s.Client.Workspaces.Files(name), "given", "1")
	sb := lease(t, s, v1.SandboxRequest{Workspace: name, WhenEmpty: "cold"})
	if got := sh(t, s, sb.ID, "cat given; echo 2 >new; stat -c %u given new"); got != "11000\n1000\n" {
		t.Errorf("the sandbox printed %q, want the given file and the owner 1000", got)
	}
	release(t, s, sb.ID)
	if got := get(t, s.Client.Workspaces.Files(name), "new"); got != "2\n" {
		t.Errorf("after the lease the workspace's file is %q, want %q", got, "2\n")
	}
	r, err := s.Client.Run(within(t),
		v1.Run{Exec: v1.Exec{Command: "cat new; echo 3 >new"}, Workspace: name, WhenEmpty: "cold"})
	if err != nil || r.Stdout != "2\n" {
		t.Errorf("Run = %+v, %v; want stdout %q", r, err, "2\n")
	}
	awaitNoLease(t, s)
	if got := get(t, s.Client.Workspaces.Files(name), "new"); got != "3\n" {
		t.Errorf("after the run the workspace's file is %q, want %q", got, "3\n")
	}
}
