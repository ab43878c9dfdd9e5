package volumes

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Conflict tells that a path was changed by others since an overlay was made.
type Conflict struct {
	Path string
	// By is who: "sandbox ID", "overlay ID", "the host", or "" where that is not
	// known any more.
	By string
	At time.Time // zero where it is not known
}

// String is a part of a sentence.
func (c Conflict) String() string {
	by := c.By
	if by == "" {
		by = "somebody"
	}
	if c.At.IsZero() {
		return fmt.Sprintf("%s was changed by %s", shorten(c.Path), by)
	}
	return fmt.Sprintf("%s was changed by %s at %s", shorten(c.Path), by, c.At.Format(time.RFC3339))
}

// viewOverlay is what an overlay would change now.
type overlayView struct {
	overlay    overlay
	deltas     []delta // sorted by path; those of kind same are left out
	upperDirs  map[string]*delta
	bases      map[string]base
	touched    map[string]touch
	dir        string // of the generation that it is compared with
	conflicts  map[string]Conflict
	lastChange func(rel string) (change, bool)
}

// viewOverlay compares an overlay with the current generation, or if its lease lives
// with the one it lies on.
func (ws *mountedWorkspace) viewOverlay(ctx context.Context, id string) (*overlayView, error) {
	o, err := ws.findOverlay(id)
	if err != nil {
		return nil, err
	}
	if o.Unusable != "" {
		return nil, fmt.Errorf("overlay %s %s: discard it: %w", id, o.Unusable, errdefs.ErrFailedPrecondition)
	}
	v := &overlayView{
		overlay: o, dir: ws.currentPath(), upperDirs: map[string]*delta{}, bases: map[string]base{}, touched: map[string]touch{}, conflicts: map[string]Conflict{},
		lastChange: ws.e.state.lastChanges(),
	}
	if o.Live {
		v.dir = ws.generationPath(o.Generation)
	} else {
		changes, err := ws.readBases(o)
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

// isIncidental says whether a folder differs only because others changed it: the
// overlay has it for what is in it.
func (v *overlayView) isIncidental(d *delta) bool {
	b, known := v.bases[d.path]
	return known && b.Kind == unchanged && d.kind == Changed && isDir(&d.upper) && isDir(&d.base)
}

// detectConflict notes whether others changed a path.
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
