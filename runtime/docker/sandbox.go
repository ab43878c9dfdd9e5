package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// Sandbox is one container with its guest. Its methods may be called concurrently.
type Sandbox struct {
	d         *Driver
	id        string
	mode      string
	class     runtime.Class
	container string // the engine's id, empty until known
	begun     bool   // a container may exist
	started   bool   // and something may run in it

	cell   *rundir.Dir         // local mode
	proc   *ocidriver.Process  // local mode
	bridge *guestconn.Redialer // stdio mode

	done chan struct{}
	// ctx ends when the sandbox has ended or was released; its cause says which. stop ends it, and
	// wg waits for the goroutine that watches for the end.
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	// turn is held while creating, destroying or releasing. It guards gone, and all above that
	// newSandbox does not set.
	turn chan struct{}
	gone bool
}

// newSandbox returns a sandbox whose lock the caller holds.
func newSandbox(d *Driver, id, mode string, class runtime.Class) *Sandbox {
	s := &Sandbox{d: d, id: id, mode: mode, class: class.OrDefault(), done: make(chan struct{}),
		turn: make(chan struct{}, 1)}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.turn <- struct{}{}
	return s
}

// hold records that this process holds the sandbox. AlreadyExists: it already does, and a second
// holder would take the guest away from the first.
func (d *Driver) hold(s *Sandbox) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held[s.id] != nil {
		return fmt.Errorf("docker: sandbox %s is in use by this process: %w", s.id, errdefs.ErrAlreadyExists)
	}
	d.held[s.id] = s
	return nil
}

func (d *Driver) drop(s *Sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held[s.id] == s {
		delete(d.held, s.id)
	}
}

func (d *Driver) holder(id string) *Sandbox {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held[id]
}

// errReleased is why a watch ended.
var errReleased = errors.New("the sandbox was released")

// ID returns the sandbox's id.
func (s *Sandbox) ID() string { return s.id }

// Done is closed when the first process has ended. It stays open if the sandbox is released first.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Open opens a stream to the guest; it waits for the guest until ctx ends. Unavailable: the sandbox
// has ended or was lost.
func (s *Sandbox) Open(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Do not wait for a guest that has ended.
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	var (
		conn net.Conn
		err  error
	)
	if s.mode == ModeStdio {
		conn, err = s.bridge.Open(ctx)
	} else {
		conn, err = s.cell.Open(ctx)
	}
	switch {
	case err == nil:
		return conn, nil
	case s.ctx.Err() != nil:
		return nil, fmt.Errorf("docker: sandbox %s: %w: %w", s.id, errdefs.ErrUnavailable, context.Cause(s.ctx))
	}
	return nil, fmt.Errorf("docker: sandbox %s: %w", s.id, err)
}

// Bind mounts a host directory at /workspace. NotImplemented in stdio mode and in class gvisor.
func (s *Sandbox) Bind(ctx context.Context, b runtime.Binding) error {
	if why := s.noBind(); why != "" {
		return fmt.Errorf("docker: sandbox %s: %s: %w", s.id, why, errdefs.ErrNotImplemented)
	}
	if err := s.cell.Bind(ctx, b.Source, b.ReadOnly); err != nil {
		return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	return nil
}

// Unbind unmounts it.
func (s *Sandbox) Unbind(ctx context.Context) error {
	if why := s.noBind(); why != "" {
		return fmt.Errorf("docker: sandbox %s: %s: %w", s.id, why, errdefs.ErrNotImplemented)
	}
	if err := s.cell.Unbind(ctx); err != nil {
		return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	return nil
}

// noBind returns why nothing can be mounted into the sandbox, or "".
func (s *Sandbox) noBind() string {
	switch {
	case s.mode == ModeStdio:
		return "nothing can be mounted on an engine that is used over its API only"
	case s.class == runtime.ClassGVisor:
		return ocispec.NoGVisorBind
	}
	return ""
}

// Figures returns the present use according to the sandbox's cgroups. NotImplemented in stdio mode.
func (s *Sandbox) Figures(context.Context) (runtime.Figures, error) {
	if s.mode == ModeStdio {
		return runtime.Figures{},
			fmt.Errorf("docker: sandbox %s: the cgroups of another host cannot be read: %w", s.id, errdefs.ErrNotImplemented)
	}
	return ocidriver.Figures(s.cell)
}

// destroyTime bounds a Destroy or Remove whose caller set no deadline. Within it, killTime is the
// part before the engine is asked, seenTime is how long the engine may take to notice what we
// killed, and engineKillTime is how long to wait for the engine before a forced removal. The engine
// holds a container as long as its runtime cleans up, which can take long with gVisor.
const (
	destroyTime    = time.Minute
	killTime       = 10 * time.Second
	seenTime       = 5 * time.Second
	engineKillTime = 30 * time.Second
)

// Destroy kills everything inside and removes all that was made for the sandbox. After an error it
// may be called again, here or as Driver.Remove.
func (s *Sandbox) Destroy(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTime, errSlow)
	defer cancel()
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	if s.gone {
		return nil
	}
	err := s.kill(ctx)
	if err != nil {
		// The engine may still manage what we could not.
		s.d.log.Warn("first process not killed directly", "sandbox", s.id, "error", err)
	}
	if s.class == runtime.ClassGVisor {
		// The end of gVisor's kernel does not end its file server and its tasks.
		if err := ocidriver.RemoveCgroups(ctx, s.id); err != nil {
			return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
		}
	}
	failpoint.Hit("docker.destroy.killed")
	if err := s.d.removeContainers(ctx, s.id, s.container, err == nil && s.proc != nil); err != nil {
		return err
	}
	failpoint.Hit("docker.destroy.deleted")
	s.finish()
	if err := s.clear(ctx); err != nil {
		return err
	}
	s.gone = true
	s.d.drop(s)
	return nil
}

// lock waits for the right to change this sandbox.
func (s *Sandbox) lock(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("docker: sandbox %s: another call is removing it: %w", s.id, context.Cause(ctx))
	}
}

// kill ends PID 1, and with it the whole sandbox, without the engine.
func (s *Sandbox) kill(ctx context.Context) error {
	if s.proc == nil {
		return nil
	}
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.proc.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", s.proc.Pid, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, killTime, errors.New("it does not end"))
	defer cancel()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clear removes what is on this host: run directory and note.
func (s *Sandbox) clear(ctx context.Context) error {
	if s.cell != nil {
		if err := ocidriver.RemoveCgroups(ctx, s.id); err != nil {
			return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
		}
		if err := s.cell.Remove(ctx); err != nil {
			return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
		}
	} else if err := s.d.removeCell(ctx, s.id); err != nil {
		return err
	}
	failpoint.Hit("docker.destroy.unmounted")
	return s.d.removeNote(s.id)
}

// Release gives up the sandbox without touching it.
func (s *Sandbox) Release() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.gone {
		return nil
	}
	s.gone = true
	defer s.d.drop(s)
	s.forget()
	if s.cell == nil {
		return nil
	}
	if err := s.cell.Close(); err != nil {
		return fmt.Errorf("docker: release sandbox %s: %w", s.id, err)
	}
	return nil
}

// forget ends the goroutine and the bridge of the sandbox.
func (s *Sandbox) forget() {
	s.stop(errReleased)
	s.proc.Close() // which ends the watch
	s.wg.Wait()
	if s.bridge != nil {
		s.bridge.Close()
	}
}

// finish is forget for a sandbox whose container is gone.
func (s *Sandbox) finish() {
	s.stop(errEnded)
	s.forget()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

// errEnded is why nothing can be opened any more.
var errEnded = errors.New("the sandbox has ended")

// watch closes done when the first process ends.
func (s *Sandbox) watch() {
	s.wg.Go(func() {
		var err error
		if s.proc == nil {
			err = s.d.waitContainer(s.ctx, s.container)
		} else if !s.proc.Block() {
			err = errReleased
		}
		switch {
		case err == nil:
			s.stop(errEnded)
			close(s.done)
		case s.ctx.Err() == nil:
			s.d.log.Error("end of the sandbox cannot be seen", "sandbox", s.id, "error", err)
		}
	})
}

// The pauses between requests about a remote container after a request broke off, growing from
// first to last.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

// waitContainer returns nil when the engine says that the container does not run or does not exist.
// It asks again while the engine cannot be asked.
func (d *Driver) waitContainer(ctx context.Context, id string) error {
	for pause := firstWait; ; pause = min(2*pause, lastWait) {
		w := d.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		// Both end with ctx: waiting for ctx as well would leak the client's goroutine.
		select {
		case got := <-w.Result:
			if got.Error == nil {
				return nil
			}
		case err := <-w.Error:
			if errdefs.IsNotFound(err) {
				return nil
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
