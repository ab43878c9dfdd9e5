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

func erase(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

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

// inUse is a sandbox with a workspace and a background command.
type inUse struct {
	sandbox, shell, workspace, word string
}

func begin(t *testing.T, s *harness.Server, ws string) inUse {
	t.Helper()
	u := inUse{workspace: ws, word: mark()}
	sb, err := s.Client.CreateSandbox(within(t), v1.SandboxRequest{WhenEmpty: "cold", Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	u.sandbox = sb.ID
	shell, err := s.Client.StartShell(within(t), u.sandbox, v1.ShellRequest{Exec: v1.Exec{Command: "echo kept > /workspace/file; exec -a " + u.word + " sleep 3000"}})
	if err != nil {
		t.Fatal(err)
	}
	u.shell = shell.ID
	seen(t, u.word, 1)
	return u
}

// goesOn checks that the sandbox is unchanged.
func (u inUse) goesOn(t *testing.T, s *harness.Server) {
	t.Helper()
	if shell, err := s.Client.Shell(within(t), u.shell); err != nil || shell.State != "running" {
		t.Errorf("Shell(%s) = %+v, %v; want it running", u.shell, shell, err)
	}
	if got := sh(t, s, u.sandbox, "cat /workspace/file"); got != "kept\n" {
		t.Errorf("the workspace's file is %q, want %q", got, "kept\n")
	}
	accounted(t, s)
}

// over checks that nothing of the sandbox is left on the host except the workspace.
func (u inUse) over(t *testing.T, s *harness.Server) {
	t.Helper()
	gone(t, u.word)
	if cells, engine := s.Cells(), s.Engine(); slices.Contains(cells, u.sandbox) || slices.Contains(engine, u.sandbox) {
		t.Errorf("sandbox %s is left: on disk %v, engine %v", u.sandbox, cells, engine)
	}
	if left := s.Cgroups(u.sandbox); len(left) > 0 {
		t.Errorf("cgroups of %s are left: %v", u.sandbox, left)
	}
	for _, m := range harness.MountsUnder(t, s.Dir()) {
		if strings.Contains(m, u.sandbox) {
			t.Errorf("mount is left: %s", m)
		}
	}
}

// keptFile checks the workspace's file on the host.
func (u inUse) keptFile(t *testing.T, s *harness.Server) {
	t.Helper()
	r, err := s.Client.WorkspaceFiles(u.workspace).Read(within(t), "file", client.Range{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if text, err := io.ReadAll(r); err != nil || string(text) != "kept\n" {
		t.Errorf("the workspace's file is %q, %v; want %q", text, err, "kept\n")
	}
}

// TestLostState loses state.db in several ways. The start must be refused while sandboxes are
// alive. With the database restored, they continue; when abandoned, only the workspaces remain.
func TestLostState(t *testing.T) {
	t.Parallel()
	onServerOfAll(t, onDemand, func(t *testing.T, s *harness.Server) {
		path := func(name string) string { return filepath.Join(s.Dir(), name) }
		u := begin(t, s, workspace(t, s))
		for _, c := range []struct {
			name string
			harm func()
			says []string // nil: the server starts
		}{
			{"state.db removed", func() { erase(t, s.Dir(), "state.db") }, []string{"state.db is missing", "--adopt-none"}},
			{"state.db and its log removed", func() { erase(t, s.Dir(), "state.db", "state.db-wal", "state.db-shm") }, []string{"state.db is missing", "--adopt-none"}},
			{"state.db emptied", func() { truncateFile(t, path("state.db"), 0); erase(t, s.Dir(), "state.db-wal") }, []string{"state.db is empty", "--adopt-none"}},
			{"all removed", func() { erase(t, s.Dir(), stateFiles...) }, []string{"state.db and owner.json are missing", "--adopt-none"}},
			{"state.db cut short", func() { truncateFile(t, path("state.db"), 10000) }, []string{"state.db is damaged", "--adopt-none"}},
			{"no database", func() { erase(t, s.Dir(), "state.db-wal"); damage(t, path("state.db"), 0) }, []string{"state.db is damaged", "--adopt-none"}},
			{"log removed", func() { erase(t, s.Dir(), "state.db-wal") }, []string{"state.db is older", "--adopt-older"}},
			{"log header damaged", func() { damage(t, path("state.db-wal"), 0) }, []string{"state.db is older", "--adopt-older"}},
			{"log emptied", func() { truncateFile(t, path("state.db-wal"), 0) }, []string{"state.db is older", "--adopt-older"}},
			{"owner file removed", func() { erase(t, s.Dir(), "owner.json") }, nil},
		} {
			ok := t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				s.Kill9()
				restore := backup(t, s.Dir())
				c.harm()
				if c.says != nil {
					refused(t, s, u, c.says)
					restore()
				}
				s.Start()
				u.goesOn(t, s)
			})
			if !ok {
				return
			}
		}
		t.Run("adopt none", func(t *testing.T) {
			defer s.For(t)()
			s.Kill9()
			erase(t, s.Dir(), "state.db", "state.db-wal", "state.db-shm")
			s.With("--adopt-none")
			s.Start()
			u.over(t, s)
			u.keptFile(t, s)
			accounted(t, s)
			s.Term()
			s.Start() // a later start must not refuse again
		})
		for _, name := range []string{"adopt none without the owner", "down"} {
			t.Run(name, func(t *testing.T) {
				defer s.For(t)()
				u := begin(t, s, u.workspace)
				s.Kill9()
				if name == "down" {
					erase(t, s.Dir(), "state.db", "state.db-wal", "state.db-shm")
					s.CLI(t, "down").Is(t, 0, "")
					u.over(t, s)
					s.CLI(t, "serve").Is(t, 78, "1 workspace")
				} else {
					erase(t, s.Dir(), stateFiles...)
				}
				s.With("--adopt-none")
				s.Start()
				u.over(t, s)
				u.keptFile(t, s)
				accounted(t, s)
			})
		}
		t.Run("adopt older", func(t *testing.T) {
			defer s.For(t)()
			u := begin(t, s, u.workspace)
			s.Kill9()
			erase(t, s.Dir(), "state.db-wal", "state.db-shm")
			refused(t, s, u, []string{"state.db is older"})
			s.With("--adopt-older")
			s.Start()
			accounted(t, s) // the sandbox was in state.db or is destroyed
			works(t, s, u.workspace)
		})
	})
}

func truncateFile(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// refused checks that a start is refused with these words and the live sandboxes, and changes
// nothing.
func refused(t *testing.T, s *harness.Server, u inUse, says []string) {
	t.Helper()
	got := s.CLI(t, "serve", "--config", s.Config())
	for _, text := range append(says, "put back") {
		got.Is(t, 78, text)
	}
	if strings.Contains(got.Stderr, "missing") {
		got.Is(t, 78, u.sandbox)
		got.Is(t, 78, "1 workspace")
	}
	seen(t, u.word, 1)
}
