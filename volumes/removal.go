package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
)

// A removal first renames the directory, which is atomic, and then removes its files, which can
// take long. The caller may give up before that, or a file may be busy. Each tick retries what is
// left, because its space is charged to no workspace.

// removeLater queues the removal of a directory inside a workspace's directory.
func (m *Manager) removeLater(e *entry, dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	remove := func(ctx context.Context, _ *mountedWorkspace) error { return m.removeAll(ctx, dir) }
	e.failedCleanups = append(e.failedCleanups, remove)
}

// deleteFilesLater queues the removal of a directory in m.dir.
func (m *Manager) deleteFilesLater(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.undeleted = append(m.undeleted, name)
}

// retryDeletes retries what deleteFilesLater queued.
func (m *Manager) retryDeletes(ctx context.Context) {
	m.mu.Lock()
	left := m.undeleted
	m.undeleted = nil
	m.mu.Unlock()
	for _, name := range left {
		if err := m.deleteFiles(ctx, name); err != nil {
			m.log.Warn("failed to remove deleted workspace; will retry",
				"path", filepath.Join(m.dir, name), "error", err)
			m.deleteFilesLater(name)
		}
	}
}

// renameUpperAway renames an overlay's upper directory, so that it disappears atomically. It
// returns the new path.
func (ws *mountedWorkspace) renameUpperAway(ctx context.Context, id string) (gone string, err error) {
	gone = filepath.Join(ws.root, uppersDir, gonePrefix+id)
	if err := ws.m.removeAll(ctx, gone); err != nil { // left by an earlier overlay of the same lease
		return "", err
	}
	if err := os.Rename(ws.upperPath(id), gone); err != nil && !os.IsNotExist(err) {
		return "", err
	}
	return gone, nil
}

// deleteFiles unmounts and removes a directory in m.dir, and the volume claim that it names.
func (m *Manager) deleteFiles(ctx context.Context, name string) error {
	if err := m.deleteClaim(ctx, name); err != nil {
		return err
	}
	if dir := filepath.Join(m.dir, name, contentDir, diskDir); pathExists(dir) {
		if err := quotadir.Unmount(ctx, dir); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove workspace files: %w", err)
		}
	}
	if err := m.removeAll(ctx, filepath.Join(m.dir, name)); err != nil {
		return fmt.Errorf("remove workspace files: %w", err)
	}
	return nil
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeAll removes a directory that may contain hostile file trees. A missing one is not an error.
func (m *Manager) removeAll(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	root, err := safefile.Open(filepath.Dir(dir), safefile.Options{})
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(ctx, filepath.Base(dir), true); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove files: %w", err)
	}
	return nil
}
