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
		return fmt.Sprintf("%s was changed by %s", head(c.Path), by)
	}
	return fmt.Sprintf("%s was changed by %s at %s", head(c.Path), by, c.At.Format(time.RFC3339))
}

// view is what an overlay would change now.
type view struct {
	o        overlay
	deltas   []delta // sorted by path; those of kind same are left out
	folders  map[string]*delta
	basis    map[string]basis
	touched  map[string]touch
	dir      string // of the generation that it is compared with
	conflict map[string]Conflict
	blame    func(rel string) (change, bool)
}

// view compares an overlay with the current generation, or if its lease lives
// with the one it lies on.
func (g *ground) view(ctx context.Context, id string) (*view, error) {
	o, err := g.overlay(id)
	if err != nil {
		return nil, err
	}
	if o.Unusable != "" {
		return nil, fmt.Errorf("overlay %s %s: discard it: %w", id, o.Unusable, errdefs.ErrFailedPrecondition)
	}
	v := &view{
		o: o, dir: g.current(), folders: map[string]*delta{}, basis: map[string]basis{}, touched: map[string]touch{}, conflict: map[string]Conflict{},
		blame: g.e.state.blames(),
	}
	if o.Live {
		v.dir = g.generation(o.Generation)
	} else {
		changes, err := g.basis(o)
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			v.basis[string(c.Path)] = c
		}
		for _, t := range o.Touched {
			v.touched[string(t.Path)] = t
		}
	}
	all, err := g.scan(ctx, id, v.dir)
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
			v.folders[d.path] = d
		}
		if d.kind == same || committed[d.path] || v.unmeant(d) {
			continue
		}
		v.deltas = append(v.deltas, *d)
		if !o.Live {
			v.compare(d)
		}
	}
	return v, nil
}

// unmeant says whether a folder differs only because others changed it: the
// overlay has it for what is in it.
func (v *view) unmeant(d *delta) bool {
	b, known := v.basis[d.path]
	return known && b.Kind == same && d.kind == Changed && isDir(&d.upper) && isDir(&d.base)
}

// compare notes whether others changed a path.
func (v *view) compare(d *delta) {
	if t, ok := v.touched[d.path]; ok {
		v.conflict[d.path] = Conflict{Path: d.path, By: t.By, At: t.At}
		return
	}
	if d.was() == v.basis[d.path].Was {
		return
	}
	c := Conflict{Path: d.path}
	if by, ok := v.blame(d.path); ok && by.Generation > v.o.Generation {
		c.By, c.At = by.By, by.At
	}
	v.conflict[d.path] = c
}
