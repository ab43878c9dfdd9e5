//go:build linux

package standalone

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// EndOrphanedOverlays ends the overlays of local runs that were killed. It leaves those of a
// stopped server's sandboxes.
func EndOrphanedOverlays(ctx context.Context, stateDir string, m *volumes.Manager) error {
	left := m.OrphanedOverlays()
	if len(left) == 0 {
		return nil
	}
	live, err := StoppedServerSandboxes(ctx, stateDir)
	if errdefs.IsUnavailable(err) {
		return nil // a server is starting and will do it
	}
	if _, lost := errors.AsType[*store.StateError](err); lost {
		return nil // a sandbox may be alive, so the next server decides
	}
	if err != nil {
		return err
	}
	return m.EndOverlays(ctx, slices.DeleteFunc(left, func(id string) bool {
		return slices.ContainsFunc(live, func(s store.Sandbox) bool { return s.ID == id })
	})...)
}

// cleanWorkspaces ends orphaned overlays and unmounts unused workspaces, for a janitor.
func cleanWorkspaces(ctx context.Context, stateDir string, log *slog.Logger) error {
	m, err := volumes.Open(engine.DirsOf(stateDir).Workspaces, volumes.Options{Log: log})
	if err != nil {
		return err
	}
	return errors.Join(EndOrphanedOverlays(ctx, stateDir, m), m.UnmountUnused(ctx), m.Close())
}

// DownWorkspaces ends all overlays and unmounts all workspaces. No sandbox may be left.
func DownWorkspaces(ctx context.Context, c config.Config, log *slog.Logger) (err error) {
	dir := engine.DirsOf(c.StateDir).Workspaces
	lock, err := LockFile(filepath.Join(c.StateDir, WorkspacesLock), unix.LOCK_EX)
	if errdefs.IsUnavailable(err) {
		return nil // a live run takes its own down
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	m, err := volumes.Open(dir, VolumeOptions(c, log))
	if err != nil {
		return err
	}
	return m.Down(ctx)
}
