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

// timestampWait is more than two ticks of the clock that stamps files.
const timestampWait = 20 * time.Millisecond

// beginWriting notes that somebody may write in place from now on, if an overlay
// has to know.
func (ws *mountedWorkspace) beginWriting(ctx context.Context, by string) error {
	if ws.e.state.Writer != nil {
		return nil
	}
	ws.m.mu.Lock()
	kept := len(ws.e.overlays)
	ws.m.mu.Unlock()
	if kept == 0 {
		return nil
	}
	// What was stamped before, by us or the last writer, must not look like theirs.
	select {
	case <-time.After(timestampWait):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return err
	}
	next := ws.e.state
	next.Writer = &writer{By: by, Since: time.Unix(now.Unix()).UTC()}
	return ws.saveState(next)
}

// endWriting notes what was written to, once nobody writes any more.
func (ws *mountedWorkspace) endWriting(ctx context.Context) error {
	w := ws.e.state.Writer
	ws.m.mu.Lock()
	busy := ws.e.writers > 0
	for _, h := range ws.e.holds {
		busy = busy || h.mode == ReadWrite
	}
	var kept []overlay
	for _, o := range ws.e.overlays {
		if !o.Live && o.Unusable == "" {
			kept = append(kept, *o)
		}
	}
	ws.m.mu.Unlock()
	if w == nil || busy {
		return nil
	}
	for _, o := range kept {
		if err := ws.recordTouched(ctx, o, w); err != nil {
			return fmt.Errorf("changes of overlay %s: %w", o.ID, err)
		}
	}
	next := ws.e.state
	next.Writer = nil
	return ws.saveState(next)
}

// recordTouched adds to an overlay what was written to below its changes.
func (ws *mountedWorkspace) recordTouched(ctx context.Context, o overlay, w *writer) error {
	changes, err := ws.readBases(o)
	if err != nil {
		return err
	}
	base, err := openTree(ws.currentPath())
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
		if c.Kind == unchanged || known[string(c.Path)] {
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
	return ws.saveOverlay(o)
}

// readBases reads what was below the changes of an overlay.
func (ws *mountedWorkspace) readBases(o overlay) (out []base, err error) {
	err = readJSON(ws.m.overlayFile(ws.e.meta, o.ID, baseExt), maxComparison, &out)
	return out, err
}

// beginEdit gets a workspace ready to be written to from the host: overlays that
// are mounted stay on the generation they have.
func (ws *mountedWorkspace) beginEdit(ctx context.Context) error {
	ws.m.mu.Lock()
	live, settled := ws.e.liveOverlay(), ws.m.leasesRestored || ws.e.holds[ws.e.liveOverlay()] != nil
	on := false
	for _, o := range ws.e.overlays {
		on = on || o.Live && o.Generation == ws.e.state.Current
	}
	ws.m.mu.Unlock()
	switch {
	case live != "" && !settled:
		return fmt.Errorf("sandbox %s of a stopped service has an overlay on it: start the service again, or end it with `orchestrator down`: %w", live, errdefs.ErrFailedPrecondition)
	case on:
		none := func(string) bool { return false }
		err := ws.forkGeneration(ctx, none, func(*tree) error { return nil }, change{By: "the host", At: time.Now().UTC()})
		if err != nil {
			return fmt.Errorf("make room beside overlays: %w", err)
		}
	}
	return ws.beginWriting(ctx, "the host")
}
