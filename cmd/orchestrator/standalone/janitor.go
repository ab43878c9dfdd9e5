//go:build linux

package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

const (
	// newRunPrefix is the prefix of a run's directory that has no lock yet.
	newRunPrefix = ".new-"
	// janitorTime bounds how long a janitor retries, with pauses of janitorPause. An engine that
	// restarts is back by then. Later runs and servers retry what it could not remove.
	janitorTime  = 10 * time.Minute
	janitorPause = time.Second
	// firstFile is the number of the first file that a child inherits.
	firstFile = 3
)

// janitor is a child process that cleans up after a run. It waits for the end of a pipe that only
// the run holds, so it notices every end, SIGKILL included. It has its own session and ignores the
// signals that end the run.
type janitor struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

// startJanitor starts a janitor for the directory of a run. It inherits the locks of the run, so
// that nothing is reused before it is cleaned up.
func startJanitor(dir string, locks []*os.File) (*janitor, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start janitor: %w", err)
	}
	// Do not use the path of the program: another version may be there by now.
	cmd := exec.Command("/proc/self/exe", "janitor", dir)
	cmd.Args[0] = "orchestrator"
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.ExtraFiles = locks
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	r.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start janitor: %w", err), w.Close())
	}
	return &janitor{cmd: cmd, pipe: w}, nil
}

// wait closes the pipe and waits for the end of the janitor, at most until ctx ends.
func (j *janitor) wait(ctx context.Context) error {
	err := j.pipe.Close()
	done := make(chan error, 1)
	go func() { done <- j.cmd.Wait() }() // ends with the janitor or this process
	select {
	case werr := <-done:
		if werr != nil {
			werr = fmt.Errorf("clean up: %w", werr)
		}
		return errors.Join(err, werr)
	case <-ctx.Done():
		return errors.Join(err, cli.Refuse(errdefs.ErrUnavailable, "process %d continues the clean-up", j.cmd.Process.Pid))
	}
}

// NewJanitorCommand returns the hidden command that a local run starts to clean up after itself.
func NewJanitorCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "janitor DIR",
		Short:   "Clean up after a run when standard input ends",
		Example: "  orchestrator janitor /var/lib/orchestrator/runs/ID",
		Hidden:  true,
		Args:    cli.ExactArgs("DIR"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runJanitor(cmd.Context(), a, args[0]) },
	}
}

func runJanitor(ctx context.Context, a *cli.App, dir string) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	ctx = context.WithoutCancel(ctx) // ignore signals that came before
	for fd := firstFile; fd < firstFile+4; fd++ {
		unix.CloseOnExec(fd) // programs that it starts must not inherit the locks
	}
	if _, err := io.Copy(io.Discard, a.Stdin); err != nil {
		return fmt.Errorf("wait for the run: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, janitorTime)
	defer cancel()
	record, _, err := readRecord(dir) // without a record, nothing is cleaned up; the error is reported below
	if err != nil {
		record = runRecord{}
	}
	for {
		log, closeLog := janitorLog(dir)
		err := cleanRun(ctx, dir, log)
		if err == nil && record.Workspaces { // the janitor holds the lock of the workspaces since the run ended
			err = cleanWorkspaces(ctx, filepath.Dir(filepath.Dir(dir)), log)
		}
		if err != nil {
			log.Error("not cleaned up yet", "error", err)
		}
		closeLog()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(janitorPause):
		case <-ctx.Done():
			return err
		}
	}
}

// janitorLog opens a file in the run's directory, which is removed with it after success. The
// standard streams belong to the user, and others may wait for their end.
func janitorLog(dir string) (log *slog.Logger, done func()) {
	f, err := os.OpenFile(filepath.Join(dir, "janitor.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil { // the directory is gone, so there is nothing to log
		return slog.New(slog.DiscardHandler), func() {}
	}
	return slog.New(slog.NewTextHandler(f, nil)), func() { f.Close() }
}

// cleanRun removes everything that a run created, and then its directory. The caller holds the
// run's lock. It succeeds if the directory is gone.
func cleanRun(ctx context.Context, dir string, log *slog.Logger) error {
	record, found, err := readRecord(dir)
	if err != nil {
		return err
	}
	if found { // else nothing was created yet
		if err := downRun(ctx, dir, record, log); err != nil {
			return err
		}
	}
	return RemoveRun(ctx, dir)
}

// downRun destroys the sandboxes of a run with every driver that has a directory in it.
func downRun(ctx context.Context, dir string, r runRecord, log *slog.Logger) error {
	st, err := store.Open(ctx, dir)
	if err != nil {
		return err
	}
	c := config.Default()
	c.Docker, c.Containerd, c.OCI, c.Kubernetes = r.Docker, r.Containerd, r.OCI, r.Kubernetes
	d := Drivers{Config: c, StateDir: dir, Guest: r.Guest, Log: log}
	var errs []error
	for _, name := range []string{RuntimeDocker, RuntimeContainerd, RuntimeOCI, RuntimeKubernetes} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			continue
		}
		driver, _, err := d.Open(ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, TakeDown(ctx, driver, st, log), driver.Close())
	}
	return errors.Join(append(errs, st.Close())...)
}

// RemoveRun removes the directory of a run. It refuses if something is still mounted there, because
// that could be a workspace.
func RemoveRun(ctx context.Context, dir string) error {
	mounts, err := MountsBelow(dir)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return cli.Refuse(errdefs.ErrFailedPrecondition, "remove %s: %s is still mounted", dir, mounts[0])
	}
	root, err := safefile.Open(filepath.Dir(dir), safefile.Options{})
	if errors.Is(err, os.ErrNotExist) || errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(ctx, filepath.Base(dir), true); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// MountsBelow returns the mount points below a directory.
func MountsBelow(dir string) ([]string, error) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // mountinfo has the resolved path
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	var found []string
	for _, m := range mounts {
		if m.Mountpoint != dir {
			found = append(found, m.Mountpoint)
		}
	}
	return found, nil
}

// SweepRuns cleans up after runs whose process and janitor were both killed. It skips runs that are
// locked: they are alive, or being cleaned up.
func SweepRuns(ctx context.Context, stateDir string, log *slog.Logger) error {
	parent := filepath.Join(stateDir, RunsDir)
	entries, err := os.ReadDir(parent)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for earlier runs: %w", err)
	}
	errs := []error{scratch.Sweep(parent, newRunPrefix, nil)}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if strings.HasPrefix(e.Name(), newRunPrefix) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		lock, err := LockFile(filepath.Join(dir, "lock"), unix.LOCK_EX)
		switch {
		case errdefs.IsUnavailable(err), errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		}
		log.Info("cleaning up after an earlier run", "dir", dir)
		errs = append(errs, cleanRun(ctx, dir, log), lock.Close())
	}
	return errors.Join(errs...)
}
