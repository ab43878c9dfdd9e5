package volumes

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Overlays that are kept have to know what became of the paths that they
// changed. Whoever replaces files leaves other inodes, which a commit sees. Who
// writes to them in place may leave everything as it was but for the stamp of
// the last change, which no command can set. So the time at which such writing
// began is noted, and when it has ended every path of a kept overlay that was
// stamped since is noted too, with who did it.

// tickOfStamps is more than two ticks of the clock that stamps files.
const tickOfStamps = 20 * time.Millisecond

// beginWriting notes that somebody may write in place from now on, if an overlay
// has to know.
func (g *ground) beginWriting(ctx context.Context, by string) error {
	if g.e.state.Writer != nil {
		return nil
	}
	g.m.mu.Lock()
	kept := len(g.e.overlays)
	g.m.mu.Unlock()
	if kept == 0 {
		return nil
	}
	// What was stamped before, by us or the last writer, must not look like theirs.
	select {
	case <-time.After(tickOfStamps):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return err
	}
	next := g.e.state
	next.Writer = &writer{By: by, Since: time.Unix(now.Unix()).UTC()}
	return g.save(next)
}

// endWriting notes what was written to, once nobody writes any more.
func (g *ground) endWriting(ctx context.Context) error {
	w := g.e.state.Writer
	g.m.mu.Lock()
	busy := g.e.writing > 0
	for _, h := range g.e.holds {
		busy = busy || h.mode == ReadWrite
	}
	var kept []overlay
	for _, o := range g.e.overlays {
		if !o.Live && o.Unusable == "" {
			kept = append(kept, *o)
		}
	}
	g.m.mu.Unlock()
	if w == nil || busy {
		return nil
	}
	for _, o := range kept {
		if err := g.touched(ctx, o, w); err != nil {
			return fmt.Errorf("changes of overlay %s: %w", o.ID, err)
		}
	}
	next := g.e.state
	next.Writer = nil
	return g.save(next)
}

// touched adds to an overlay what was written to below its changes.
func (g *ground) touched(ctx context.Context, o overlay, w *writer) error {
	changes, err := g.basis(o)
	if err != nil {
		return err
	}
	base, err := openTree(g.current())
	if err != nil {
		return err
	}
	defer base.close()
	known := map[string]bool{}
	for _, t := range o.Touched {
		known[string(t.Path)] = true
	}
	now := time.Now().UTC()
	for _, c := range changes {
		if c.Kind == same || known[string(c.Path)] {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		st, found, err := base.stat(string(c.Path))
		if err != nil {
			return err
		}
		stamped := found && !isDir(&st) && st.Ctim.Nano() >= w.Since.UnixNano()
		gone := !found && c.Was != ident{}
		if stamped || gone {
			o.Touched = append(o.Touched, touch{Path: c.Path, By: w.By, At: now})
		}
	}
	return g.keep(o)
}

// basis reads what was below the changes of an overlay.
func (g *ground) basis(o overlay) (out []basis, err error) {
	err = readJSON(g.m.overlayFile(g.e.meta, o.ID, basisExt), maxComparison, &out)
	return out, err
}

// beginEdit gets a workspace ready to be written to from the host: overlays that
// are mounted stay on the generation they have.
func (g *ground) beginEdit(ctx context.Context) error {
	g.m.mu.Lock()
	live, settled := g.e.liveOverlay(), g.m.settled || g.e.holds[g.e.liveOverlay()] != nil
	on := false
	for _, o := range g.e.overlays {
		on = on || o.Live && o.Generation == g.e.state.Current
	}
	g.m.mu.Unlock()
	switch {
	case live != "" && !settled:
		return fmt.Errorf("sandbox %s of a stopped service has an overlay on it: start the service again, or end it with `orchestrator down`: %w", live, errdefs.ErrFailedPrecondition)
	case on:
		none := func(string) bool { return false }
		err := g.fork(ctx, none, func(*tree) error { return nil }, change{By: "the host", At: time.Now().UTC()})
		if err != nil {
			return fmt.Errorf("make room beside overlays: %w", err)
		}
	}
	return g.beginWriting(ctx, "the host")
}
