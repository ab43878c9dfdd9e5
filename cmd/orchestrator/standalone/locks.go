//go:build linux

package standalone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Parts of a state directory S that several processes use. A server holds S/lock for its life (see
// package store). Beside it are:
//
//	S/images.lock      held while the image store is open; by a server for its life
//	S/images.use       shared by local runs, so that no image is removed while they use it
//	S/workspaces.lock  held while the workspaces are open; by a server or a local run for its life
//	S/runs/<id>        a local run; its lock is held by the run and its janitor
const (
	ImagesLock     = "images.lock"
	ImagesUse      = "images.use"
	WorkspacesLock = "workspaces.lock"
	RunsDir        = "runs"
)

// lockWait bounds the wait for another command that uses the same part. Unpacking an image takes
// seconds.
const lockWait = 2 * time.Minute

// LockFile locks a file, shared or exclusive. It does not wait: if another process holds the lock,
// the error is of class Unavailable. The lock is released when the file is closed in every process
// that inherited it.
func LockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	locked, err := hostfile.TryLock(f, how)
	if err == nil && !locked {
		err = cli.Refuse(errdefs.ErrUnavailable, "%s is held", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// waitForLock is LockFile that waits. It does not wait for a server, which holds its locks for its
// life: that is a HeldByServerError.
func waitForLock(ctx context.Context, dir, name string, how int) (*os.File, error) {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		lockWait,
		cli.Refuse(errdefs.ErrUnavailable, "%s was held by another process for %s", filepath.Join(dir, name), lockWait),
	)
	defer cancel()
	for {
		f, err := LockFile(filepath.Join(dir, name), how)
		if err == nil || !errdefs.IsUnavailable(err) {
			return f, err
		}
		if pid := cli.ServerPID(dir); pid != "" {
			return nil, &HeldByServerError{
				cli.Refuse(
					errdefs.ErrUnavailable,
					"state directory %s is held by the server with pid %s: use that server (--address), or another --state-dir",
					dir,
					pid,
				),
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// MakeStateDir creates a state directory that only its owner can access.
func MakeStateDir(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if errors.Is(err, os.ErrPermission) {
		return cli.Refuse(
			errdefs.ErrPermissionDenied,
			"state directory %s: %w: run as root, or name a directory of your own with --state-dir",
			dir,
			err,
		)
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// StoppedServerSandboxes returns the sandboxes that a stopped server left for the next one.
func StoppedServerSandboxes(ctx context.Context, dir string) (live []store.Sandbox, err error) {
	if !store.HasState(dir) {
		return nil, nil // never used by a server
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

// CheckUnheld returns an error if a sandbox of a stopped server has the workspace.
func CheckUnheld(ctx context.Context, dir, workspace string) error {
	live, err := StoppedServerSandboxes(ctx, dir)
	if err != nil {
		return err
	}
	for _, s := range live {
		if s.Lease.Workspace == workspace {
			return cli.Refuse(
				errdefs.ErrFailedPrecondition,
				"workspace %s is used by sandbox %s of a stopped server, which is still running: start it again, or end it with `orchestrator down`",
				workspace,
				s.ID,
			)
		}
	}
	return nil
}
