package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"orchestrator/internal/cell"
	"orchestrator/runtime"
)

// sandbox is one that this process holds.
type sandbox struct {
	d    *Driver
	id   string
	cell *cell.Cell
	init *process
	said *words // nil for an adopted one

	alive context.Context // ends with errEnded when init does
	died  context.CancelCauseFunc
	watch sync.WaitGroup
	once  sync.Once // letGo
}

var errEnded = errors.New("the sandbox's first process has ended")

// hold makes the sandbox one of ours and watches its first process.
func (d *Driver) hold(id string, c *cell.Cell, init *process, said *words) *sandbox {
	s := &sandbox{d: d, id: id, cell: c, init: init, said: said}
	s.alive, s.died = context.WithCancelCause(context.Background())
	s.watch.Go(func() {
		if init.block() {
			init.reap()
			s.died(errEnded)
		}
	})
	d.mu.Lock()
	d.live[id] = s
	d.mu.Unlock()
	return s
}

// letGo ends the watch and forgets the sandbox. Done is closed by then if init has ended, and stays open if it has not.
func (s *sandbox) letGo() {
	s.once.Do(func() {
		s.d.mu.Lock()
		if s.d.live[s.id] == s {
			delete(s.d.live, s.id)
		}
		s.d.mu.Unlock()
		if s.init.ended() {
			s.died(errEnded)
			s.init.reap()
		}
		s.init.close()
		s.watch.Wait()
		_ = s.said.Close()
	})
}

// ID is the sandbox's id.
func (s *sandbox) ID() string { return s.id }

// Done is closed when the first process has ended.
func (s *sandbox) Done() <-chan struct{} { return s.alive.Done() }

// lost is the error for a sandbox whose first process has ended, with its last words.
func (s *sandbox) lost() error {
	return fmt.Errorf("sandbox %s: %s: %w", s.id, s.said.after(errEnded.Error()), errdefs.ErrUnavailable)
}

// Open opens a stream to the guest; it gives up when the guest is gone.
func (s *sandbox) Open(ctx context.Context) (net.Conn, error) {
	if s.alive.Err() != nil {
		return nil, s.lost()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.alive, func() { cancel(errEnded) })()
	conn, err := s.cell.Open(ctx)
	if err != nil && s.alive.Err() != nil {
		return nil, s.lost()
	}
	return conn, err
}

// Bind makes a host directory appear at /workspace.
func (s *sandbox) Bind(ctx context.Context, b runtime.Binding) error {
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
	return s.cell.Bind(ctx, b.Source, b.ReadOnly)
}

// Unbind takes it away again.
func (s *sandbox) Unbind(ctx context.Context) error { return s.cell.Unbind(ctx) }

// Destroy removes the sandbox.
func (s *sandbox) Destroy(ctx context.Context) error { return s.d.Remove(ctx, s.id) }

// Release lets go of the sandbox; it lives on.
func (s *sandbox) Release() error {
	s.letGo()
	return s.cell.Close()
}
