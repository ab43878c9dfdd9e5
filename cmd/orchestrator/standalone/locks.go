package standalone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// The parts of a state directory S that are used by more than one process.
// S/lock is held by the server for its life (package store). Beside it:
//
//	S/images.lock      whoever has the image store open, the server for its life
//	S/images.use       shared by runs without a server, so that no image is removed under them
//	S/workspaces.lock  whoever has the workspaces open: the server, or a run with one for its life
//	S/runs/<id>        one run without a server; its lock is held by it and its janitor
const (
	ImagesLock     = "images.lock"
	ImagesUse      = "images.use"
	WorkspacesLock = "workspaces.lock"
	RunsDir        = "runs"
)

// lockWait is how long a command waits for another one that has the same part
// of the state directory for a short time: unpacking an image takes seconds.
const lockWait = 2 * time.Minute

// LockFile takes the lock of a file, shared or exclusive, without waiting. Held by
// somebody else, it is ErrUnavailable. Closing the file lets go, and so does
// the end of the last process that has it.
func LockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(cli.Refuse(errdefs.ErrUnavailable, "%s is held", path), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// waitForLock is flock that waits, but not for a server: that holds its locks for
// as long as it lives.
func waitForLock(ctx context.Context, dir, name string, how int) (*os.File, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, cli.Refuse(errdefs.ErrUnavailable, "%s was held by another process for %s", filepath.Join(dir, name), lockWait))
	defer cancel()
	for {
		f, err := LockFile(filepath.Join(dir, name), how)
		if err == nil || !errdefs.IsUnavailable(err) {
			return f, err
		}
		if pid := cli.ServerPID(dir); pid != "" {
			return nil, &HeldByServerError{cli.Refuse(errdefs.ErrUnavailable, "state directory %s is held by the server with pid %s: use that server (--address), or another --state-dir",
				dir, pid)}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// HeldByServerError says that a server holds what a command without one needs.
type HeldByServerError struct{ error }

// Unwrap gives its class.
func (e *HeldByServerError) Unwrap() error { return e.error }

// MakeStateDir makes a state directory for its owner alone.
func MakeStateDir(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if errors.Is(err, os.ErrPermission) {
		return cli.Refuse(errdefs.ErrPermissionDenied, "state directory %s: %w: run as root, or name a directory of your own with --state-dir", dir, err)
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// StoppedServerSandboxes are the sandboxes that a server which was stopped has left to the
// next one.
func StoppedServerSandboxes(ctx context.Context, dir string) (live []store.Sandbox, err error) {
	if !store.HasState(dir) {
		return nil, nil // no server was ever here
	}
	lock, err := store.LockDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	st, err := store.OpenState(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	return st.Live(ctx)
}

// CheckUnheld is an error where such a sandbox has the workspace.
func CheckUnheld(ctx context.Context, dir, workspace string) error {
	live, err := StoppedServerSandboxes(ctx, dir)
	if err != nil {
		return err
	}
	for _, s := range live {
		if s.Lease.Workspace == workspace {
			return cli.Refuse(errdefs.ErrFailedPrecondition, "workspace %s is bound to sandbox %s of a stopped server, which lives on: start it again, or end it with `orchestrator down`",
				workspace, s.ID)
		}
	}
	return nil
}
