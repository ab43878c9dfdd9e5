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
	told  bool
}

// Free says whether a lease that is made now could have a workspace in a mode:
// nil, or what Acquire would answer.
func (m *Manager) Free(name string, mode Mode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.find(name)
	if err != nil {
		return err
	}
	return m.allow(e, "", mode)
}

// Await waits until a lease could have a workspace in a mode, in turn with
// others that wait. The turn lasts until done is called, which is to be when the
// workspace was acquired, or is not wanted any more; until then nobody that
// waits comes first. Who acquires without waiting still may: then it is Await
// again. When ctx ends before, the error is the *BusyError that says who has it,
// with the cause.
func (m *Manager) Await(ctx context.Context, name string, mode Mode) (done func(), err error) {
	m.mu.Lock()
	e, err := m.find(name)
	if err == nil {
		err = m.allow(e, "", mode)
	}
	if busy := (*BusyError)(nil); err != nil && !errors.As(err, &busy) || err == nil && len(e.waiting) == 0 || mode == ReadOnly {
		m.mu.Unlock()
		return func() {}, err
	}
	w := &waiter{mode: mode, ready: make(chan struct{})}
	e.waiting = append(e.waiting, w)
	m.wake(e)
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if i := slices.Index(e.waiting, w); i >= 0 {
			e.waiting = slices.Delete(e.waiting, i, i+1)
			m.wake(e)
		}
	}
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		m.mu.Lock()
		err := m.allow(e, "", mode)
		m.mu.Unlock()
		leave()
		return nil, errors.Join(err, fmt.Errorf("wait for workspace %s: %w", name, context.Cause(ctx)))
	}
}

// wake tells the first that waits if it could have the workspace now. To be
// called with the lock held whenever that may have changed.
func (m *Manager) wake(e *entry) {
	if len(e.waiting) == 0 {
		return
	}
	first := e.waiting[0]
	var busy *BusyError
	if !first.told && !errors.As(m.allow(e, "", first.mode), &busy) {
		first.told = true
		close(first.ready)
	}
}
