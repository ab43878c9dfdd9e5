package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// MountedAt is where commands see a workspace; Files takes paths that begin
// with it too.
const MountedAt = "/workspace"

// Mode is how a lease has a workspace.
type Mode string

// The modes.
const (
	// ReadWrite is for one lease at a time, and without overlays.
	ReadWrite Mode = "rw"
	// ReadOnly is for any number, beside all others.
	ReadOnly Mode = "ro"
	// Overlaid is for any number: what each writes is its own. They see the
	// workspace as it was when they acquired it.
	Overlaid Mode = "overlay"
)

// Hold is a lease's right to a workspace. Release it once no sandbox of the
// lease can write to it any more: after Unbind succeeded, or the sandbox is
// destroyed.
type Hold struct {
	m           *Manager
	entry       *entry
	lease       string
	mode        Mode
	generation  int
	source      string
	releaseOnce sync.Once
}

// BusyError says who keeps a workspace from being had. It is of class
// Unavailable.
type BusyError struct {
	Workspace string
	// Lease that has it; "" for what is done from the host.
	Lease string
	// Overlay: that lease writes to an overlay.
	Overlay bool
}

// Error is a whole sentence.
func (e *BusyError) Error() string {
	switch {
	case e.Lease == "":
		return fmt.Sprintf("files of workspace %s are being written from the host: try again", e.Workspace)
	case e.Overlay:
		return fmt.Sprintf("lease %s has an overlay on workspace %s: wait for its end, or take it read-only or with an overlay", e.Lease, e.Workspace)
	}
	return fmt.Sprintf("lease %s writes to workspace %s: wait for its end, or take it read-only", e.Lease, e.Workspace)
}

// Unwrap gives the class.
func (e *BusyError) Unwrap() error { return errdefs.ErrUnavailable }

// FullError says that a workspace's disk has no room for what was to be done. It
// is of class FailedPrecondition: waiting does not help.
type FullError struct {
	Workspace string
	// For is what there is no room for, as a part of a sentence.
	For string
}

const (
	forOverlay    = "an overlay"
	forGeneration = "the names of its files a second time, which this needs for a moment"
)

// Error is a whole sentence.
func (e *FullError) Error() string {
	return fmt.Sprintf("workspace %s has no room for %s: remove files, discard overlays, or resize it", e.Workspace, e.For)
}

// asFullError makes a FullError of what a file system without room says.
func (ws *mountedWorkspace) asFullError(err error, what string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &FullError{Workspace: ws.e.meta.Name, For: what}
	}
	return err
}

// Unwrap gives the class.
func (e *FullError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Acquire gives a workspace to a lease: to many that read or have overlays, and
// to one that writes, or more if it is shared. Acquiring again for the same
// lease gives the same Hold, which is how holds come back after a restart.
// *BusyError: others have it. FailedPrecondition: the lease has it in
// the other mode. ResourceExhausted: there are too many overlays. *FullError:
// there is no room for one.
func (m *Manager) Acquire(ctx context.Context, name, lease string, mode Mode) (*Hold, error) {
	if !leasePattern.MatchString(lease) {
		return nil, fmt.Errorf("acquire workspace %s: lease %q does not match %s: %w", name, lease, leasePattern, errdefs.ErrInvalidArgument)
	}
	var h *Hold
	err := m.withMounted(ctx, name, func(ws *mountedWorkspace) (err error) {
		h, err = ws.acquireHold(ctx, lease, mode)
		return err
	})
	return h, err
}

func (ws *mountedWorkspace) acquireHold(ctx context.Context, lease string, mode Mode) (*Hold, error) {
	if mode == Overlaid {
		if err := ws.endWriting(ctx); err != nil {
			return nil, err
		}
	}
	h, fresh, err := ws.reserveHold(lease, mode)
	if err != nil || !fresh {
		return h, err
	}
	if err := ws.prepareHold(ctx, h); err != nil {
		ws.m.mu.Lock()
		defer ws.m.mu.Unlock()
		delete(ws.e.holds, lease)
		return nil, err
	}
	return h, nil
}

// reserveHold notes a hold, or finds the one there is.
func (ws *mountedWorkspace) reserveHold(lease string, mode Mode) (h *Hold, fresh bool, err error) {
	ws.m.mu.Lock()
	defer ws.m.mu.Unlock()
	if h := ws.e.holds[lease]; h != nil {
		if h.mode != mode {
			return nil, false, fmt.Errorf("lease %s has workspace %s as %s already: %w", lease, ws.e.meta.Name, h.mode, errdefs.ErrFailedPrecondition)
		}
		return h, false, nil
	}
	if err := ws.m.checkAvailable(ws.e, lease, mode); err != nil {
		return nil, false, err
	}
	h = &Hold{m: ws.m, entry: ws.e, lease: lease, mode: mode, generation: ws.e.state.Current}
	if n, ok := ws.e.state.Pins[lease]; ok && mode == ReadOnly {
		h.generation = n
	}
	ws.e.holds[lease] = h
	return h, true, nil
}

// prepareHold makes what a hold names.
func (ws *mountedWorkspace) prepareHold(ctx context.Context, h *Hold) error {
	switch h.mode {
	case Overlaid:
		n, err := ws.mountOverlay(ctx, h.lease)
		if full := (*FullError)(nil); errors.As(ws.asFullError(err, forOverlay), &full) {
			return full
		}
		if err != nil {
			return fmt.Errorf("overlay on workspace %s: %w", ws.e.meta.Name, err)
		}
		ws.m.mu.Lock()
		h.generation = n
		ws.m.mu.Unlock()
		h.source = ws.m.mergedPath(ws.e.meta, h.lease)
		return nil
	case ReadWrite:
		if err := ws.beginWriting(ctx, "sandbox "+h.lease); err != nil {
			return fmt.Errorf("workspace %s: %w", ws.e.meta.Name, err)
		}
	}
	h.source = ws.generationPath(h.generation)
	return nil
}

// checkAvailable says whether a lease can have a workspace now. To be called with the
// lock held.
func (m *Manager) checkAvailable(e *entry, lease string, mode Mode) error {
	switch mode {
	case ReadOnly:
		return nil
	case ReadWrite:
		if id := e.liveOverlay(); id != "" {
			return &BusyError{Workspace: e.meta.Name, Lease: id, Overlay: true}
		}
		for _, h := range e.holds {
			if h.mode == ReadWrite && !e.meta.Shared {
				return &BusyError{Workspace: e.meta.Name, Lease: h.lease}
			}
		}
		return nil
	case Overlaid:
		for _, h := range e.holds {
			if h.mode == ReadWrite {
				return &BusyError{Workspace: e.meta.Name, Lease: h.lease}
			}
		}
		switch {
		case e.writers > 0:
			return &BusyError{Workspace: e.meta.Name}
		case e.overlays[lease] == nil && len(e.overlays) >= m.opts.Overlays.Max:
			return fmt.Errorf("workspace %s has %d overlays (workspaces.overlays.max): commit or discard some: %w", e.meta.Name, len(e.overlays), errdefs.ErrResourceExhausted)
		}
		return nil
	}
	return fmt.Errorf("mode %q is not rw, ro or overlay: %w", mode, errdefs.ErrInvalidArgument)
}

// Workspace is the workspace's name.
func (h *Hold) Workspace() string { return h.entry.meta.Name }

// Binding is what a driver is to bind. An overlay's is a folder of the host as
// any other while the lease lives.
func (h *Hold) Binding() runtime.Binding {
	return runtime.Binding{Source: h.source, ReadOnly: h.mode == ReadOnly}
}

// Release gives the workspace back. It may be called more than once. An overlay
// is put away before it returns, or by whoever changes the workspace just now.
func (h *Hold) Release() {
	h.releaseOnce.Do(func() { h.m.scheduleCleanup(h.entry, h.cleanUp) })
}

// cleanUp is what Release does in its turn. As long as it fails the lease holds the
// workspace.
func (h *Hold) cleanUp(ctx context.Context, ws *mountedWorkspace) error {
	if h.mode == Overlaid {
		if err := ws.endOverlay(ctx, h.lease); err != nil {
			return err
		}
	}
	ws.m.mu.Lock()
	last := h.mode == ReadWrite
	for _, other := range ws.e.holds {
		last = last && (other == h || other.mode != ReadWrite)
	}
	if ws.e.holds[h.lease] == h {
		delete(ws.e.holds, h.lease)
	}
	ws.m.mu.Unlock()
	var err error
	if last {
		err = ws.endWriting(ctx)
	}
	if err := errors.Join(err, ws.removePins(h.lease), ws.removeOldGenerations(ctx)); err != nil {
		ws.m.log.Warn("files of an earlier state are not removed yet", "workspace", ws.e.meta.Name, "error", err)
	}
	return nil
}

// pinnedGenerations are the leases that see the generation that is about to be the last
// one, or an earlier one.
func (m *Manager) pinnedGenerations(e *entry) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	if !m.leasesRestored {
		for lease, n := range e.state.Pins {
			out[lease] = n
		}
	}
	for lease, h := range e.holds {
		if h.mode == ReadOnly {
			out[lease] = h.generation
		}
	}
	return out
}

// removePins forgets pins of leases that are over, and that of one that just was.
func (ws *mountedWorkspace) removePins(over string) error {
	if len(ws.e.state.Pins) == 0 {
		return nil
	}
	next := ws.e.state
	next.Pins = ws.m.pinnedGenerations(ws.e)
	for lease, n := range next.Pins {
		if n == next.Current || lease == over {
			delete(next.Pins, lease)
		}
	}
	if len(next.Pins) == len(ws.e.state.Pins) {
		return nil
	}
	return ws.saveState(next)
}
