package volumes

import (
	"context"
	"errors"
)

// cleanup is what is left to be done for a hold that was given back.
type cleanup func(ctx context.Context, ws *mountedWorkspace) error

// scheduleCleanup leaves something to be done, at once if nobody has the turn.
func (m *Manager) scheduleCleanup(e *entry, do cleanup) {
	m.mu.Lock()
	e.cleanups = append(e.cleanups, do)
	m.mu.Unlock()
	select {
	case e.lock <- struct{}{}:
		m.unlockWorkspace(context.Background(), e)
	default: // whoever has it does this too
	}
}

// runCleanups does what is left to be done for holds that were given back; what fails
// is left for the next tick.
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
		m.log.Warn("what a lease left is not put away yet", "workspace", e.meta.Name, "error", err)
	}
}

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
		for _, end := range todo {
			if err := end(ctx, ws); err != nil {
				errs = append(errs, err)
				ws.m.mu.Lock()
				ws.e.failedCleanups = append(ws.e.failedCleanups, end)
				ws.m.mu.Unlock()
			}
		}
	}
}

// retryCleanups takes up again what failed.
func (m *Manager) retryCleanups(e *entry) {
	m.mu.Lock()
	late := e.failedCleanups
	e.failedCleanups = nil
	m.mu.Unlock()
	for _, end := range late {
		m.scheduleCleanup(e, end)
	}
}

// retryCleanupsLocked tries what failed a last time.
func (m *Manager) retryCleanupsLocked(ctx context.Context, e *entry) {
	m.mu.Lock()
	e.cleanups, e.failedCleanups = append(e.cleanups, e.failedCleanups...), nil
	m.mu.Unlock()
	m.runCleanups(ctx, e)
}
