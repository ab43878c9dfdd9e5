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

// options are for a cell in a state directory of the test's own.
func options(t *testing.T) Options {
	t.Helper()
	guest, err := os.Executable()
	must(t, err)
	o := Options{Dir: filepath.Join(t.TempDir(), "cells"), ID: "sandbox-1", GuestPath: guest, ScratchBytes: 1 << 20}
	t.Cleanup(func() { must(t, Remove(context.WithoutCancel(t.Context()), o)) })
	return o
}

func makeCell(t *testing.T, o Options) *Dir {
	t.Helper()
	c, err := Make(soon(t), o)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wantGone checks that nothing of the cell is left.
func wantGone(t *testing.T, o Options) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, o.Dir+"/") {
			t.Errorf("mount is left: %s", line)
		}
	}
	if _, err := os.Lstat(filepath.Join(o.Dir, o.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder is left: %v", err)
	}
	left, err := Leftovers(o.Dir)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("leftovers: %v", left)
	}
}

// groupDirs are the cgroups that the cell delegated.
func groupDirs(t *testing.T, c *Dir) map[string]string {
	t.Helper()
	b, err := os.ReadFile(c.recordPath())
	must(t, err)
	var dirs map[string]string
	must(t, json.Unmarshal(b, &dirs))
	if len(dirs) == 0 {
		t.Fatal("no cgroups are recorded")
	}
	return dirs
}

func wantNoGroups(t *testing.T, dirs map[string]string) {
	t.Helper()
	for _, dir := range dirs {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("cgroup %s is left: %v", dir, err)
		}
	}
}

// attach attaches the cell and waits until the sandbox has its mounts, which an engine does before it says that one runs.
func attach(t *testing.T, c *Dir, s *sandbox) {
	t.Helper()
	must(t, c.Attach(soon(t), s.pid(), share))
	if got := tell(t, c, "list", "workspace"); got.Errno != 0 {
		t.Fatal(got.Errno)
	}
}

func workspace(t *testing.T, owner string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "owner"), []byte(owner), 0o644))
	return dir
}

func TestSandboxLivesInACell(t *testing.T) {
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

// live takes a cell through a whole life.
func live(t *testing.T, o Options) {
	t.Helper()
	ctx := soon(t)
	c := makeCell(t, o)
	s := startSandbox(t, c)
	attach(t, c, s)
	must(t, c.Attach(ctx, s.pid(), share))
	if err := c.Attach(ctx, 1, share); err == nil {
		t.Error("attached to a second process")
	}
	dirs := groupDirs(t, c)
	for name := range dirs {
		if got := tell(t, c, "read", "run/cgroup/"+name+"/cgroup.procs"); got.Errno != 0 {
			t.Errorf("cgroup %s inside: %v", name, got.Errno)
		}
		if got := tell(t, c, "mkdir", "run/cgroup/"+name+"/exec-1"); got.Errno != 0 {
			t.Errorf("make a group in %s inside: %v", name, got.Errno)
		}
	}
	for do, path := range map[string]string{
		"remove": "run/host.sock", "write": "run/guest", "mkdir": "run/new", "rmdir": "run/cgroup/other",
	} {
		if got := tell(t, c, do, path); got.Errno == 0 {
			t.Errorf("%s %s inside is possible", do, path)
		}
	}
	if got := tell(t, c, "write", "workspace/scratch"); got.Errno != 0 {
		t.Errorf("write to the scratch: %v", got.Errno)
	}

	must(t, c.Bind(ctx, workspace(t, "alice"), true))
	if got := tell(t, c, "read", "workspace/owner"); got.Out != "alice" {
		t.Errorf("workspace inside: %+v", got)
	}
	if got := tell(t, c, "write", "workspace/owner"); got.Errno != unix.EROFS {
		t.Errorf("write to a read-only workspace: %v", got.Errno)
	}
	if err := c.Bind(ctx, workspace(t, "bob"), false); !errors.Is(err, ErrBound) {
		t.Errorf("second workspace: %v", err)
	}
	must(t, c.Unbind(ctx))
	must(t, c.Unbind(ctx))
	if got := tell(t, c, "list", "workspace"); got.Out != "scratch" {
		t.Errorf("after release the workspace holds %q", got.Out)
	}

	s.kill()
	must(t, c.Remove(ctx))
	must(t, c.Remove(ctx))
	wantGone(t, o)
	wantNoGroups(t, dirs)
	if _, err := c.Open(ctx); !errors.Is(err, guestconn.ErrClosed) {
		t.Errorf("open after removal: %v", err)
	}
}

func TestWorkspaceInUseIsNotReleased(t *testing.T) {
	t.Parallel()
	o := options(t)
	ctx := soon(t)
	c := makeCell(t, o)
	s := startSandbox(t, c)
	attach(t, c, s)
	ws := workspace(t, "alice")
	must(t, c.Bind(ctx, ws, false))
	if got := tell(t, c, "chdir", "workspace"); got.Errno != 0 {
		t.Fatal(got.Errno)
	}
	if err := c.Unbind(ctx); !errors.Is(err, livemount.ErrBusy) {
		t.Fatalf("unbind: %v, want %v", err, livemount.ErrBusy)
	}
	s.kill()
	must(t, c.Unbind(ctx))
	must(t, c.Remove(ctx))
	if b, err := os.ReadFile(filepath.Join(ws, "owner")); err != nil || string(b) != "alice" {
		t.Fatalf("the workspace holds %q, %v", b, err)
	}
}

func TestNextHostAdoptsACell(t *testing.T) {
	t.Parallel()
	o := options(t)
	ctx := soon(t)
	first := makeCell(t, o)
	s := startSandbox(t, first)
	attach(t, first, s)
	must(t, first.Bind(ctx, workspace(t, "alice"), false))
	dirs := groupDirs(t, first)
	must(t, first.Close())

	c, err := Adopt(ctx, o)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.Attach(ctx, s.pid(), share))
	if got := tell(t, c, "read", "workspace/owner"); got.Out != "alice" {
		t.Errorf("workspace after the hand-over: %+v", got)
	}
	for name := range dirs {
		if n, err := livemount.Mounted(c.cgroupDir(name)); n != 1 || err != nil {
			t.Errorf("%d mounts on cgroup folder %s, %v", n, name, err)
		}
	}
	if err := c.Bind(ctx, workspace(t, "bob"), false); !errors.Is(err, ErrBound) {
		t.Errorf("bind over the workspace that was there: %v", err)
	}
	must(t, c.Unbind(ctx))
	must(t, c.Bind(ctx, workspace(t, "bob"), false))
	if got := tell(t, c, "read", "workspace/owner"); got.Out != "bob" {
		t.Errorf("next workspace: %+v", got)
	}
	// The sandbox is removed with its workspace still bound and its caller gone.
	s.kill()
	must(t, c.Remove(ctx))
	wantGone(t, o)
	wantNoGroups(t, dirs)
}

func TestMakeTakesBackWhatFailed(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"guest missing":    func(o *Options) { o.GuestPath = "/nonexistent" },
		"guest a folder":   func(o *Options) { o.GuestPath = "/proc" },
		"scratch unbound":  func(o *Options) { o.ScratchBytes = 0 },
		"id with a slash":  func(o *Options) { o.ID = "a/b" },
		"id going upwards": func(o *Options) { o.ID = ".." },
		"empty id":         func(o *Options) { o.ID = "" },
		"relative folder":  func(o *Options) { o.Dir = "cells" },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			dir := o.Dir
			t.Chdir(filepath.Dir(dir))
			change(&o)
			if _, err := Make(soon(t), o); err == nil {
				t.Fatal("the cell was made")
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
			t.Fatalf("make: %v", err)
		}
		wantGone(t, o)
	})
	t.Run("cell exists", func(t *testing.T) {
		o := options(t)
		c := makeCell(t, o)
		if _, err := Make(soon(t), o); !errors.Is(err, fs.ErrExist) {
			t.Fatalf("make: %v", err)
		}
		if n, err := livemount.Mounted(c.WorkspaceDir()); n != 1 || err != nil {
			t.Fatalf("the first cell was harmed: %d mounts, %v", n, err)
		}
	})
}

func TestAdoptOfNothing(t *testing.T) {
	t.Parallel()
	o := options(t)
	if _, err := Adopt(soon(t), o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("adopt: %v", err)
	}
	if left, err := Leftovers(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("leftovers: %v, %v", left, err)
	}
}

func TestStateDirectoryMayBeASymbolicLinkAndLong(t *testing.T) {
	t.Parallel()
	o := options(t)
	long := filepath.Join(filepath.Dir(o.Dir), strings.Repeat("d", 100), strings.Repeat("e", 100))
	must(t, os.MkdirAll(long, 0o700))
	must(t, os.Symlink(long, o.Dir))
	ctx := soon(t)
	c := makeCell(t, o)
	s := startSandbox(t, c)
	attach(t, c, s)
	must(t, c.Bind(ctx, workspace(t, "alice"), false))
	if got := tell(t, c, "read", "workspace/owner"); got.Out != "alice" {
		t.Errorf("workspace inside: %+v", got)
	}
	s.kill()
	must(t, c.Remove(ctx))
	wantGone(t, o)
}

func TestAttachRefusesNobody(t *testing.T) {
	t.Parallel()
	c := makeCell(t, options(t))
	if err := c.Attach(soon(t), 0, share); err == nil {
		t.Error("attached to pid 0")
	}
	if err := c.Bind(soon(t), workspace(t, "alice"), false); !errors.Is(err, ErrNotAttached) {
		t.Errorf("bind before attach: %v", err)
	}
}
