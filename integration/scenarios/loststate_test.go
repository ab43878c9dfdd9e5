//go:build integration && faults

package scenarios

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// stateFiles are the files with the service's state.
var stateFiles = []string{"state.db", "state.db-wal", "state.db-shm", "owner.json"}

// backup copies the state of a stopped server and returns a function that restores it.
func backup(t *testing.T, dir string) (restore func()) {
	t.Helper()
	kept := map[string][]byte{}
	for _, name := range stateFiles {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && name != "state.db-shm" {
			kept[name] = text
		}
	}
	return func() {
		t.Helper()
		erase(t, dir, stateFiles...)
		for name, text := range kept {
			harness.WriteFile(t, filepath.Join(dir, name), string(text))
		}
	}
}

// erase removes files of a directory, if they exist.
func erase(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// damage overwrites some bytes of a file.
func damage(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("damaged!"), at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// usedSandbox is a sandbox with a workspace and a background command.
type usedSandbox struct {
	sandbox, shell, workspace, word string
}

// newUsedSandbox leases a sandbox with the workspace and starts its background command.
func newUsedSandbox(t *testing.T, s *harness.Server, ws string) usedSandbox {
	t.Helper()
	u := usedSandbox{workspace: ws, word: uniqueWord()}
	sb, err := s.Client.CreateSandbox(within(t), v1.SandboxRequest{WhenEmpty: "cold", Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	u.sandbox = sb.ID
	command := v1.Exec{Command: "echo kept > /workspace/file; exec -a " + u.word + " sleep 3000"}
	shell, err := s.Client.StartShell(within(t), u.sandbox, v1.ShellRequest{Exec: command})
	if err != nil {
		t.Fatal(err)
	}
	u.shell = shell.ID
	awaitProcesses(t, u.word, 1)
	return u
}

// assertRunning checks that the sandbox is unchanged.
func (u usedSandbox) assertRunning(t *testing.T, s *harness.Server) {
	t.Helper()
	if shell, err := s.Client.Shell(within(t), u.shell); err != nil || shell.State != "running" {
		t.Errorf("Shell(%s) = %+v, %v; want it running", u.shell, shell, err)
	}
	if got := sh(t, s, u.sandbox, "cat /workspace/file"); got != "kept\n" {
		t.Errorf("the workspace's file is %q, want %q", got, "kept\n")
	}
	awaitAccounted(t, s)
}

// assertGone checks that nothing of the sandbox is left on the host except the workspace.
func (u usedSandbox) assertGone(t *testing.T, s *harness.Server) {
	t.Helper()
	assertNoProcess(t, u.word)
	if cells, engine := s.Cells(), s.Engine(); slices.Contains(cells, u.sandbox) || slices.Contains(engine, u.sandbox) {
		t.Errorf("sandbox %s is left: on disk %v, engine %v; want it in neither", u.sandbox, cells, engine)
	}
	if left := s.Cgroups(u.sandbox); len(left) > 0 {
		t.Errorf("cgroups of %s = %v, want none", u.sandbox, left)
	}
	for _, m := range harness.MountsUnder(t, s.Dir()) {
		if strings.Contains(m, u.sandbox) {
			t.Errorf("mount is left, want none of %s: %s", u.sandbox, m)
		}
	}
}

// assertFileKept checks the workspace's file on the host.
func (u usedSandbox) assertFileKept(t *testing.T, s *harness.Server) {
	t.Helper()
	r, err := s.Client.Workspaces.Files(u.workspace).Read(within(t), "file", client.Range{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if text, err := io.ReadAll(r); err != nil || string(text) != "kept\n" {
		t.Errorf("the workspace's file is %q, %v; want %q", text, err, "kept\n")
	}
}

// stateLoss is a way to lose the service's state.
type stateLoss struct {
	name   string
	lose   func(t *testing.T, dir string)
	errors []string // of the next start; nil: the server starts
}

// stateLosses are the ways that TestLostStateIsRefusedOrAdopted tries.
func stateLosses() []stateLoss {
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			erase(t, dir, names...)
		}
	}
	truncate := func(name string, size int64, removed ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			truncateFile(t, filepath.Join(dir, name), size)
			erase(t, dir, removed...)
		}
	}
	missing := []string{"state.db is missing", "--adopt-none"}
	damaged := []string{"state.db is damaged", "--adopt-none"}
	older := []string{"state.db is older", "--adopt-older"}
	return []stateLoss{
		{"state.db removed", remove("state.db"), missing},
		{"state.db and its log removed", remove("state.db", "state.db-wal", "state.db-shm"), missing},
		{"state.db emptied", truncate("state.db", 0, "state.db-wal"), []string{"state.db is empty", "--adopt-none"}},
		{"all removed", remove(stateFiles...), []string{"state.db and owner.json are missing", "--adopt-none"}},
		{"state.db cut short", truncate("state.db", 10000), damaged},
		{"state.db not a database", func(t *testing.T, dir string) {
			t.Helper()
			erase(t, dir, "state.db-wal")
			damage(t, filepath.Join(dir, "state.db"), 0)
		}, damaged},
		{"log removed", remove("state.db-wal"), older},
		{"log header damaged", func(t *testing.T, dir string) {
			t.Helper()
			damage(t, filepath.Join(dir, "state.db-wal"), 0)
		}, older},
		{"log emptied", truncate("state.db-wal", 0), older},
		{"owner file removed", remove("owner.json"), nil},
	}
}

// TestLostStateIsRefusedOrAdopted loses state.db in several ways. The start must be refused while
// sandboxes are alive. With the database restored, they continue; when abandoned, only the
// workspaces remain.
func TestLostStateIsRefusedOrAdopted(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		u := newUsedSandbox(t, s, workspace(t, s))
		for _, c := range stateLosses() {
			ok := t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				s.Kill9()
				restore := backup(t, s.Dir())
				c.lose(t, s.Dir())
				if c.errors != nil {
					assertStartRefused(t, s, u, c.errors)
					restore()
				}
				s.Start()
				u.assertRunning(t, s)
			})
			if !ok {
				return
			}
		}
		t.Run("adopt none", func(t *testing.T) { testAdoptNone(t, s, u) })
		for _, name := range []string{"adopt none without the owner", "down"} {
			t.Run(name, func(t *testing.T) { testAdoptNoneAfter(t, s, u.workspace, name == "down") })
		}
		t.Run("adopt older", func(t *testing.T) { testAdoptOlder(t, s, u.workspace) })
	})
}

// testAdoptNone starts a server without its database and abandons the sandbox.
func testAdoptNone(t *testing.T, s *harness.Server, u usedSandbox) {
	defer s.For(t)()
	s.Kill9()
	erase(t, s.Dir(), "state.db", "state.db-wal", "state.db-shm")
	s.With("--adopt-none")
	s.Start()
	u.assertGone(t, s)
	u.assertFileKept(t, s)
	awaitAccounted(t, s)
	s.Term()
	s.Start() // a later start must not refuse again
}

// testAdoptNoneAfter abandons a new sandbox, after "down" without the database, or without any
// state.
func testAdoptNoneAfter(t *testing.T, s *harness.Server, workspace string, down bool) {
	defer s.For(t)()
	u := newUsedSandbox(t, s, workspace)
	s.Kill9()
	if down {
		erase(t, s.Dir(), "state.db", "state.db-wal", "state.db-shm")
		s.CLI(t, "down").Is(t, 0, "")
		u.assertGone(t, s)
		s.CLI(t, "serve").Is(t, 78, "1 workspace")
	} else {
		erase(t, s.Dir(), stateFiles...)
	}
	s.With("--adopt-none")
	s.Start()
	u.assertGone(t, s)
	u.assertFileKept(t, s)
	awaitAccounted(t, s)
}

// testAdoptOlder starts a server with a database that lacks its newest changes.
func testAdoptOlder(t *testing.T, s *harness.Server, workspace string) {
	defer s.For(t)()
	u := newUsedSandbox(t, s, workspace)
	s.Kill9()
	erase(t, s.Dir(), "state.db-wal", "state.db-shm")
	assertStartRefused(t, s, u, []string{"state.db is older"})
	s.With("--adopt-older")
	s.Start()
	awaitAccounted(t, s) // the sandbox was in state.db or is destroyed
	assertUsable(t, s, workspace)
}

// truncateFile shortens a file to a size.
func truncateFile(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// assertStartRefused checks that a start is refused with these texts, names the live sandboxes, and
// changes nothing.
func assertStartRefused(t *testing.T, s *harness.Server, u usedSandbox, texts []string) {
	t.Helper()
	got := s.CLI(t, "serve", "--config", s.Config())
	for _, text := range append(texts, "put back") {
		got.Is(t, 78, text)
	}
	if strings.Contains(got.Stderr, "missing") {
		got.Is(t, 78, u.sandbox)
		got.Is(t, 78, "1 workspace")
	}
	awaitProcesses(t, u.word, 1)
}
