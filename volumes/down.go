package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// downTimeout is how long Down goes on while something has a clone of a mount: a
// container of somebody else that is being made has one, on a busy host for
// seconds.
const downTimeout = 30 * time.Second

// ReleaseAll gives back whatever was acquired. It is to be called when no sandbox
// of those leases lives any more.
func (m *Manager) ReleaseAll() {
	m.mu.Lock()
	var holds []*Hold
	for _, e := range m.byName {
		for _, h := range e.holds {
			holds = append(holds, h)
		}
	}
	m.mu.Unlock()
	for _, h := range holds {
		h.Release()
	}
}

// Down gives back whatever leases have, of earlier processes too, and unmounts
// everything, for a bounded time again what is busy. It is to be called when no
// sandbox lives any more, and nothing else is called.
func (m *Manager) Down(ctx context.Context) error {
	m.ReleaseAll()
	m.mu.Lock()
	m.leasesRestored = true
	var names []string
	for name := range m.byName {
		names = append(names, name)
	}
	m.mu.Unlock()
	none := func(string) bool { return false }
	for end := time.Now().Add(downTimeout); ; {
		var errs []error
		for _, name := range names {
			errs = append(errs, m.endWorkspace(ctx, name))
		}
		err := errors.Join(append(errs, quotadir.Sweep(ctx, m.dir, none))...)
		// What was busy was so for a while already.
		if !errors.Is(err, quotadir.ErrBusy) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

func (m *Manager) endWorkspace(ctx context.Context, name string) error {
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return err
	}
	defer m.unlockWorkspace(ctx, e)
	m.retryCleanupsLocked(ctx, e)
	m.mu.Lock()
	needed := m.hasOrphanedOverlay(e) || len(e.failedCleanups) > 0 || e.state.Writer != nil || len(e.state.Pins) > 0
	m.mu.Unlock()
	if needed {
		ws, err := m.mountWorkspace(ctx, e)
		if err == nil {
			err = ws.endOrphans(ctx)
		}
		if err != nil {
			return fmt.Errorf("workspace %s: %w", name, err)
		}
	}
	return m.unmount(ctx, e)
}

// UnmountUnused unmounts what a process that was killed has mounted and no sandbox uses.
func (m *Manager) UnmountUnused(ctx context.Context) error {
	err := quotadir.Sweep(ctx, m.dir, func(string) bool { return false })
	if errors.Is(err, quotadir.ErrBusy) {
		return nil // a stopped service's sandboxes have them
	}
	return err
}

// OrphanedOverlays lists overlays that are mounted for leases that nobody has acquired
// again: of a process that was killed, or that others will take up.
func (m *Manager) OrphanedOverlays() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, e := range m.byName {
		for id, o := range e.overlays {
			if o.Live && e.holds[id] == nil {
				out = append(out, id)
			}
		}
	}
	return out
}
