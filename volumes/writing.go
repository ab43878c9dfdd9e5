package volumes

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A kept overlay must know whether its changed paths were changed by others. Replacing a file
// changes its inode, which a commit detects. A write in place can preserve everything but the
// file's change time, which no command can set. So the start of such a period is recorded. At its
// end, every changed path of a kept overlay with a later change time is recorded too, with the
// writer.

// timestampWait is more than two ticks of the clock that stamps files.
const timestampWait = 20 * time.Millisecond

// beginWriting records that files may be written in place from now on, if overlays are kept.
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
	// Wait so that earlier timestamps, ours or the last writer's, do not look like the new
	// writer's.
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

// endWriting records which paths were written, once the last writer has ended.
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
			return fmt.Errorf("read changes of overlay %s: %w", o.ID, err)
		}
	}
	next := ws.e.state
	next.Writer = nil
	return ws.saveState(next)
}

// recordTouched adds the changed paths that were written in place to an overlay's record.
func (ws *mountedWorkspace) recordTouched(ctx context.Context, o overlay, w *writer) error {
	changes, err := ws.readBaseStates(o)
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

// readBaseStates reads the lower layer's versions of an overlay's changed paths.
func (ws *mountedWorkspace) readBaseStates(o overlay) (out []baseState, err error) {
	err = readJSON(ws.m.overlayFile(ws.e.meta, o.ID, baseExt), maxComparison, &out)
	return out, err
}

// beginEdit prepares a workspace for writes from the host. Mounted overlays keep their generation.
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
		return fmt.Errorf("it has an overlay of sandbox %s of a stopped service: "+
			"start the service again, or run `orchestrator down`: %w",
			live, errdefs.ErrFailedPrecondition)
	case on:
		none := func(string) bool { return false }
		keep := func(*tree) error { return nil }
		err := ws.forkGeneration(ctx, none, keep, change{By: "the host", At: time.Now().UTC()})
		if err != nil {
			return fmt.Errorf("create a generation beside overlays: %w", err)
		}
	}
	return ws.beginWriting(ctx, "the host")
}
