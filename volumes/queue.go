package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// waiter waits until a workspace is available.
type waiter struct {
	mode  Mode
	ready chan struct{} // closed when the waiter is first and the workspace is available
	woken bool
}

// Free returns nil if a new lease could acquire the workspace in a mode, or the error that Acquire
// would return.
func (m *Manager) Free(name string, mode Mode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.findWorkspace(name)
	if err != nil {
		return err
	}
	if e.claim != nil {
		return e.claimError(needsClaim)
	}
	return m.checkAvailable(e, "", mode)
}

// Await waits in FIFO order until a new lease could acquire the workspace in a mode. The caller
// stays first in the queue until it calls done. Call done after Acquire, or if the workspace is not
// needed any more. A caller that does not wait can still acquire the workspace first; then call
// Await again. If ctx ends, the error joins the *BusyError and ctx's cause.
func (m *Manager) Await(ctx context.Context, name string, mode Mode) (done func(), err error) {
	m.mu.Lock()
	e, err := m.findWorkspace(name)
	if err == nil {
		err = m.checkAvailable(e, "", mode)
	}
	var busy *BusyError
	failed := err != nil && !errors.As(err, &busy)
	if failed || err == nil && len(e.waiters) == 0 || mode == ReadOnly {
		m.mu.Unlock()
		return func() {}, err
	}
	w := &waiter{mode: mode, ready: make(chan struct{})}
	e.waiters = append(e.waiters, w)
	m.wakeFirstWaiter(e)
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if i := slices.Index(e.waiters, w); i >= 0 {
			e.waiters = slices.Delete(e.waiters, i, i+1)
			m.wakeFirstWaiter(e)
		}
	}
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		m.mu.Lock()
		err := m.checkAvailable(e, "", mode)
		m.mu.Unlock()
		leave()
		return nil, errors.Join(err, fmt.Errorf("wait for workspace %s: %w", name, context.Cause(ctx)))
	}
}

// wakeFirstWaiter wakes the first waiter if the workspace is available. Call it with m.mu held
// whenever that may have changed.
func (m *Manager) wakeFirstWaiter(e *entry) {
	if len(e.waiters) == 0 {
		return
	}
	first := e.waiters[0]
	var busy *BusyError
	if !first.woken && !errors.As(m.checkAvailable(e, "", first.mode), &busy) {
		first.woken = true
		close(first.ready)
	}
}
