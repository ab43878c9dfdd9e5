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

// What is removed gets another name first, at once, and is then taken apart, which
// takes as long as it has files. Whoever asked may have gone by then, or something
// has it open: what is left is tried again by each tick, for its room counts for
// nobody any more.

// removeLater leaves a folder below that of a workspace to be removed.
func (m *Manager) removeLater(e *entry, dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.failedCleanups = append(e.failedCleanups, func(ctx context.Context, _ *mountedWorkspace) error { return m.removeAll(ctx, dir) })
}

// deleteFilesLater leaves a folder of m.dir to be removed.
func (m *Manager) deleteFilesLater(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.undeleted = append(m.undeleted, name)
}

// retryDeletes removes what freeLater left.
func (m *Manager) retryDeletes(ctx context.Context) {
	m.mu.Lock()
	left := m.undeleted
	m.undeleted = nil
	m.mu.Unlock()
	for _, name := range left {
		if err := m.deleteFiles(ctx, name); err != nil {
			m.log.Warn("what is left of a workspace is not removed yet", "path", filepath.Join(m.dir, name), "error", err)
			m.deleteFilesLater(name)
		}
	}
}

// renameUpperAway takes what an overlay changed away under its name, whole.
func (ws *mountedWorkspace) renameUpperAway(ctx context.Context, id string) (gone string, err error) {
	gone = filepath.Join(ws.root, uppersDir, gonePrefix+id)
	if err := ws.m.removeAll(ctx, gone); err != nil { // of an earlier overlay of that lease
		return "", err
	}
	if err := os.Rename(ws.upperPath(id), gone); err != nil && !os.IsNotExist(err) {
		return "", err
	}
	return gone, nil
}

// deleteFiles removes a folder of m.dir with all that commands left in it.
func (m *Manager) deleteFiles(ctx context.Context, name string) error {
	if dir := filepath.Join(m.dir, name, contentDir, diskDir); pathExists(dir) {
		if err := quotadir.Unmount(ctx, dir); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("free workspace: %w", err)
		}
	}
	if err := m.removeAll(ctx, filepath.Join(m.dir, name)); err != nil {
		return fmt.Errorf("free workspace: %w", err)
	}
	return nil
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeAll removes a folder of ours with all that commands left in it; one that is
// not there is success.
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
