package volumes

import (
	"context"
	"fmt"
)

// withMounted calls do with the workspace locked and its file system mounted.
func (m *Manager) withMounted(ctx context.Context, name string, do func(*mountedWorkspace) error) error {
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return err
	}
	defer m.unlockWorkspace(ctx, e)
	ws, err := m.mountWorkspace(ctx, e)
	if err != nil {
		return err
	}
	if err := ws.runCleanups(ctx); err != nil {
		m.log.Warn("failed to clean up after lease; will retry", "workspace", e.meta.Name, "error", err)
	}
	return do(ws)
}

// lockWorkspace waits for the workspace's lock. The caller must call unlockWorkspace.
func (m *Manager) lockWorkspace(ctx context.Context, name string) (*entry, error) {
	m.mu.Lock()
	e, err := m.findWorkspace(name)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case e.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for workspace %s: %w", name, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byName[name] != e || e.creating { // It was deleted while this call waited.
		<-e.lock
		return nil, workspaceNotFound(name)
	}
	return e, nil
}

// unlockWorkspace runs the cleanups that were queued, and releases the lock.
func (m *Manager) unlockWorkspace(ctx context.Context, e *entry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for {
		m.runCleanups(ctx, e)
		<-e.lock
		m.mu.Lock()
		more := len(e.cleanups) > 0 && m.byName[e.meta.Name] == e && !e.creating
		m.wakeFirstWaiter(e)
		m.mu.Unlock()
		if !more {
			return
		}
		select {
		case e.lock <- struct{}{}:
		default: // The goroutine that took the lock runs them.
			return
		}
	}
}
