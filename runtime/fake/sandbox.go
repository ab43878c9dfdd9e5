package fake

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// container is the state of a sandbox that outlives drivers.
type container struct {
	spec    runtime.Spec
	guest   *Guest
	done    chan struct{} // closed when the first process has ended
	ctx     context.Context
	cancel  context.CancelFunc
	serving sync.WaitGroup

	mu    sync.Mutex
	dead  bool
	bound *runtime.Binding
	why   string // Host.KillFor's reason
	conns map[net.Conn]struct{}

	figures runtime.Figures
}

func newContainer(spec runtime.Spec) *container {
	m := &container{spec: spec, done: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.guest = &Guest{End: m.kill}
	return m
}

func (m *container) isAlive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.dead
}

// kill ends the first process and closes every stream. It does not wait for the goroutines that
// serve streams, because one of them may be the caller.
func (m *container) kill() {
	m.mu.Lock()
	if m.dead {
		m.mu.Unlock()
		return
	}
	m.dead = true
	conns := m.conns
	m.conns = nil
	close(m.done)
	m.mu.Unlock()
	m.cancel()
	for conn := range conns {
		_ = conn.Close()
	}
}

// dial returns a new stream. The other end is served until the stream or the container ends.
func (m *container) dial(serve func(context.Context, string, net.Conn)) (net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil, fmt.Errorf("open stream to sandbox %s: sandbox has ended: %w", m.spec.ID, errdefs.ErrUnavailable)
	}
	host, guest := newDuplex()
	m.conns[guest] = struct{}{}
	m.serving.Add(1)
	go func() {
		defer m.serving.Done()
		defer m.closeConn(guest)
		serve(m.ctx, m.spec.ID, guest)
	}()
	return host, nil
}

func (m *container) closeConn(conn net.Conn) {
	_ = conn.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, conn)
}

// Sandbox is a driver's handle on a container.
type Sandbox struct {
	driver    *Driver
	container *container
	serve     func(context.Context, string, net.Conn)
	released  atomic.Bool
}

var (
	_ runtime.Sandbox     = (*Sandbox)(nil)
	_ runtime.Meter       = (*Sandbox)(nil)
	_ runtime.EndReasoner = (*Sandbox)(nil)
)

// ID implements runtime.Sandbox.
func (s *Sandbox) ID() string { return s.container.spec.ID }

// Open implements runtime.Sandbox.
func (s *Sandbox) Open(ctx context.Context) (net.Conn, error) {
	if err := s.runHook(ctx, OpOpen); err != nil {
		return nil, err
	}
	return s.container.dial(s.serve)
}

// Bind implements runtime.Sandbox.
func (s *Sandbox) Bind(ctx context.Context, b runtime.Binding) error {
	if !s.driver.options.Capabilities.Has(runtime.CapLateBind) {
		return fmt.Errorf("bind workspace: %w", errdefs.ErrNotImplemented)
	}
	if err := s.runHook(ctx, OpBind); err != nil {
		return err
	}
	s.container.mu.Lock()
	defer s.container.mu.Unlock()
	switch {
	case s.container.dead:
		return fmt.Errorf("bind workspace in sandbox %s: sandbox has ended: %w", s.ID(), errdefs.ErrUnavailable)
	case s.container.bound != nil:
		return fmt.Errorf("bind workspace in sandbox %s: already bound: %w", s.ID(), errdefs.ErrFailedPrecondition)
	}
	s.container.bound = &b
	return nil
}

// Unbind implements runtime.Sandbox.
func (s *Sandbox) Unbind(ctx context.Context) error {
	if err := s.runHook(ctx, OpUnbind); err != nil {
		return err
	}
	s.container.mu.Lock()
	defer s.container.mu.Unlock()
	s.container.bound = nil
	return nil
}

// Figures implements runtime.Meter. It returns what Host.SetFigures set, or NotImplemented if the
// driver lacks CapUsage.
func (s *Sandbox) Figures(ctx context.Context) (runtime.Figures, error) {
	if !s.driver.options.Capabilities.Has(runtime.CapUsage) {
		return runtime.Figures{}, fmt.Errorf("figures of sandbox %s: %w", s.ID(), errdefs.ErrNotImplemented)
	}
	if err := s.runHook(ctx, OpFigures); err != nil {
		return runtime.Figures{}, err
	}
	s.container.mu.Lock()
	defer s.container.mu.Unlock()
	if s.container.dead {
		return runtime.Figures{}, fmt.Errorf("figures of sandbox %s: sandbox has ended: %w", s.ID(), errdefs.ErrNotFound)
	}
	return s.container.figures, nil
}

// EndReason implements runtime.EndReasoner. It returns what Host.KillFor was told.
func (s *Sandbox) EndReason() string {
	s.container.mu.Lock()
	defer s.container.mu.Unlock()
	return s.container.why
}

// Done implements runtime.Sandbox.
func (s *Sandbox) Done() <-chan struct{} { return s.container.done }

// Destroy implements runtime.Sandbox.
func (s *Sandbox) Destroy(ctx context.Context) error {
	if err := s.checkUsable(); err != nil {
		return err
	}
	return s.driver.host.remove(ctx, s.ID())
}

// Release implements runtime.Sandbox.
func (s *Sandbox) Release() error {
	s.released.Store(true)
	return nil
}

func (s *Sandbox) checkUsable() error {
	if s.released.Load() {
		return fmt.Errorf("sandbox %s was released: %w", s.ID(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (s *Sandbox) runHook(ctx context.Context, op Op) error {
	if err := s.checkUsable(); err != nil {
		return err
	}
	return s.driver.runHook(ctx, op, s.ID())
}
