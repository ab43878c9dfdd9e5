package rundir

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// share is small enough for any machine and large enough for the orders.
var share = cgroup.Share{MemoryBytes: 64 << 20, Pids: 32, CPU: 1}

// options returns options for a directory in a new state directory.
func options(t *testing.T) Options {
	t.Helper()
	guest, err := os.Executable()
	must(t, err)
	o := Options{Dir: filepath.Join(t.TempDir(), "cells"), ID: "sandbox-1", GuestPath: guest, ScratchBytes: 1 << 20}
	t.Cleanup(func() { must(t, Remove(context.WithoutCancel(t.Context()), o)) })
	return o
}

func makeDir(t *testing.T, o Options) *Dir {
	t.Helper()
	c, err := Make(soon(t), o)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wantGone checks that nothing of the directory is left.
func wantGone(t *testing.T, o Options) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, o.Dir+"/") {
			t.Errorf("mount is left: %s, want none", line)
		}
	}
	if _, err := os.Lstat(filepath.Join(o.Dir, o.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lstat of the directory = %v, want ErrNotExist", err)
	}
	left, err := Leftovers(o.Dir)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("Leftovers = %v, want none", left)
	}
}

// groupDirs returns the cgroups that the directory delegated.
func groupDirs(t *testing.T, c *Dir) map[string]string {
	t.Helper()
	b, err := os.ReadFile(c.recordPath())
	must(t, err)
	var dirs map[string]string
	must(t, json.Unmarshal(b, &dirs))
	if len(dirs) == 0 {
		t.Fatal("the record has no cgroups, want some")
	}
	return dirs
}

func wantNoGroups(t *testing.T, dirs map[string]string) {
	t.Helper()
	for _, dir := range dirs {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lstat of the cgroup %s = %v, want ErrNotExist", dir, err)
		}
	}
}

// attach attaches the directory and waits until the sandbox has its mounts. An engine also waits
// before it reports a running sandbox.
func attach(t *testing.T, c *Dir, s *sandbox) {
	t.Helper()
	must(t, c.Attach(soon(t), s.pid(), share))
	if got := tell(t, c, "list", "workspace"); got.Errno != 0 {
		t.Fatalf("list workspace inside = %+v, want no error", got)
	}
}

// wantErrno has the sandbox do something with a path and checks the error number.
func wantErrno(t *testing.T, c *Dir, do, path string, want unix.Errno) {
	t.Helper()
	if got := tell(t, c, do, path); got.Errno != want {
		t.Errorf("%s %s inside = %+v, want errno %d (%v)", do, path, got, int(want), want)
	}
}

// wantOut has the sandbox do something with a path and checks the output.
func wantOut(t *testing.T, c *Dir, do, path, want string) {
	t.Helper()
	if got := tell(t, c, do, path); got.Out != want {
		t.Errorf("%s %s inside = %+v, want %q", do, path, got, want)
	}
}

func workspace(t *testing.T, owner string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "owner"), []byte(owner), 0o644))
	return dir
}

func TestDirLifecycle(t *testing.T) {
	t.Parallel()
	for name, propagation := range map[string]uintptr{"shared": unix.MS_SHARED, "private": unix.MS_PRIVATE} {
		t.Run(name+" state directory", func(t *testing.T) {
			t.Parallel()
			o := options(t)
			must(t, os.Mkdir(o.Dir, 0o700))
			must(t, unix.Mount("state", o.Dir, "tmpfs", 0, "size=1m"))
			must(t, unix.Mount("", o.Dir, "", propagation, ""))
			defer func() { must(t, unix.Unmount(o.Dir, 0)) }()
			live(t, o)
		})
	}
}

// live takes a directory through a whole life.
func live(t *testing.T, o Options) {
	t.Helper()
	ctx := soon(t)
	c := makeDir(t, o)
	s := startSandbox(t, c)
	attach(t, c, s)
	must(t, c.Attach(ctx, s.pid(), share))
	if err := c.Attach(ctx, 1, share); err == nil {
		t.Error("Attach to a second process succeeded, want an error")
	}
	dirs := groupDirs(t, c)
	for name := range dirs {
		wantErrno(t, c, "read", "run/cgroup/"+name+"/cgroup.procs", 0)
		wantErrno(t, c, "mkdir", "run/cgroup/"+name+"/exec-1", 0)
	}
	for do, path := range map[string]string{
		"remove": "run/host.sock", "write": "run/guest", "mkdir": "run/new", "rmdir": "run/cgroup/other",
	} {
		if got := tell(t, c, do, path); got.Errno == 0 {
			t.Errorf("%s %s inside = %+v, want an error", do, path, got)
		}
	}
	wantErrno(t, c, "write", "workspace/scratch", 0)

	must(t, c.Bind(ctx, workspace(t, "alice"), true))
	wantOut(t, c, "read", "workspace/owner", "alice")
	wantErrno(t, c, "write", "workspace/owner", unix.EROFS)
	if err := c.Bind(ctx, workspace(t, "bob"), false); !errors.Is(err, ErrBound) {
		t.Errorf("Bind of a second workspace = %v, want ErrBound", err)
	}
	must(t, c.Unbind(ctx))
	must(t, c.Unbind(ctx))
	wantOut(t, c, "list", "workspace", "scratch")

	s.kill()
	must(t, c.Remove(ctx))
	must(t, c.Remove(ctx))
	wantGone(t, o)
	wantNoGroups(t, dirs)
	if _, err := c.Open(ctx); !errors.Is(err, guestconn.ErrClosed) {
		t.Errorf("Open after Remove = %v, want ErrClosed", err)
	}
}

func TestWorkspaceInUseIsNotReleased(t *testing.T) {
	t.Parallel()
	o := options(t)
	ctx := soon(t)
	c := makeDir(t, o)
	s := startSandbox(t, c)
	attach(t, c, s)
	ws := workspace(t, "alice")
	must(t, c.Bind(ctx, ws, false))
	if got := tell(t, c, "chdir", "workspace"); got.Errno != 0 {
		t.Fatalf("chdir workspace inside = %+v, want no error", got)
	}
	if err := c.Unbind(ctx); !errors.Is(err, livemount.ErrBusy) {
		t.Fatalf("Unbind = %v, want %v", err, livemount.ErrBusy)
	}
	s.kill()
	must(t, c.Unbind(ctx))
	must(t, c.Remove(ctx))
	if b, err := os.ReadFile(filepath.Join(ws, "owner")); err != nil || string(b) != "alice" {
		t.Fatalf("owner in the workspace = %q, %v; want alice", b, err)
	}
}

func TestNextHostAdopts(t *testing.T) {
	t.Parallel()
	o := options(t)
	ctx := soon(t)
	first := makeDir(t, o)
	s := startSandbox(t, first)
	attach(t, first, s)
	must(t, first.Bind(ctx, workspace(t, "alice"), false))
	dirs := groupDirs(t, first)
	must(t, first.Close())

	c, err := Adopt(ctx, o)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.Attach(ctx, s.pid(), share))
	wantOut(t, c, "read", "workspace/owner", "alice")
	for name := range dirs {
		if n, err := livemount.Mounted(c.cgroupDir(name)); n != 1 || err != nil {
			t.Errorf("Mounted of the cgroup %s = %d, %v; want 1", name, n, err)
		}
	}
	if err := c.Bind(ctx, workspace(t, "bob"), false); !errors.Is(err, ErrBound) {
		t.Errorf("Bind after Adopt = %v, want ErrBound", err)
	}
	must(t, c.Unbind(ctx))
	must(t, c.Bind(ctx, workspace(t, "bob"), false))
	wantOut(t, c, "read", "workspace/owner", "bob")
	// The sandbox is removed with its workspace still bound and its caller gone.
	s.kill()
	must(t, c.Remove(ctx))
	wantGone(t, o)
	wantNoGroups(t, dirs)
}

func TestFailedMakeLeavesNothing(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"guest missing":      func(o *Options) { o.GuestPath = "/nonexistent" },
		"guest a directory":  func(o *Options) { o.GuestPath = "/proc" },
		"scratch unbound":    func(o *Options) { o.ScratchBytes = 0 },
		"id with a slash":    func(o *Options) { o.ID = "a/b" },
		"id going upwards":   func(o *Options) { o.ID = ".." },
		"empty id":           func(o *Options) { o.ID = "" },
		"relative directory": func(o *Options) { o.Dir = "cells" },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			dir := o.Dir
			t.Chdir(filepath.Dir(dir))
			change(&o)
			if _, err := Make(soon(t), o); err == nil {
				t.Fatal("Make succeeded, want an error")
			}
			o.Dir, o.ID = dir, "sandbox-1"
			wantGone(t, o)
		})
	}
	t.Run("context ended", func(t *testing.T) {
		o := options(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("gave up")
		cancel(cause)
		if _, err := Make(ctx, o); !errors.Is(err, cause) {
			t.Fatalf("Make = %v, want %v", err, cause)
		}
		wantGone(t, o)
	})
	t.Run("directory exists", func(t *testing.T) {
		o := options(t)
		c := makeDir(t, o)
		if _, err := Make(soon(t), o); !errors.Is(err, fs.ErrExist) {
			t.Fatalf("Make of an existing directory = %v, want ErrExist", err)
		}
		if n, err := livemount.Mounted(c.WorkspaceDir()); n != 1 || err != nil {
			t.Fatalf("Mounted of the first workspace = %d, %v; want 1", n, err)
		}
	})
}

func TestAdoptMissing(t *testing.T) {
	t.Parallel()
	o := options(t)
	if _, err := Adopt(soon(t), o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Adopt = %v, want ErrNotExist", err)
	}
	if left, err := Leftovers(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("Leftovers = %v, %v; want none", left, err)
	}
}

func TestStateDirectoryIsLongLink(t *testing.T) {
	t.Parallel()
	o := options(t)
	long := filepath.Join(filepath.Dir(o.Dir), strings.Repeat("d", 100), strings.Repeat("e", 100))
	must(t, os.MkdirAll(long, 0o700))
	must(t, os.Symlink(long, o.Dir))
	ctx := soon(t)
	c := makeDir(t, o)
	s := startSandbox(t, c)
	attach(t, c, s)
	must(t, c.Bind(ctx, workspace(t, "alice"), false))
	wantOut(t, c, "read", "workspace/owner", "alice")
	s.kill()
	must(t, c.Remove(ctx))
	wantGone(t, o)
}

func TestAttachPIDZeroFails(t *testing.T) {
	t.Parallel()
	c := makeDir(t, options(t))
	if err := c.Attach(soon(t), 0, share); err == nil {
		t.Error("Attach to pid 0 succeeded, want an error")
	}
	if err := c.Bind(soon(t), workspace(t, "alice"), false); !errors.Is(err, ErrNotAttached) {
		t.Errorf("Bind before Attach = %v, want ErrNotAttached", err)
	}
}
