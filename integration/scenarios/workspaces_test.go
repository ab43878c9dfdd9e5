//go:build integration

package scenarios

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// put writes a file.
func put(t *testing.T, f client.Files, path, content string) {
	t.Helper()
	if _, err := f.Write(within(t), path, strings.NewReader(content), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// get reads a file.
func get(t *testing.T, f client.Files, path string) string {
	t.Helper()
	body, err := f.Read(within(t), path, client.Range{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// testReadOnlyWorkspace checks that a read-only lease cannot change its workspace in any way.
func testReadOnlyWorkspace(t *testing.T, s *harness.Server) {
	name := workspace(t, s)
	files := s.Client.Workspaces.Files(name)
	put(t, files, "in.txt", "given")
	id := lease(t, s, v1.SandboxRequest{Workspace: name, ReadOnly: true}).ID
	if got := sh(t, s, id, "cat in.txt"); got != "given" {
		t.Errorf("file of the read-only workspace is %q, want given", got)
	}
	for _, command := range []string{
		"echo x > new", "echo x >> in.txt", "rm in.txt", "mv in.txt other", "mkdir d", "touch in.txt",
		"chmod 777 in.txt", "ln -s in.txt link", "mount -o remount,rw /workspace",
		"python3 -c 'import os; os.truncate(\"in.txt\", 0)'",
	} {
		if r := exec(t, s, id, v1.Exec{Command: command}); r.Ending != "exited" || r.ExitCode == 0 {
			t.Errorf("%s: %+v, want an exit code other than 0", command, r)
		}
	}
	_, err := s.Client.SandboxFiles(id).Write(within(t), "new", strings.NewReader("x"), client.WriteOptions{})
	if err == nil {
		t.Error("Write through the guest succeeded, want an error")
	}
	release(t, s, id)
	list, _, err := files.List(within(t), "")
	if err != nil || len(list) != 1 || list[0].Name != "in.txt" || get(t, files, "in.txt") != "given" {
		t.Errorf("workspace after the lease = %+v, %v; want in.txt unchanged", list, err)
	}
}

// testReleasedWorkspace releases a lease with a daemon that writes without end. No byte may be
// written after the release.
func testReleasedWorkspace(t *testing.T, s *harness.Server) {
	name, word := workspace(t, s), uniqueWord()
	files := s.Client.Workspaces.Files(name)
	id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
	writer := "import os, time\nf = open('log', 'ab', buffering=0)\nwhile True:\n    f.write(b'x'); time.sleep(0.001)\n"
	_, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: v1.Exec{
		Argv: []string{"bash", "-c", `setsid python3 -c "$0" "$1" & wait`, writer, word},
	}})
	if err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		f, err := files.Stat(within(t), "log")
		if errdefs.IsNotFound(err) {
			return 0
		}
		if err != nil {
			t.Fatal(err)
		}
		return f.Size
	}
	harness.Eventually(t, harness.Short, "the daemon writes", func() bool { return size() > 100 })
	release(t, s, id)
	first := size()
	assertNoProcess(t, word)
	// A writer that still lived would have written hundreds of times by then.
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if now := size(); now != first {
			t.Fatalf("%d bytes were written after the release, want none", now-first)
		}
	}
	if err := s.Client.Workspaces.Delete(within(t), name); err != nil {
		t.Error(err)
	}
}

// testWorkspaceOutlives checks that a workspace keeps its files between sandboxes, and cannot be
// deleted while it is leased.
func testWorkspaceOutlives(t *testing.T, s *harness.Server) {
	name := workspace(t, s)
	one := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
	sh(t, s, one, "mkdir -p a/b; echo kept > a/b/c; umask 077; echo own > own; chmod 4755 a/b/c; ln -s /etc/passwd link")
	put(t, s.Client.SandboxFiles(one), "by-interface", "too")
	release(t, s, one)
	files := s.Client.Workspaces.Files(name)
	if got := get(t, files, "a/b/c") + get(t, files, "by-interface"); got != "kept\ntoo" {
		t.Errorf("the workspace's files are %q, want %q", got, "kept\ntoo")
	}
	two := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
	const want = "kept\nown\ntoo1000:1000\n1000:1000\n1000\n"
	if got := sh(t, s, two, "cat a/b/c own by-interface; stat -c %u:%g own by-interface; id -u"); got != want {
		t.Errorf("the second sandbox printed %q, want %q", got, want)
	}
	// A leased workspace can be shown, but not deleted.
	w, err := s.Client.Workspaces.Get(within(t), name)
	if err != nil || len(w.Sandboxes) != 1 || w.Sandboxes[0] != two {
		t.Errorf("Workspace = %+v, %v; want sandbox %s", w, err, two)
	}
	s.Ask(t, "DELETE", "/v1/workspaces/"+name, "").Problem(t, 409, "failed_precondition", "")
	release(t, s, two)
	if err := s.Client.Workspaces.Delete(within(t), name); err != nil {
		t.Error(err)
	}
	s.Ask(t, "GET", "/v1/workspaces/"+name, "").Problem(t, 404, "not_found", "")
}

// testOneWriter checks that a workspace has one writer, and that a refused request leaves nothing.
func testOneWriter(t *testing.T, s *harness.Server) {
	name := workspace(t, s)
	writer := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
	a := s.Ask(t, "POST", "/v1/sandboxes", `{"workspace":"`+name+`"}`)
	if p := a.Problem(t, 503, "unavailable", "workspace"); !strings.Contains(p.Detail, name) {
		t.Errorf("problem %+v, want the workspace's name in its detail", p)
	}
	// The refused request keeps neither a sandbox nor the workspace.
	release(t, s, writer)
	awaitNoLease(t, s)
	next := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
	sh(t, s, next, "echo x > y")
}
