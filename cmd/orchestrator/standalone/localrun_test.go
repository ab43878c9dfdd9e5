//go:build linux

package standalone

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
)

// TestMain makes the test binary a janitor if startJanitor started it, under the name "orchestrator".
// It must not run the tests then: they would start it again, without an end.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "orchestrator" {
		os.Exit(m.Run())
	}
	a := &cli.App{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Lookup: os.LookupEnv}
	if len(os.Args) != 3 || os.Args[1] != "janitor" {
		os.Exit(a.Finish(fmt.Errorf("unexpected arguments %q", os.Args[1:])))
	}
	janitor := NewJanitorCommand(a)
	janitor.SetArgs(os.Args[2:])
	os.Exit(a.Finish(janitor.ExecuteContext(context.Background())))
}

// patience is how long something may take on a loaded machine.
const patience = 2 * time.Minute

var eventually = testenv.Eventually

// newTestRun makes the directory of a run that has created nothing yet.
func newTestRun(t *testing.T, state string) *LocalRun {
	t.Helper()
	h := &LocalRun{Log: slog.New(slog.DiscardHandler)}
	if err := h.makeDir(state); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.dir, "something"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *LocalRun) releaseLocks(t *testing.T) {
	t.Helper()
	for _, l := range h.locks {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	h.locks = nil
}

// ignores reports whether a process ignores a signal.
func ignores(pid int, sig syscall.Signal) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if mask, ok := strings.CutPrefix(s.Text(), "SigIgn:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && n&(1<<(sig-1)) != 0
		}
	}
	return false
}

// The janitor outlives signals and the run, keeps the run's lock, and removes its directory.
func TestJanitorCleansUpAfterRun(t *testing.T) {
	state := t.TempDir()
	h := newTestRun(t, state)
	j, err := startJanitor(h.dir, h.locks)
	if err != nil {
		t.Fatal(err)
	}
	pid := j.cmd.Process.Pid
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	for _, s := range signals {
		eventually(t, "janitor ignores "+s.String(), func() bool { return ignores(pid, s) })
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("janitor %d is in session %d, %v; want one of its own", pid, sid, err)
	}
	h.releaseLocks(t) // as the end of the process does
	if _, err := LockFile(filepath.Join(h.dir, "lock"), unix.LOCK_EX); !errdefs.IsUnavailable(err) {
		t.Errorf("LockFile while the janitor runs = %v, want Unavailable", err)
	}
	if err := SweepRuns(t.Context(), state, h.Log); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "something")); err != nil {
		t.Errorf("Stat in the directory of a run with a janitor = %v, want it kept", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := j.wait(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(h.dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Stat of the directory after the janitor = %v, want ErrNotExist", err)
	}
}

func TestSweepRunsRemovesUnlocked(t *testing.T) {
	state := t.TempDir()
	dead, alive := newTestRun(t, state), newTestRun(t, state)
	dead.releaseLocks(t)
	defer alive.releaseLocks(t)
	made, err := scratch.Make(filepath.Join(state, RunsDir), newRunPrefix)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Release()
	fresh, old := made.Path, filepath.Join(state, RunsDir, newRunPrefix+"left")
	if err := os.Mkdir(old, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is idempotent
		if err := SweepRuns(t.Context(), state, dead.Log); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]bool{dead.dir: false, alive.dir: true, fresh: true, old: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(dir), err == nil, want)
		}
	}
}

// A mount in the run's directory may hold a user's files.
func TestRemoveRunRefusesMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	h := newTestRun(t, t.TempDir())
	defer h.releaseLocks(t)
	precious := t.TempDir()
	file := filepath.Join(precious, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(h.dir, "at")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(precious, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) }) // fails if the test has unmounted it
	if err := RemoveRun(t.Context(), h.dir); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), at) {
		t.Errorf("RemoveRun with a mount = %v, want FailedPrecondition with %s", err, at)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := RemoveRun(t.Context(), h.dir); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
}

func TestWaitForLockNamesServer(t *testing.T) {
	dir := t.TempDir()
	images, err := LockFile(filepath.Join(dir, ImagesLock), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	if pid := cli.ServerPID(dir); pid != "" {
		t.Errorf("ServerPID without a server = %s, want none", pid)
	}
	// Without a server the command waits, here until its context ends.
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
	defer cancel()
	if _, err := waitForLock(ctx, dir, ImagesLock, unix.LOCK_EX); !errors.Is(err, enough) {
		t.Errorf("waitForLock without a server = %v, want %v", err, enough)
	}
	lock, err := store.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = waitForLock(t.Context(), dir, ImagesLock, unix.LOCK_EX)
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("waitForLock = %v, want Unavailable with pid %d", err, os.Getpid())
	}
	if err := errors.Join(lock.Unlock(), images.Close()); err != nil {
		t.Fatal(err)
	}
	free, err := waitForLock(t.Context(), dir, ImagesLock, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
}

func TestChooseUsesRuntimeOfLiveSandboxes(t *testing.T) {
	d, o := store.Sandbox{Runtime: "docker"}, store.Sandbox{Runtime: "oci"}
	for _, c := range []struct {
		live []store.Sandbox
		want string
	}{{nil, ""}, {[]store.Sandbox{d, d}, "docker"}, {[]store.Sandbox{o}, "oci"}} {
		if got, err := runtimeOf(c.live); err != nil || got != c.want {
			t.Errorf("runtimeOf(%v) = %q, %v; want %q", c.live, got, err, c.want)
		}
	}
	if _, err := runtimeOf([]store.Sandbox{o, d}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "orchestrator down --runtime docker") {
		t.Errorf("runtimeOf two runtimes = %v, want FailedPrecondition with the command to run", err)
	}
	c := config.Default()
	c.Runtime = RuntimeOCI
	x := Drivers{Config: c, StateDir: t.TempDir(), Guest: "/bin/true", Log: slog.New(slog.DiscardHandler)}
	if _, _, err := x.Choose(t.Context(), []store.Sandbox{d}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "live sandboxes of docker") {
		t.Errorf("Choose with another runtime configured = %v, want FailedPrecondition about live sandboxes", err)
	}
	x.Config.Runtime = RuntimeAuto
	x.Config.Docker.Host = "unix://" + filepath.Join(t.TempDir(), "none.sock")
	if _, _, err := x.Choose(t.Context(), []store.Sandbox{d}); err == nil ||
		!strings.Contains(err.Error(), "which cannot be used now") {
		t.Errorf("Choose with a dead engine = %v, want an error that it cannot be used now", err)
	}
}

// A dead engine accepts connections and never answers.
func TestDockerAnswersTimesOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := DockerAnswers(ctx, "unix://"+path); err == nil || ctx.Err() != nil {
		t.Errorf("DockerAnswers of a dead engine = %v, context %v; want an error before the deadline", err, ctx.Err())
	}
	if err := DockerAnswers(ctx, "unix://"+path+".none"); err == nil {
		t.Error("DockerAnswers without an engine = nil, want an error")
	}
}
