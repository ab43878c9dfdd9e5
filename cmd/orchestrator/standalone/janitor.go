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
	// newRunPrefix begins the name of a run's folder that has no lock yet.
	newRunPrefix = ".new-"
	// janitorTime is how long a janitor tries, in pauses of janitorPause: an
	// engine that is restarted is back by then. Later runs and servers try
	// again what it gave up.
	janitorTime  = 10 * time.Minute
	janitorPause = time.Second
	// firstFile is the number of the first file that a child inherits.
	firstFile = 3
)

// janitor is the child that cleans up after a run: it waits for the end of a
// pipe that only the run writes to, so that it learns of every end, SIGKILL
// too. It has a session of its own and ignores the signals that end the run.
type janitor struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

// startJanitor starts one for a run's folder. It inherits the run's locks, so
// that nobody gets what the run had before it is cleaned up.
func startJanitor(dir string, locks []*os.File) (*janitor, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start janitor: %w", err)
	}
	// Not by its path, where another version may stand by now.
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

// wait ends the pipe and waits for the janitor's end, at most until ctx's.
func (j *janitor) wait(ctx context.Context) error {
	err := j.pipe.Close()
	done := make(chan error, 1)
	go func() { done <- j.cmd.Wait() }() // ends with the janitor, or with us
	select {
	case werr := <-done:
		if werr != nil {
			werr = fmt.Errorf("clean up: %w", werr)
		}
		return errors.Join(err, werr)
	case <-ctx.Done():
		return errors.Join(err, cli.Refuse(errdefs.ErrUnavailable, "the clean-up goes on in process %d", j.cmd.Process.Pid))
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
	ctx = context.WithoutCancel(ctx) // a signal that came before changes nothing
	for fd := firstFile; fd < firstFile+4; fd++ {
		unix.CloseOnExec(fd) // the locks are for us, not for what we start
	}
	if _, err := io.Copy(io.Discard, a.Stdin); err != nil {
		return fmt.Errorf("wait for the run: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, janitorTime)
	defer cancel()
	record, _, err := readRecord(dir) // of what cannot be read nothing is cleaned up, and that is told below
	if err != nil {
		record = runRecord{}
	}
	for {
		log, closeLog := janitorLog(dir)
		err := cleanRun(ctx, dir, log)
		if err == nil && record.Workspaces { // we have them since the run ended
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

// janitorLog is a file in the run's folder, which goes with it when all went
// well. The streams are the user's and may be waited on.
func janitorLog(dir string) (log *slog.Logger, done func()) {
	f, err := os.OpenFile(filepath.Join(dir, "janitor.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil { // the folder is gone: nothing is left to be told
		return slog.New(slog.DiscardHandler), func() {}
	}
	return slog.New(slog.NewTextHandler(f, nil)), func() { f.Close() }
}

// cleanRun removes everything that a run made, and then its folder. Whoever
// calls it has the run's lock. A folder that is gone is success.
func cleanRun(ctx context.Context, dir string, log *slog.Logger) error {
	record, found, err := readRecord(dir)
	if err != nil {
		return err
	}
	if found { // else it had not begun to make anything
		if err := downRun(ctx, dir, record, log); err != nil {
			return err
		}
	}
	return RemoveRun(ctx, dir)
}

// downRun destroys the sandboxes of a run, with every driver that has begun to
// keep something in its folder.
func downRun(ctx context.Context, dir string, r runRecord, log *slog.Logger) error {
	st, err := store.Open(ctx, dir)
	if err != nil {
		return err
	}
	c := config.Default()
	c.Docker, c.Containerd, c.OCI = r.Docker, r.Containerd, r.OCI
	d := Drivers{Config: c, StateDir: dir, Guest: r.Guest, Log: log}
	var errs []error
	for _, name := range []string{RuntimeDocker, RuntimeContainerd, RuntimeOCI} {
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

// RemoveRun removes a run's folder. Where something is still mounted in it,
// which could be a workspace, nothing is removed.
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
		dir = real // as the kernel shows it
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

// SweepRuns cleans up after runs whose process and janitor both were killed.
// A run that lives, or is being cleaned up, holds its lock and is left alone.
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
