package kubernetes

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// destroyTime bounds a Destroy or Remove whose caller set no deadline. endTime is how long the
// guest may take to answer a request to end over a new stream: without one, the kubelet kills it
// after the grace period.
const (
	destroyTime = time.Minute
	endTime     = 2 * time.Second
)

// Sandbox is one pod with its guest. Its methods may be called concurrently.
type Sandbox struct {
	d    *Driver
	id   string
	name string // of its entry in the podCache
	pod  string // the pod's name, which may differ if a Job or a SandboxClaim has created it
	// ofOther is set if a Job or a SandboxClaim has created the pod, which goes with it.
	ofOther bool
	uid     types.UID           // of the pod; empty until there is one
	epoch   int64               // in all requests; of the pod if this process has none
	stream  *guestconn.Redialer // nil until the pod runs

	done chan struct{}
	// ctx ends when the sandbox has ended or was released; its cause says which. stop ends it, and
	// wg waits for the goroutines.
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	// turn is held while creating, destroying or releasing. It guards gone and what newSandbox does
	// not set.
	turn chan struct{}
	gone bool
}

// newSandbox returns a sandbox whose lock the caller holds.
func newSandbox(d *Driver, id string) *Sandbox {
	s := &Sandbox{
		d: d, id: id, name: podName(id), pod: podName(id), done: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.turn <- struct{}{}
	return s
}

// hold records that this process holds the sandbox. AlreadyExists: it already does.
func (d *Driver) hold(s *Sandbox) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held[s.id] != nil {
		return fmt.Errorf("kubernetes: sandbox %s is in use by this process: %w", s.id, errdefs.ErrAlreadyExists)
	}
	d.held[s.id] = s
	return nil
}

func (d *Driver) release(s *Sandbox) {
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

// attach starts to follow a running pod and to keep its stream open.
func (s *Sandbox) attach() {
	s.stream = newStream(s.ctx, s.d, s.pod, s.epoch)
	s.wg.Go(func() {
		var w endWatch
		if err := s.d.pods.wait(s.ctx, s.name, s.uid, w.seen); err == nil {
			s.stop(w.why)
			close(s.done)
		}
	})
	s.wg.Go(func() { s.stream.Keep(s.ctx) })
}

// ID returns the sandbox's id.
func (s *Sandbox) ID() string { return s.id }

// Epoch implements guest.Fenced.
func (s *Sandbox) Epoch() int64 { return s.epoch }

// Done is closed when the pod's container has ended or the pod is gone. It stays open if the
// sandbox is released first.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Open opens a stream to the guest; it waits for the guest until ctx ends. Unavailable: the sandbox
// has ended or was lost; the error says why.
func (s *Sandbox) Open(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	conn, err := s.stream.Open(ctx)
	if s.ctx.Err() != nil { // the stream may end a little later than the sandbox
		if err == nil {
			_ = conn.Close()
		}
		return nil, fmt.Errorf("kubernetes: sandbox %s: %w: %w", s.id, errdefs.ErrUnavailable, context.Cause(s.ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("kubernetes: sandbox %s: %w", s.id, err)
	}
	return conn, nil
}

// Bind returns NotImplemented.
func (s *Sandbox) Bind(context.Context, runtime.Binding) error { return s.noMounts() }

// Unbind returns NotImplemented.
func (s *Sandbox) Unbind(context.Context) error { return s.noMounts() }

func (s *Sandbox) noMounts() error {
	return fmt.Errorf(
		"kubernetes: sandbox %s: nothing can be mounted into a running pod: %w",
		s.id,
		errdefs.ErrNotImplemented,
	)
}

// Destroy ends everything inside and removes the pod. It returns when the kubelet has reported the
// end. After an error it may be called again, here or as Driver.Remove.
func (s *Sandbox) Destroy(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTime, errSlow)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf(
			"kubernetes: sandbox %s: another call is removing it: %w: %w",
			s.id,
			errdefs.ErrUnavailable,
			context.Cause(ctx),
		)
	}
	defer func() { <-s.turn }()
	if s.gone {
		return nil
	}
	s.end(ctx)
	if err := s.remove(ctx); err != nil {
		return err
	}
	s.gone = true
	s.stop(errEnded)
	s.forget()
	s.d.release(s)
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	return nil
}

// remove removes the pod, and what has created it.
func (s *Sandbox) remove(ctx context.Context) error {
	if s.ofOther {
		return s.d.removeAll(ctx, s.id)
	}
	p := s.d.pods.get(s.name)
	if p == nil || p.UID != s.uid { // unknown to the watch
		p = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.pod, UID: s.uid}}
	}
	return s.d.remove(ctx, p)
}

// end asks the guest to end. It ignores TERM, so that a pod whose guest was not asked takes the
// grace period longer. Requests under way are cut first: a sandbox that is destroyed has no
// results.
func (s *Sandbox) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if s.stream == nil || !s.stream.Cut(ctx) {
		return
	}
	if err := guest.New(s).End(ctx); err != nil {
		s.d.checkGuest(err)
		s.d.log.Debug("guest did not end when asked", "sandbox", s.id, "error", err)
	}
}

// Release gives up the sandbox without touching it.
func (s *Sandbox) Release() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.gone {
		return nil
	}
	s.gone = true
	s.forget()
	s.d.release(s)
	return nil
}

// forget ends the goroutines and the stream of the sandbox.
func (s *Sandbox) forget() {
	s.stop(errReleased)
	s.wg.Wait()
	if s.stream != nil {
		s.stream.Close()
	}
}
