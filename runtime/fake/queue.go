package fake

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

var _ runtime.Queuer = (*Driver)(nil)

// queued is a sandbox in the host's queue.
type queued struct {
	spec  runtime.Spec
	queue runtime.Queue
	ready chan struct{} // closed by Resume
	gone  chan struct{} // closed when the sandbox is withdrawn
}

// Queued returns the ids of the sandboxes in the queue, with what they were submitted with.
func (h *Host) Queued() map[string]runtime.Queue {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]runtime.Queue{}
	for id, q := range h.queue {
		out[id] = q.queue
	}
	return out
}

// Resume starts a sandbox of the queue and reports whether it was there.
func (h *Host) Resume(id string) bool {
	h.mu.Lock()
	q := h.queue[id]
	delete(h.queue, id)
	h.mu.Unlock()
	if q == nil {
		return false
	}
	if err := h.add(newContainer(q.spec)); err != nil {
		return false
	}
	close(q.ready)
	return true
}

// Withdraw removes a sandbox from the queue and reports whether it was there.
func (h *Host) Withdraw(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queue[id]
	if q != nil {
		delete(h.queue, id)
		close(q.gone)
	}
	return q != nil
}

// CheckQueue implements runtime.Queuer.
func (d *Driver) CheckQueue(context.Context) error {
	if !d.options.Queue {
		return fmt.Errorf("driver %s has no queue: %w", d.options.Name, errdefs.ErrNotImplemented)
	}
	return nil
}

// Submit implements runtime.Queuer. A sandbox that need not wait starts at once.
func (d *Driver) Submit(ctx context.Context, spec runtime.Spec, q runtime.Queue) error {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return err
	}
	if err := spec.RefuseUserNamespace(); err != nil {
		return err
	}
	if err := d.runHook(ctx, OpCreate, spec.ID); err != nil {
		return err
	}
	h := d.host
	h.mu.Lock()
	if h.queue[spec.ID] != nil || h.containers[spec.ID] != nil {
		h.mu.Unlock()
		return nil
	}
	if h.queue == nil {
		h.queue = map[string]*queued{}
	}
	h.queue[spec.ID] = &queued{spec: spec, queue: q, ready: make(chan struct{}), gone: make(chan struct{})}
	h.mu.Unlock()
	if !q.Suspended && q.Name == "" {
		h.Resume(spec.ID)
	}
	return nil
}

// AwaitStart implements runtime.Queuer.
func (d *Driver) AwaitStart(ctx context.Context, spec runtime.Spec, waiting func(string)) (runtime.Sandbox, error) {
	d.host.mu.Lock()
	q, m := d.host.queue[spec.ID], d.host.containers[spec.ID]
	d.host.mu.Unlock()
	switch {
	case m != nil:
		return d.sandbox(m), nil
	case q == nil:
		return nil, withdrawnError{}
	}
	waiting("queued by the fake host")
	select {
	case <-q.ready:
		waiting("")
		return d.Adopt(ctx, spec.ID)
	case <-q.gone:
		return nil, withdrawnError{}
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errdefs.ErrUnavailable, context.Cause(ctx))
	}
}

// withdrawnError is the error of a sandbox that was withdrawn from the queue.
type withdrawnError struct{}

// Error implements error.
func (withdrawnError) Error() string { return "withdrawn" }

// Unwrap returns the errdefs class.
func (withdrawnError) Unwrap() error { return errdefs.ErrNotFound }

// EndReason implements runtime.EndReasoner.
func (withdrawnError) EndReason() string { return "it was withdrawn" }
