package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// waiter waits for a workspace that others have.
type waiter struct {
	mode  Mode
	ready chan struct{} // closed when it is the first, and could have it
	woken bool
}

// Free says whether a lease that is made now could have a workspace in a mode:
// nil, or what Acquire would answer.
func (m *Manager) Free(name string, mode Mode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.findWorkspace(name)
	if err != nil {
		return err
	}
	return m.checkAvailable(e, "", mode)
}

// Await waits until a lease could have a workspace in a mode, in turn with
// others that wait. The turn lasts until done is called, which is to be when the
// workspace was acquired, or is not wanted any more; until then nobody that
// waits comes first. Who acquires without waiting still may: then it is Await
// again. When ctx ends before, the error is the *BusyError that says who has it,
// with the cause.
func (m *Manager) Await(ctx context.Context, name string, mode Mode) (done func(), err error) {
	m.mu.Lock()
	e, err := m.findWorkspace(name)
	if err == nil {
		err = m.checkAvailable(e, "", mode)
	}
	if busy := (*BusyError)(nil); err != nil && !errors.As(err, &busy) || err == nil && len(e.waiters) == 0 || mode == ReadOnly {
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

// wakeFirstWaiter tells the first that waits if it could have the workspace now. To be
// called with the lock held whenever that may have changed.
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
