package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
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
	m          *Manager
	entry      *entry
	lease      string
	mode       Mode
	generation int
	source     string
	over       sync.Once
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

// roomless makes a FullError of what a file system without room says.
func (g *ground) roomless(err error, what string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &FullError{Workspace: g.e.meta.Name, For: what}
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
	err := m.on(ctx, name, func(g *ground) (err error) {
		h, err = g.acquire(ctx, lease, mode)
		return err
	})
	return h, err
}

func (g *ground) acquire(ctx context.Context, lease string, mode Mode) (*Hold, error) {
	if mode == Overlaid {
		if err := g.endWriting(ctx); err != nil {
			return nil, err
		}
	}
	h, fresh, err := g.reserve(lease, mode)
	if err != nil || !fresh {
		return h, err
	}
	if err := g.give(ctx, h); err != nil {
		g.m.mu.Lock()
		defer g.m.mu.Unlock()
		delete(g.e.holds, lease)
		return nil, err
	}
	return h, nil
}

// reserve notes a hold, or finds the one there is.
func (g *ground) reserve(lease string, mode Mode) (h *Hold, fresh bool, err error) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if h := g.e.holds[lease]; h != nil {
		if h.mode != mode {
			return nil, false, fmt.Errorf("lease %s has workspace %s as %s already: %w", lease, g.e.meta.Name, h.mode, errdefs.ErrFailedPrecondition)
		}
		return h, false, nil
	}
	if err := g.m.allow(g.e, lease, mode); err != nil {
		return nil, false, err
	}
	h = &Hold{m: g.m, entry: g.e, lease: lease, mode: mode, generation: g.e.state.Current}
	if n, ok := g.e.state.Pins[lease]; ok && mode == ReadOnly {
		h.generation = n
	}
	g.e.holds[lease] = h
	return h, true, nil
}

// give makes what a hold names.
func (g *ground) give(ctx context.Context, h *Hold) error {
	switch h.mode {
	case Overlaid:
		n, err := g.mountOverlay(ctx, h.lease)
		if full := (*FullError)(nil); errors.As(g.roomless(err, forOverlay), &full) {
			return full
		}
		if err != nil {
			return fmt.Errorf("overlay on workspace %s: %w", g.e.meta.Name, err)
		}
		g.m.mu.Lock()
		h.generation = n
		g.m.mu.Unlock()
		h.source = g.m.merged(g.e.meta, h.lease)
		return nil
	case ReadWrite:
		if err := g.beginWriting(ctx, "sandbox "+h.lease); err != nil {
			return fmt.Errorf("workspace %s: %w", g.e.meta.Name, err)
		}
	}
	h.source = g.generation(h.generation)
	return nil
}

// allow says whether a lease can have a workspace now. To be called with the
// lock held.
func (m *Manager) allow(e *entry, lease string, mode Mode) error {
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
		case e.writing > 0:
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
	h.over.Do(func() { h.m.later(h.entry, h.end) })
}

// end is what Release does in its turn. As long as it fails the lease holds the
// workspace.
func (h *Hold) end(ctx context.Context, g *ground) error {
	if h.mode == Overlaid {
		if err := g.endOverlay(ctx, h.lease); err != nil {
			return err
		}
	}
	g.m.mu.Lock()
	last := h.mode == ReadWrite
	for _, other := range g.e.holds {
		last = last && (other == h || other.mode != ReadWrite)
	}
	if g.e.holds[h.lease] == h {
		delete(g.e.holds, h.lease)
	}
	g.m.mu.Unlock()
	var err error
	if last {
		err = g.endWriting(ctx)
	}
	if err := errors.Join(err, g.unpin(h.lease), g.tidy(ctx)); err != nil {
		g.m.log.Warn("files of an earlier state are not removed yet", "workspace", g.e.meta.Name, "error", err)
	}
	return nil
}

// pinned are the leases that see the generation that is about to be the last
// one, or an earlier one.
func (m *Manager) pinned(e *entry) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	if !m.settled {
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

// unpin forgets pins of leases that are over, and that of one that just was.
func (g *ground) unpin(over string) error {
	if len(g.e.state.Pins) == 0 {
		return nil
	}
	next := g.e.state
	next.Pins = g.m.pinned(g.e)
	for lease, n := range next.Pins {
		if n == next.Current || lease == over {
			delete(next.Pins, lease)
		}
	}
	if len(next.Pins) == len(g.e.state.Pins) {
		return nil
	}
	return g.save(next)
}

// Files reaches a workspace's files from the host. It is meant for a workspace
// at rest; beside a sandbox that writes it is as safe, but sees files come and
// go. What it creates belongs to the commands' user. It keeps the workspace
// from being deleted until it is closed.
type Files struct {
	*safefile.Root
	done func()
}

// Files opens the files of a workspace for reading: as they are now, without
// what overlays changed.
func (m *Manager) Files(ctx context.Context, name string) (*Files, error) {
	return m.open(ctx, name, false)
}

// Edit opens the files of a workspace for writing too. Overlays that are mounted
// go on with what they had.
func (m *Manager) Edit(ctx context.Context, name string) (*Files, error) {
	return m.open(ctx, name, true)
}

func (m *Manager) open(ctx context.Context, name string, write bool) (f *Files, err error) {
	err = m.on(ctx, name, func(g *ground) error {
		if write {
			if err := g.beginEdit(ctx); err != nil {
				return err
			}
		}
		f, err = g.files(write)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open workspace %s: %w", name, err)
	}
	return f, nil
}

func (g *ground) files(write bool) (*Files, error) {
	m, e, n := g.m, g.e, g.e.state.Current
	m.mu.Lock()
	e.reading[n]++
	if write {
		e.writing++
	}
	m.mu.Unlock()
	done := sync.OnceFunc(func() {
		m.mu.Lock()
		if e.reading[n]--; e.reading[n] == 0 {
			delete(e.reading, n)
		}
		if write {
			e.writing--
		}
		e.used = time.Now()
		after := n != e.state.Current || write && e.writing == 0 && e.state.Writer != nil
		m.mu.Unlock()
		if after {
			m.later(e, func(ctx context.Context, g *ground) error { return errors.Join(g.endWriting(ctx), g.tidy(ctx)) })
		}
	})
	root, err := safefile.Open(g.current(), safefile.Options{
		Prefix: MountedAt,
		Owner:  &safefile.Owner{UID: runtime.CommandUID, GID: runtime.CommandGID},
	})
	if err != nil {
		done()
		return nil, err
	}
	return &Files{Root: root, done: done}, nil
}

// Close lets go of the workspace. It may be called more than once.
func (f *Files) Close() error {
	err := f.Root.Close()
	f.done()
	return err
}
