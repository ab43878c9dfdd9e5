package ocidriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// ErrEnded is the reason why a sandbox is lost.
var ErrEnded = errors.New("the sandbox's first process has ended")

// Stderr is the last output of a sandbox on standard error. It explains why a sandbox was lost.
type Stderr interface {
	// Annotate appends the output to a message.
	Annotate(message string) string
	Close() error
}

// Sandbox is a running sandbox: its run directory and its first process, whose end it watches. It
// implements runtime.Sandbox.
type Sandbox struct {
	RunDir *rundir.Dir
	Init   *Process
	Stderr Stderr // nil: none

	base  *Base
	id    string
	class runtime.Class

	alive context.Context // ends with ErrEnded when Init does
	died  context.CancelCauseFunc
	watch sync.WaitGroup
	once  sync.Once // guards forget
}

var _ runtime.Sandbox = (*Sandbox)(nil)

// hold adds a sandbox and watches its first process, in a goroutine that forget waits for. It takes
// ownership of the run directory, the process and the output.
func (b *Base) hold(id string, class runtime.Class, c *rundir.Dir, init *Process, words Stderr) *Sandbox {
	h := &Sandbox{RunDir: c, Init: init, base: b, id: id, class: class, Stderr: words}
	h.alive, h.died = context.WithCancelCause(context.Background())
	h.watch.Go(func() {
		if init.Block() {
			init.Reap()
			h.died(ErrEnded)
		}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live == nil {
		b.live = map[string]*Sandbox{}
	}
	b.live[id] = h
	return h
}

// Get returns the sandbox with this id if this process holds it, or nil.
func (b *Base) Get(id string) *Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live[id]
}

// Close releases every held sandbox. They keep running.
func (b *Base) Close() error {
	b.mu.Lock()
	held := slices.Collect(maps.Values(b.live))
	b.mu.Unlock()
	errs := make([]error, 0, len(held))
	for _, h := range held {
		errs = append(errs, h.Release())
	}
	return errors.Join(errs...)
}

// forget ends the watch and removes the sandbox from its driver. Afterwards Done is closed if the
// first process has ended, and stays open otherwise.
func (h *Sandbox) forget() {
	h.once.Do(func() {
		h.base.mu.Lock()
		if h.base.live[h.id] == h {
			delete(h.base.live, h.id)
		}
		h.base.mu.Unlock()
		if h.Init.Ended() {
			h.died(ErrEnded)
			h.Init.Reap()
		}
		h.Init.Close()
		h.watch.Wait()
		if h.Stderr != nil {
			_ = h.Stderr.Close()
		}
	})
}

// ID returns the sandbox's id.
func (h *Sandbox) ID() string { return h.id }

// Done is closed when the first process has ended.
func (h *Sandbox) Done() <-chan struct{} { return h.alive.Done() }

func (h *Sandbox) lost() error {
	why := ErrEnded.Error()
	if killedForMemory(h.id) {
		why += " (over its memory cap)"
	}
	if h.Stderr != nil {
		why = h.Stderr.Annotate(why)
	}
	return fmt.Errorf("sandbox %s: %s: %w", h.id, why, errdefs.ErrUnavailable)
}

// Open opens a stream to the guest. It fails when the guest is gone.
func (h *Sandbox) Open(ctx context.Context) (net.Conn, error) {
	if h.alive.Err() != nil {
		return nil, h.lost()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.alive, func() { cancel(ErrEnded) })()
	conn, err := h.RunDir.Open(ctx)
	if err != nil && h.alive.Err() != nil {
		return nil, h.lost()
	}
	return conn, err
}

// Bind mounts a host directory at /workspace.
func (h *Sandbox) Bind(ctx context.Context, b runtime.Binding) error {
	if h.class == runtime.ClassGVisor {
		return fmt.Errorf("bind %s: %s: %w", b.Source, ocispec.NoGVisorBind, errdefs.ErrNotImplemented)
	}
	if !filepath.IsAbs(b.Source) {
		return fmt.Errorf("bind %q: not absolute: %w", b.Source, errdefs.ErrInvalidArgument)
	}
	info, err := os.Lstat(b.Source)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("bind %s: %w", b.Source, errdefs.ErrNotFound)
	case err != nil:
		return fmt.Errorf("bind: %w", err)
	case !info.IsDir():
		return fmt.Errorf("bind %s: not a directory: %w", b.Source, errdefs.ErrInvalidArgument)
	}
	if b.OwnersMapped {
		return h.RunDir.BindMapped(ctx, b.Source, b.ReadOnly)
	}
	return h.RunDir.Bind(ctx, b.Source, b.ReadOnly)
}

// UserNamespace implements runtime.UserNamespaced.
func (h *Sandbox) UserNamespace() *os.File { return h.RunDir.User().File() }

// Unbind unmounts it.
func (h *Sandbox) Unbind(ctx context.Context) error {
	if h.class == runtime.ClassGVisor {
		return fmt.Errorf("unbind: %s: %w", ocispec.NoGVisorBind, errdefs.ErrNotImplemented)
	}
	return h.RunDir.Unbind(ctx)
}

// Figures reads the present use from the sandbox's cgroups.
func (h *Sandbox) Figures(context.Context) (runtime.Figures, error) { return Figures(h.RunDir) }

// Destroy removes the sandbox.
func (h *Sandbox) Destroy(ctx context.Context) error { return h.base.Remove(ctx, h.id) }

// Release gives up the sandbox, which keeps running.
func (h *Sandbox) Release() error {
	h.forget()
	return h.RunDir.Close()
}
