package volumes

import (
	"context"
	"errors"
)

// cleanup is work that remains after a hold was released.
type cleanup func(ctx context.Context, ws *mountedWorkspace) error

// scheduleCleanup queues do, and runs it now unless another goroutine has the workspace's lock.
func (m *Manager) scheduleCleanup(e *entry, do cleanup) {
	m.mu.Lock()
	e.cleanups = append(e.cleanups, do)
	m.mu.Unlock()
	select {
	case e.lock <- struct{}{}:
		m.unlockWorkspace(context.Background(), e)
	default: // The goroutine that has the lock runs it when it unlocks.
	}
}

// runCleanups runs the queued cleanups. Failed ones are queued for the next tick. The caller has
// the workspace's lock.
func (m *Manager) runCleanups(ctx context.Context, e *entry) {
	m.mu.Lock()
	todo := len(e.cleanups) > 0 && m.byName[e.meta.Name] == e
	m.mu.Unlock()
	if !todo {
		return
	}
	ws, err := m.mountWorkspace(ctx, e)
	if err == nil {
		err = ws.runCleanups(ctx)
	} else {
		m.mu.Lock()
		e.failedCleanups, e.cleanups = append(e.failedCleanups, e.cleanups...), nil
		m.mu.Unlock()
	}
	if err != nil {
		m.log.Warn("failed to clean up after lease; will retry", "workspace", e.meta.Name, "error", err)
	}
}

// runCleanups runs the queued cleanups, including those that are queued during the run.
func (ws *mountedWorkspace) runCleanups(ctx context.Context) error {
	var errs []error
	for {
		ws.m.mu.Lock()
		todo := ws.e.cleanups
		ws.e.cleanups = nil
		ws.m.mu.Unlock()
		if len(todo) == 0 {
			return errors.Join(errs...)
		}
		for _, do := range todo {
			if err := do(ctx, ws); err != nil {
				errs = append(errs, err)
				ws.m.mu.Lock()
				ws.e.failedCleanups = append(ws.e.failedCleanups, do)
				ws.m.mu.Unlock()
			}
		}
	}
}

// retryCleanups queues the failed cleanups again.
func (m *Manager) retryCleanups(e *entry) {
	m.mu.Lock()
	failed := e.failedCleanups
	e.failedCleanups = nil
	m.mu.Unlock()
	for _, do := range failed {
		m.scheduleCleanup(e, do)
	}
}

// retryCleanupsLocked runs the failed cleanups again. The caller has the workspace's lock.
func (m *Manager) retryCleanupsLocked(ctx context.Context, e *entry) {
	m.mu.Lock()
	e.cleanups, e.failedCleanups = append(e.cleanups, e.failedCleanups...), nil
	m.mu.Unlock()
	m.runCleanups(ctx, e)
}
