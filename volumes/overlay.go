package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// overlay is the stored record of an overlay.
type overlay struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	// Live is set while the lease may write.
	Live bool `json:"live"`
	// Generation is the overlay's lower layer.
	Generation int `json:"generation"`
	Changes    int `json:"changes"`
	// Unusable is why the overlay can only be discarded, or "".
	Unusable string `json:"unusable,omitempty"`
	// Committed are the paths that were already committed.
	Committed [][]byte `json:"committed,omitempty"`
	// Touched are paths that others wrote in place after the lease ended.
	Touched []touch `json:"touched,omitempty"`
}

// touch records who wrote to a path.
type touch struct {
	Path []byte    `json:"path"`
	By   string    `json:"by"`
	At   time.Time `json:"at"`
}

const overlayVersion = 1

// Subdirectories of an overlay's upper directory.
const (
	upperDir = "u"
	workDir  = "w"
)

var leasePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

func (m *Manager) overlayFile(w meta, id, ext string) string {
	return filepath.Join(m.workspacePath(w), overlaysDir, id+ext)
}

// mergedPath returns an overlay's mount point.
func (m *Manager) mergedPath(w meta, id string) string {
	return filepath.Join(m.workspacePath(w), mergedDir, id)
}

const (
	recordExt = ".json" // the overlay's record
	baseExt   = ".base" // the lower layer's paths when the lease ended
)

// readOverlays reads the records of a workspace's overlays.
func (m *Manager) readOverlays(w meta) (map[string]*overlay, error) {
	out := map[string]*overlay{}
	entries, err := os.ReadDir(filepath.Join(m.workspacePath(w), overlaysDir))
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range entries {
		id, ok := strings.CutSuffix(f.Name(), recordExt)
		if !ok || !leasePattern.MatchString(id) {
			continue
		}
		var o overlay
		if err := readJSON(m.overlayFile(w, id, recordExt), maxComparison, &o); err != nil {
			return nil, err
		}
		if o.Version != overlayVersion || o.ID != id {
			return nil, fmt.Errorf("unsupported version %d of overlay %s: this build reads %d",
				o.Version, id, overlayVersion)
		}
		out[id] = &o
	}
	return out, nil
}

// saveOverlay writes the record and updates the entry.
func (ws *mountedWorkspace) saveOverlay(o overlay) error {
	o.Version = overlayVersion
	if err := writeJSON(ws.m.overlayFile(ws.e.meta, o.ID, recordExt), o); err != nil {
		return err
	}
	ws.m.mu.Lock()
	defer ws.m.mu.Unlock()
	ws.e.overlays[o.ID] = &o
	return nil
}

// findOverlay returns an overlay's record. NotFound if it does not exist.
func (ws *mountedWorkspace) findOverlay(id string) (overlay, error) {
	ws.m.mu.Lock()
	defer ws.m.mu.Unlock()
	o := ws.e.overlays[id]
	if o == nil {
		return overlay{}, overlayNotFound(id)
	}
	return *o, nil
}

func overlayNotFound(id string) error {
	return fmt.Errorf("overlay %q not found: not an overlay lease, no changes, or committed, discarded or expired: %w",
		id, errdefs.ErrNotFound)
}

// endOverlay keeps an overlay's changes when its lease ends, with the state of each changed path in
// the lower layer. An overlay without changes is removed.
func (ws *mountedWorkspace) endOverlay(ctx context.Context, id string) error {
	o, err := ws.findOverlay(id)
	if err != nil || !o.Live {
		return nil //nolint:nilerr // it has already ended
	}
	if err := ws.unmountOverlay(ctx, id); err != nil {
		return err
	}
	hitFailpoint("volumes.overlay.unmounted")
	if err := ws.m.removeAll(ctx, filepath.Join(ws.upperPath(id), workDir)); err != nil {
		return err
	}
	found, err := ws.scanOverlay(ctx, id, ws.generationPath(o.Generation))
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case errdefs.IsResourceExhausted(err):
		o.Unusable = fmt.Sprintf("has more than %d changes, or more than %d bytes of paths", maxDeltas, maxDeltaBytes)
	case errdefs.IsFailedPrecondition(err):
		o.Unusable = fmt.Sprintf("has paths longer than %d bytes", maxTreePath)
	case err != nil: // The lease ends even if its changes are unreadable.
		ws.m.log.Error("failed to read overlay; it can only be discarded",
			"workspace", ws.e.meta.Name, "overlay", id, "error", err)
		o.Unusable = "has unreadable changes"
	case len(found) == 0:
		return ws.removeOverlay(ctx, id)
	}
	if err := writeJSON(ws.m.overlayFile(ws.e.meta, id, baseExt), baseStatesOf(found)); err != nil {
		return err
	}
	o.Live, o.EndedAt, o.Changes = false, time.Now().UTC(), countChanges(found)
	if err := ws.saveOverlay(o); err != nil {
		return err
	}
	hitFailpoint("volumes.overlay.kept")
	return nil
}

// removeOverlay removes an overlay atomically: a rest of it could otherwise be committed.
// The files are removed before the record.
func (ws *mountedWorkspace) removeOverlay(ctx context.Context, id string) error {
	if err := ws.unmountOverlay(ctx, id); err != nil {
		return err
	}
	gone, err := ws.renameUpperAway(ctx, id)
	if err != nil {
		return err
	}
	hitFailpoint("volumes.overlay.removed")
	for _, ext := range []string{baseExt, recordExt} {
		if err := os.Remove(ws.m.overlayFile(ws.e.meta, id, ext)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	ws.m.mu.Lock()
	delete(ws.e.overlays, id)
	ws.m.mu.Unlock()
	if err := ws.m.removeAll(ctx, gone); err != nil {
		ws.m.log.Warn("failed to remove overlay files; will retry",
			"workspace", ws.e.meta.Name, "overlay", id, "error", err)
		ws.m.removeLater(ws.e, gone)
	}
	return nil
}

// removeOrphanedUppers removes upper directories without a record, and records without an upper
// directory. Their removal was interrupted.
func (ws *mountedWorkspace) removeOrphanedUppers(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(ws.root, uppersDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, f := range entries {
		if _, err := ws.findOverlay(f.Name()); err != nil {
			errs = append(errs, ws.m.removeAll(ctx, ws.upperPath(f.Name())))
		}
	}
	ws.m.mu.Lock()
	var empty []string
	for id, o := range ws.e.overlays {
		if !o.Live && !pathExists(ws.upperPath(id)) {
			empty = append(empty, id)
		}
	}
	ws.m.mu.Unlock()
	for _, id := range empty {
		errs = append(errs, ws.removeOverlay(ctx, id))
	}
	return errors.Join(errs...)
}

// hasOrphanedOverlay reports whether the workspace has a live overlay whose lease has no hold. The
// caller has m.mu.
func (m *Manager) hasOrphanedOverlay(e *entry) bool {
	for id, o := range e.overlays {
		if o.Live && e.holds[id] == nil {
			return true
		}
	}
	return false
}

// liveOverlay returns an overlay whose lease may write, or "". The caller has Manager.mu.
func (e *entry) liveOverlay() string {
	for _, id := range slices.Sorted(maps.Keys(e.overlays)) {
		if e.overlays[id].Live {
			return id
		}
	}
	return ""
}

// endOrphans ends the overlays, writers and pins of ended leases; see Sweep.
func (ws *mountedWorkspace) endOrphans(ctx context.Context) error {
	ws.m.mu.Lock()
	var orphans []string
	for id, o := range ws.e.overlays {
		if o.Live && ws.e.holds[id] == nil {
			orphans = append(orphans, id)
		}
	}
	ws.m.mu.Unlock()
	var errs []error
	for _, id := range orphans {
		errs = append(errs, ws.endOverlay(ctx, id))
	}
	return errors.Join(append(errs, ws.endWriting(ctx), ws.removePins(""), ws.removeOldGenerations(ctx))...)
}

// EndOverlays ends the overlays of leases that were never released because their process was
// killed.
func (m *Manager) EndOverlays(ctx context.Context, leases ...string) error {
	m.mu.Lock()
	byWorkspace := map[string][]string{}
	for name, e := range m.byName {
		for _, id := range leases {
			if o := e.overlays[id]; o != nil && o.Live && e.holds[id] == nil {
				byWorkspace[name] = append(byWorkspace[name], id)
			}
		}
	}
	m.mu.Unlock()
	errs := make([]error, 0, len(byWorkspace))
	for name, ids := range byWorkspace {
		errs = append(errs, m.withMounted(ctx, name, func(ws *mountedWorkspace) error {
			var errs []error
			for _, id := range ids {
				errs = append(errs, ws.endOverlay(ctx, id))
			}
			return errors.Join(append(errs, ws.removeOldGenerations(ctx))...)
		}))
	}
	return errors.Join(errs...)
}
