package volumes

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// Conflict reports that others changed a path since an overlay was created.
type Conflict struct {
	Path string
	// By is "sandbox ID", "overlay ID", "the host", or "" if it is not known.
	By string
	At time.Time // zero if not known
}

// String returns a clause for an error message.
func (c Conflict) String() string {
	by := c.By
	if by == "" {
		by = "another writer"
	}
	if c.At.IsZero() {
		return fmt.Sprintf("%s was changed by %s", clip.Message(c.Path), by)
	}
	return fmt.Sprintf("%s was changed by %s at %s", clip.Message(c.Path), by, c.At.Format(time.RFC3339))
}

// overlayView is what an overlay would change now.
type overlayView struct {
	overlay    overlay
	deltas     []delta // sorted by path, without the unchanged ones
	upperDirs  map[string]*delta
	bases      map[string]baseState
	touched    map[string]touch
	dir        string // of the generation that it is compared with
	conflicts  map[string]Conflict
	lastChange func(rel string) (change, bool)
}

// viewOverlay compares an overlay with the current generation or, if its lease is live, with its
// lower layer.
func (ws *mountedWorkspace) viewOverlay(ctx context.Context, id string) (*overlayView, error) {
	o, err := ws.findOverlay(id)
	if err != nil {
		return nil, err
	}
	if o.Unusable != "" {
		return nil, fmt.Errorf("overlay %s %s: discard it: %w", id, o.Unusable, errdefs.ErrFailedPrecondition)
	}
	v := &overlayView{
		overlay: o, dir: ws.currentPath(), upperDirs: map[string]*delta{}, bases: map[string]baseState{},
		touched: map[string]touch{}, conflicts: map[string]Conflict{},
		lastChange: ws.e.state.lastChanges(),
	}
	if o.Live {
		v.dir = ws.generationPath(o.Generation)
	} else {
		changes, err := ws.readBaseStates(o)
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			v.bases[string(c.Path)] = c
		}
		for _, t := range o.Touched {
			v.touched[string(t.Path)] = t
		}
	}
	all, err := ws.scanOverlay(ctx, id, v.dir)
	if err != nil {
		return nil, err
	}
	committed := map[string]bool{}
	for _, p := range o.Committed {
		committed[string(p)] = true
	}
	for i := range all {
		d := &all[i]
		if d.kind != Removed && isDir(&d.upper) {
			v.upperDirs[d.path] = d
		}
		if d.kind == unchanged || committed[d.path] || v.isIncidental(d) {
			continue
		}
		v.deltas = append(v.deltas, *d)
		if !o.Live {
			v.detectConflict(d)
		}
	}
	return v, nil
}

// isIncidental reports whether a directory only differs because others changed it. The overlay has
// it only for its content.
func (v *overlayView) isIncidental(d *delta) bool {
	b, known := v.bases[d.path]
	return known && b.Kind == unchanged && d.kind == Changed && isDir(&d.upper) && isDir(&d.base)
}

// detectConflict records a conflict if others changed the path.
func (v *overlayView) detectConflict(d *delta) {
	if t, ok := v.touched[d.path]; ok {
		v.conflicts[d.path] = Conflict{Path: d.path, By: t.By, At: t.At}
		return
	}
	if d.baseIdent() == v.bases[d.path].Was {
		return
	}
	c := Conflict{Path: d.path}
	if by, ok := v.lastChange(d.path); ok && by.Generation > v.overlay.Generation {
		c.By, c.At = by.By, by.At
	}
	v.conflicts[d.path] = c
}
