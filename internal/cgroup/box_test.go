package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
)

// patience limits every wait. It does not say how long anything takes.
const patience = time.Minute

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var eventually = testenv.Eventually

// helper is a process of the test binary in a role.
type helper struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t *testing.T, attr *syscall.SysProcAttr, role string, args ...string) *helper {
	t.Helper()
	h := &helper{Cmd: exec.Command("/proc/self/exe", args...)}
	h.Env = append(os.Environ(), roleEnv+"="+role, "GOMAXPROCS=2")
	h.SysProcAttr = attr
	h.Stderr = os.Stderr
	in, err1 := h.StdinPipe()
	out, err2 := h.StdoutPipe()
	if err := errors.Join(err1, err2, h.Start()); err != nil {
		t.Fatal(err)
	}
	h.in, h.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		_ = h.Process.Kill()
		_ = h.Wait()
	})
	h.line(t, "here")
	return h
}

func (h *helper) line(t *testing.T, want string) string {
	t.Helper()
	s, err := h.out.ReadString('\n')
	s = strings.TrimSpace(s)
	if err != nil || want != "" && s != want {
		t.Fatalf("helper said %q (%v), want %q", s, err, want)
	}
	return s
}

func (h *helper) proceed(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(h.in, "go\n"); err != nil {
		t.Fatal(err)
	}
}

var boxes atomic.Int64

// box returns the init of a sandbox without a runtime: a process in a separate pid namespace, with
// separate cgroups in the hierarchies for which join returns true.
func box(t *testing.T, join func(name string) bool) *helper {
	t.Helper()
	return boxOf(t, "sleep", join)
}

// boxOf returns a box whose init plays the role.
func boxOf(t *testing.T, role string, join func(name string) bool) *helper {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	h, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	init := start(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}, role)
	for name, m := range h.mounts {
		if !join(name) {
			continue
		}
		if h.Mode == ModeV2 {
			if err := enableControllers(m.point, []string{Memory, Pids, CPU}); err != nil {
				t.Fatal(err)
			}
		}
		dir := filepath.Join(m.point, fmt.Sprintf("cgroup-test-%d-%d", os.Getpid(), boxes.Add(1)))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sweepDir(t, dir, init) })
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, init.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	return init
}

// sweepDir removes the cgroup of a test and everything below it.
func sweepDir(t *testing.T, dir string, init *helper) {
	t.Helper()
	_ = init.Process.Kill()
	_ = init.Wait()
	eventually(t, "removal of "+dir, func() bool {
		var dirs []string
		_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = os.Remove(dirs[i])
		}
		return !exists(dir)
	})
}

func everywhere(string) bool { return true }

// delegated makes a box with a share and opens the delegated cgroups as the guest would.
func delegated(t *testing.T, s Share) (*Tree, *Delegated) {
	t.Helper()
	init := box(t, everywhere)
	d, err := Delegate(init.Process.Pid, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(bounded(t)); err != nil {
			t.Error(err)
		}
	})
	return treeOf(t, d), d
}

func treeOf(t *testing.T, d *Delegated) *Tree {
	t.Helper()
	tree := &Tree{}
	for _, kind := range Names() {
		if d.Dirs[kind] == "" {
			continue
		}
		x, err := openDir(d.Dirs[kind])
		if err != nil {
			t.Fatal(err)
		}
		tree.dirs = append(tree.dirs, hierarchyDir{dir: x, kind: kind})
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func group(t *testing.T, tree *Tree, name string) *Group {
	t.Helper()
	g, err := tree.Make(name)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// command starts a role in the group.
func command(t *testing.T, g *Group, role string, args ...string) *helper {
	t.Helper()
	h := start(t, nil, role, args...)
	if err := g.Add(h.Process.Pid); err != nil {
		t.Fatal(err)
	}
	h.proceed(t)
	return h
}

func dead(t *testing.T, g *Group) {
	t.Helper()
	n, err := g.Alive()
	if n != 0 || err != nil {
		t.Errorf("Alive after the kill = %d, %v; want 0 and no error", n, err)
	}
	if err := g.Remove(); err != nil {
		t.Errorf("Remove: %v", err)
	}
}
