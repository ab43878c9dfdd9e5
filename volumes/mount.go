package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// mountedWorkspace is a locked workspace whose file system is mounted.
type mountedWorkspace struct {
	m    *Manager
	e    *entry
	root string // of the file system
}

func (ws *mountedWorkspace) generationPath(n int) string {
	return filepath.Join(ws.root, generationName(n))
}

func (ws *mountedWorkspace) currentPath() string { return ws.generationPath(ws.e.state.Current) }

// upperPath returns the directory of an overlay's upper and work directories.
func (ws *mountedWorkspace) upperPath(id string) string { return filepath.Join(ws.root, uppersDir, id) }

// mountWorkspace mounts a workspace's file system. The caller has the workspace's lock.
func (m *Manager) mountWorkspace(ctx context.Context, e *entry) (*mountedWorkspace, error) {
	ws := &mountedWorkspace{m: m, e: e, root: e.root}
	if ws.root == "" {
		ws.root = m.workspacePath(e.meta)
		if dir, ok := m.diskPath(e.meta); ok {
			m.mu.Lock()
			restored := m.leasesRestored
			m.mu.Unlock()
			if mounted, err := quotadir.Mounted(dir); err == nil {
				e.mountedBefore = mounted && !restored
			}
			root, err := quotadir.Mount(ctx, dir)
			if err != nil {
				return nil, fmt.Errorf("mount workspace %s: %w", e.meta.Name, err)
			}
			ws.root = root
		}
	}
	m.mu.Lock()
	e.root, e.lastUsed = ws.root, time.Now()
	m.mu.Unlock()
	if e.prepared {
		return ws, nil
	}
	if err := ws.prepare(ctx); err != nil {
		return nil, fmt.Errorf("mount workspace %s: %w", e.meta.Name, err)
	}
	e.prepared = true
	return ws, nil
}

// prepare removes what an interrupted change left on the file system. In a new workspace it creates
// the first generation.
func (ws *mountedWorkspace) prepare(ctx context.Context) error {
	_, err := os.Lstat(ws.currentPath())
	if errors.Is(err, os.ErrNotExist) && ws.e.state.Current == 0 {
		temp := filepath.Join(ws.root, newGeneration)
		if err = ws.m.removeAll(ctx, temp); err == nil {
			err = makeData(temp)
		}
		if err == nil {
			err = os.Rename(temp, ws.currentPath())
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(ws.removeOldGenerations(ctx), ws.removeOrphanedUppers(ctx),
		ws.m.removeInterrupted(ctx, ws.e.meta))
}

// unmountIdle unmounts a file system that was last used before the given time.
func (m *Manager) unmountIdle(ctx context.Context, e *entry, before time.Time) error {
	select {
	case e.lock <- struct{}{}:
	default:
		return nil
	}
	defer m.unlockWorkspace(ctx, e)
	m.mu.Lock()
	idle := e.root != "" && !e.inUse() && len(e.cleanups)+len(e.failedCleanups) == 0 && e.lastUsed.Before(before)
	m.mu.Unlock()
	if !idle {
		return nil
	}
	return m.unmount(ctx, e)
}

// unmount unmounts a workspace's file system. The caller has the workspace's lock.
func (m *Manager) unmount(ctx context.Context, e *entry) error {
	if dir, ok := m.diskPath(e.meta); ok {
		if err := quotadir.Unmount(ctx, dir); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e.root = ""
	return nil
}

// unmountUnknownDisks unmounts what an earlier process left mounted.
func (m *Manager) unmountUnknownDisks(ctx context.Context) error {
	return quotadir.Sweep(ctx, m.dir, func(dir string) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, e := range m.byName {
			if d, ok := m.diskPath(e.meta); ok && d == dir {
				return e.root != "" || e.creating || len(e.lock) > 0
			}
		}
		return false
	})
}
