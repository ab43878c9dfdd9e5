package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// downTimeout is how long Down retries while something has a clone of a mount. A container that is
// being created on the same host clones every mount, which can take seconds on a busy host.
const downTimeout = 30 * time.Second

// ReleaseAll releases all holds. Call it when no sandbox of these leases is running.
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

// Down releases all holds, including those of earlier processes, and unmounts everything. It
// retries busy mounts for a limited time. Call it when no sandbox is running, and call no other
// method concurrently.
func (m *Manager) Down(ctx context.Context) error {
	m.ReleaseAll()
	m.mu.Lock()
	m.leasesRestored = true
	names := make([]string, 0, len(m.byName))
	for name := range m.byName {
		names = append(names, name)
	}
	m.mu.Unlock()
	none := func(string) bool { return false }
	for end := time.Now().Add(downTimeout); ; {
		errs := make([]error, 0, len(names)+1)
		for _, name := range names {
			errs = append(errs, m.endWorkspace(ctx, name))
		}
		err := errors.Join(append(errs, quotadir.Sweep(ctx, m.dir, none))...)
		// Each attempt has already waited for busy mounts.
		if !errors.Is(err, quotadir.ErrBusy) || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

// endWorkspace ends everything that ended leases left in a workspace, and unmounts it.
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

// UnmountUnused unmounts what a killed process left mounted and no sandbox uses.
func (m *Manager) UnmountUnused(ctx context.Context) error {
	err := quotadir.Sweep(ctx, m.dir, func(string) bool { return false })
	if errors.Is(err, quotadir.ErrBusy) {
		return nil // A stopped service's sandboxes use them.
	}
	return err
}

// OrphanedOverlays returns the ids of overlays that are mounted for leases that this process has
// not acquired. Their process was killed, or another process will take them over.
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
