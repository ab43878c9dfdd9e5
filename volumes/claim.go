package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// claim describes the volume claim of a workspace. It is recorded before the volume is made, so
// that the workspace's removal finds it.
type claim struct {
	Bytes int64 `json:"bytes"`
	// Made reports that a sandbox has had the volume.
	Made bool `json:"made"`
}

// Claim is what a driver needs to mount the volume of a workspace.
type Claim struct {
	// ID is the workspace's id.
	ID string
	// Bytes is the recorded size of the volume.
	Bytes int64
	// Made reports that a sandbox has had the volume; see ClaimMade.
	Made bool
}

// ClaimError reports that a workspace, or what a lease asks of it, does not fit a volume claim. Its
// class is FailedPrecondition.
type ClaimError struct {
	Workspace string
	// Message follows the workspace's name.
	Message string
}

// Error implements error.
func (e *ClaimError) Error() string { return "workspace " + e.Workspace + " " + e.Message }

// Unwrap returns the errdefs class.
func (e *ClaimError) Unwrap() error { return errdefs.ErrFailedPrecondition }

const (
	needsClaim = "which this template does not mount: use a template with a workspace size in kubernetes.pods"
	noOverlays = "which has no overlays: use mode rw or ro, or a template without claims"
)

func (e *entry) claimError(why string) error {
	return &ClaimError{Workspace: e.meta.Name, Message: "is a volume claim, " + why}
}

// RemoveClaims sets the function that deletes the volume claim of the workspace with an id. Call it
// before Sweep.
func (m *Manager) RemoveClaims(remove func(ctx context.Context, id string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeClaim = remove
}

// FreeClaim returns nil if a new lease could acquire the workspace as a volume claim, or the error
// that AcquireClaim would return. It does not look for files on the host.
func (m *Manager) FreeClaim(name string, mode Mode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.findWorkspace(name)
	if err != nil {
		return err
	}
	return e.checkClaimFree(mode)
}

// checkClaimFree returns nil if a lease can have the workspace as a volume claim now. The caller
// has Manager.mu.
func (e *entry) checkClaimFree(mode Mode) error {
	if mode == Overlaid {
		return e.claimError(noOverlays)
	}
	for _, h := range e.holds {
		return &BusyError{Workspace: e.meta.Name, Lease: h.lease, Claim: e.claim != nil}
	}
	return nil
}

// AcquireClaim is Acquire for a lease that gets the workspace's files in a volume claim. The first
// call records that the workspace is one, of this size in bytes. Later calls keep the recorded
// size.
//
// One lease has a claim at a time, in mode ReadWrite or ReadOnly: others get a *BusyError. It
// returns *ClaimError for mode Overlaid, and for a workspace with files, overlays or snapshots on
// the host.
func (m *Manager) AcquireClaim(ctx context.Context, name, lease string, mode Mode, bytes int64) (*Hold, Claim, error) {
	if !leasePattern.MatchString(lease) {
		return nil, Claim{}, fmt.Errorf("acquire workspace %s: invalid lease %q: must match %s: %w",
			name, lease, leasePattern, errdefs.ErrInvalidArgument)
	}
	var h *Hold
	var c Claim
	err := m.withMounted(ctx, name, func(ws *mountedWorkspace) (err error) {
		if ws.e.claim == nil {
			if err := ws.checkClaimable(mode); err != nil {
				return err
			}
			if err := ws.saveClaim(claim{Bytes: bytes}); err != nil {
				return err
			}
			hitFailpoint("volumes.claim.recorded")
		}
		c = Claim{ID: ws.e.meta.ID, Bytes: ws.e.claim.Bytes, Made: ws.e.claim.Made}
		h, err = ws.acquireHold(ctx, lease, mode, nil)
		return err
	})
	return h, c, err
}

// ClaimMade records that a sandbox has the volume: if it is missing later, its files are lost.
func (m *Manager) ClaimMade(ctx context.Context, h *Hold) error {
	return m.withMounted(ctx, h.Workspace(), func(ws *mountedWorkspace) error {
		if ws.e != h.entry || ws.e.claim == nil || ws.e.claim.Made {
			return nil
		}
		return ws.saveClaim(claim{Bytes: ws.e.claim.Bytes, Made: true})
	})
}

// checkClaimable returns nil if nothing of the workspace is on the host, so that a volume claim can
// have its files.
func (ws *mountedWorkspace) checkClaimable(mode Mode) error {
	m, e := ws.m, ws.e
	refuse := func(what string) error {
		return &ClaimError{Workspace: e.meta.Name, Message: "has " + what +
			", and this template keeps workspaces in volume claims: use an empty workspace, or a template without claims"}
	}
	m.mu.Lock()
	err := e.checkClaimFree(mode)
	open, overlays, snapshots := e.inUse(), len(e.overlays), m.countSnapshots(e.meta)
	m.mu.Unlock()
	switch {
	case err != nil:
		return err
	case open:
		return refuse("open files")
	case overlays > 0:
		return refuse("overlays")
	case snapshots > 0:
		return refuse("snapshots")
	}
	data, err := os.Open(ws.currentPath())
	if err != nil {
		return err
	}
	defer data.Close()
	switch _, err := data.Readdirnames(1); {
	case err == nil:
		return refuse("files on the host")
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// saveClaim records the workspace's claim.
func (ws *mountedWorkspace) saveClaim(c claim) error {
	w := ws.e.meta
	w.Claim = &c
	if err := writeJSON(filepath.Join(ws.m.workspacePath(w), metaFile), w); err != nil {
		return fmt.Errorf("record the volume claim of workspace %s: %w", w.Name, err)
	}
	ws.m.mu.Lock()
	defer ws.m.mu.Unlock()
	ws.e.claim = &c
	return nil
}

// deleteClaim deletes the volume claim that the metadata of a removed workspace names.
func (m *Manager) deleteClaim(ctx context.Context, name string) error {
	b, err := readBounded(filepath.Join(m.dir, name, metaFile), maxMeta)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was never complete, or its claim is already deleted
	}
	var w meta
	if err == nil {
		w, err = decodeMeta(b)
	}
	if err != nil {
		return fmt.Errorf("read whether a removed workspace has a volume claim: %w", err)
	}
	if w.Claim == nil {
		return nil
	}
	m.mu.Lock()
	remove := m.removeClaim
	m.mu.Unlock()
	if remove == nil {
		return fmt.Errorf("volume claim of workspace %s is left: start a service with runtime kubernetes: %w",
			w.Name, errdefs.ErrFailedPrecondition)
	}
	if err := remove(ctx, w.ID); err != nil {
		return fmt.Errorf("remove the volume claim of workspace %s: %w", w.Name, err)
	}
	return nil
}
