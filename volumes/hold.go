package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// MountedAt is the path where commands see a workspace. Files accepts paths that start with it too.
const MountedAt = "/workspace"

// Mode is how a lease uses a workspace.
type Mode string

// The modes of a lease.
const (
	// ReadWrite allows one lease at a time (more if the workspace is shared) and excludes overlays.
	ReadWrite Mode = "rw"
	// ReadOnly allows any number of leases beside all others.
	ReadOnly Mode = "ro"
	// Overlaid allows any number of leases. Each writes to a private overlay on the files as they
	// were when it acquired them.
	Overlaid Mode = "overlay"
)

// Hold is a lease's right to use a workspace. Call Release when no sandbox of the lease can write
// to it: after Unbind succeeded, or after the sandbox was destroyed.
type Hold struct {
	m           *Manager
	entry       *entry
	lease       string
	mode        Mode
	generation  int
	source      string
	releaseOnce sync.Once
}

// BusyError reports what keeps a workspace from being acquired. Its class is Unavailable.
type BusyError struct {
	Workspace string
	// Lease is the lease that has the workspace, or "" for a host program.
	Lease string
	// Overlay reports that this lease writes to an overlay.
	Overlay bool
	// Claim reports that the files are in a volume claim, which one lease has at a time.
	Claim bool
}

// Error implements error.
func (e *BusyError) Error() string {
	switch {
	case e.Lease == "":
		return fmt.Sprintf("workspace %s is being written from the host: try again", e.Workspace)
	case e.Claim:
		return fmt.Sprintf("workspace %s is a volume claim, which lease %s has: wait until it ends",
			e.Workspace, e.Lease)
	case e.Overlay:
		return fmt.Sprintf("workspace %s has an overlay of lease %s: wait until it ends, or use mode ro or overlay",
			e.Workspace, e.Lease)
	}
	return fmt.Sprintf("workspace %s is being written by lease %s: wait until it ends, or use mode ro",
		e.Workspace, e.Lease)
}

// Unwrap returns the errdefs class.
func (e *BusyError) Unwrap() error { return errdefs.ErrUnavailable }

// FullError reports that a workspace's quota has no space for an operation. Its class is
// FailedPrecondition, because waiting does not help.
type FullError struct {
	Workspace string
	// For is what needs the space, as a noun phrase.
	For string
}

const (
	forOverlay    = "an overlay"
	forGeneration = "a temporary second copy of its file names"
)

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("workspace %s has no space for %s: remove files, discard overlays, or resize it",
		e.Workspace, e.For)
}

// asFullError converts ENOSPC and EDQUOT into a *FullError.
func (ws *mountedWorkspace) asFullError(err error, what string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &FullError{Workspace: ws.e.meta.Name, For: what}
	}
	return err
}

// Unwrap returns the errdefs class.
func (e *FullError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Acquire gives a lease the right to use a workspace. A second call for the same lease returns the
// same Hold, which is how holds are restored after a restart.
//
// It returns *BusyError if other leases exclude the mode, FailedPrecondition if the lease has
// another mode, ResourceExhausted if there are too many overlays, and *FullError if an overlay does
// not fit. A workspace in a volume claim is a *ClaimError: see AcquireClaim.
func (m *Manager) Acquire(ctx context.Context, name, lease string, mode Mode) (*Hold, error) {
	return m.AcquireFor(ctx, name, lease, mode, nil)
}

// AcquireFor is Acquire for a sandbox in the user namespace userNS, if that is not nil. The
// namespace is used before AcquireFor returns.
func (m *Manager) AcquireFor(ctx context.Context, name, lease string, mode Mode, userNS *os.File) (*Hold, error) {
	if !leasePattern.MatchString(lease) {
		return nil, fmt.Errorf("acquire workspace %s: invalid lease %q: must match %s: %w",
			name, lease, leasePattern, errdefs.ErrInvalidArgument)
	}
	var h *Hold
	err := m.withMounted(ctx, name, func(ws *mountedWorkspace) (err error) {
		if ws.e.claim != nil {
			return ws.e.claimError(needsClaim)
		}
		h, err = ws.acquireHold(ctx, lease, mode, userNS)
		return err
	})
	return h, err
}

// acquireHold returns the lease's hold, and makes it if there is none.
func (ws *mountedWorkspace) acquireHold(ctx context.Context, lease string, mode Mode, userNS *os.File) (*Hold, error) {
	if mode == Overlaid {
		if err := ws.endWriting(ctx); err != nil {
			return nil, err
		}
	}
	h, fresh, err := ws.reserveHold(lease, mode)
	if err != nil || !fresh {
		return h, err
	}
	if err := ws.prepareHold(ctx, h, userNS); err != nil {
		ws.m.mu.Lock()
		defer ws.m.mu.Unlock()
		delete(ws.e.holds, lease)
		return nil, err
	}
	return h, nil
}

// reserveHold registers a hold, or returns the existing one. fresh reports a new one.
func (ws *mountedWorkspace) reserveHold(lease string, mode Mode) (h *Hold, fresh bool, err error) {
	ws.m.mu.Lock()
	defer ws.m.mu.Unlock()
	if h := ws.e.holds[lease]; h != nil {
		if h.mode != mode {
			return nil, false, fmt.Errorf("lease %s already has workspace %s in mode %s: %w",
				lease, ws.e.meta.Name, h.mode, errdefs.ErrFailedPrecondition)
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

// prepareHold creates what the hold's binding refers to.
func (ws *mountedWorkspace) prepareHold(ctx context.Context, h *Hold, userNS *os.File) error {
	if ws.e.claim != nil {
		return nil
	}
	switch h.mode {
	case Overlaid:
		n, err := ws.mountOverlay(ctx, h.lease, userNS)
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
	default:
	}
	h.source = ws.generationPath(h.generation)
	return nil
}

// checkAvailable returns nil if a lease can have the workspace now. The caller has m.mu.
func (m *Manager) checkAvailable(e *entry, lease string, mode Mode) error {
	if e.claim != nil {
		return e.checkClaimFree(mode)
	}
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
			return fmt.Errorf("workspace %s has %d overlays, the maximum (workspaces.overlays.max): "+
				"commit or discard some: %w",
				e.meta.Name, len(e.overlays), errdefs.ErrResourceExhausted)
		}
		return nil
	}
	return fmt.Errorf("invalid mode %q: must be rw, ro or overlay: %w", mode, errdefs.ErrInvalidArgument)
}

// Workspace returns the workspace's name.
func (h *Hold) Workspace() string { return h.entry.meta.Name }

// Binding returns what a driver binds into the sandbox. An overlay's source is an ordinary
// directory while its lease is live, and is mounted for the lease's user namespace. The source
// of a volume claim is empty.
func (h *Hold) Binding() runtime.Binding {
	return runtime.Binding{Source: h.source, ReadOnly: h.mode == ReadOnly, OwnersMapped: h.mode == Overlaid}
}

// Release ends the hold. It may be called more than once. An overlay is unmounted and kept before
// Release returns, or by the goroutine that has the workspace's lock.
func (h *Hold) Release() {
	h.releaseOnce.Do(func() { h.m.scheduleCleanup(h.entry, h.cleanUp) })
}

// cleanUp does the work of Release under the workspace's lock. Until it succeeds, the lease keeps
// the workspace.
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
		ws.m.log.Warn("failed to remove old files; will retry", "workspace", ws.e.meta.Name, "error", err)
	}
	return nil
}

// pinnedGenerations returns the generation of each lease that must keep the one it sees.
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

// removePins drops the saved pins of ended leases, including the lease ended.
func (ws *mountedWorkspace) removePins(ended string) error {
	if len(ws.e.state.Pins) == 0 {
		return nil
	}
	next := ws.e.state
	next.Pins = ws.m.pinnedGenerations(ws.e)
	for lease, n := range next.Pins {
		if n == next.Current || lease == ended {
			delete(next.Pins, lease)
		}
	}
	if len(next.Pins) == len(ws.e.state.Pins) {
		return nil
	}
	return ws.saveState(next)
}
