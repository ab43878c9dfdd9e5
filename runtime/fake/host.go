// Package fake is an in-memory container engine and a runtime.Driver over it, for tests of the
// packages above the drivers. States, owners, half-made sandboxes, adoption by a second driver and
// streams behave as package runtime requires; only the containers are missing.
//
// A Host outlives its drivers, as an engine outlives the orchestrator: to simulate a restart, make
// another Driver over the same Host. One goroutine serves each open stream and ends with the stream
// or its sandbox; Destroy and Remove wait for it. Everything uses the clock of package time, so it
// works under testing/synctest. Errors have the classes of containerd/errdefs.
package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Op names a step that a Hook can delay or fail.
type Op string

// The steps, in the order of a sandbox's life.
const (
	OpPrepare Op = "prepare"
	OpCreate  Op = "create"  // before anything is made
	OpCreated Op = "created" // the sandbox runs; an error leaves it for List to find
	OpAdopt   Op = "adopt"
	OpList    Op = "list" // id is the owner
	OpOpen    Op = "open"
	OpBind    Op = "bind"
	OpUnbind  Op = "unbind"
	OpFigures Op = "figures"
	OpDestroy Op = "destroy" // Destroy and Remove; an error leaves the sandbox unchanged
)

// Hook is called before each step, concurrently. It may wait until ctx ends. The step fails with
// its error.
type Hook func(ctx context.Context, op Op, id string) error

// Delay returns a Hook that waits d before each of ops.
func Delay(d time.Duration, ops ...Op) Hook {
	return func(ctx context.Context, op Op, _ string) error {
		if !slices.Contains(ops, op) {
			return nil
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Fail returns a Hook that fails the first times of each of ops with err, or all if times is
// negative.
func Fail(err error, times int, ops ...Op) Hook {
	var mu sync.Mutex
	left := map[Op]int{}
	for _, op := range ops {
		left[op] = times
	}
	return func(_ context.Context, op Op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		switch n := left[op]; {
		case n == 0:
			return nil
		case n > 0:
			left[op] = n - 1
		}
		return err
	}
}

// Host is an engine and its sandboxes. The zero value is ready to use. It is safe for concurrent
// use.
type Host struct {
	mu         sync.Mutex
	hook       Hook
	containers map[string]*container
	queue      map[string]*queued
	created    []string
	images     []string
}

// SetHook installs the hook for all drivers of the host; nil removes it.
func (h *Host) SetHook(hook Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

// IDs returns the ids of all sandboxes, running or not, sorted.
func (h *Host) IDs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.containers))
}

// Created returns the ids of all sandboxes ever created, in order.
func (h *Host) Created() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.created)
}

// Prepared returns the ids of all prepared images, in order.
func (h *Host) Prepared() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.images)
}

// Spec returns the spec of a sandbox and reports whether it exists.
func (h *Host) Spec(id string) (runtime.Spec, bool) {
	m := h.container(id)
	if m == nil {
		return runtime.Spec{}, false
	}
	return m.spec, true
}

// Bound returns the binding at a sandbox's /workspace and reports whether there is one.
func (h *Host) Bound(id string) (runtime.Binding, bool) {
	m := h.container(id)
	if m == nil {
		return runtime.Binding{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bound == nil {
		return runtime.Binding{}, false
	}
	return *m.bound, true
}

// SetFigures sets the figures that a sandbox reports from now on. It reports whether the sandbox
// exists.
func (h *Host) SetFigures(id string, f runtime.Figures) bool {
	m := h.container(id)
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.figures = f
	return true
}

// Kill ends a sandbox's first process, as the OOM killer would. The sandbox is still listed, as not
// running. Kill reports whether it existed.
func (h *Host) Kill(id string) bool { return h.KillFor(id, "") }

// KillFor is Kill with the reason that the sandbox's EndReason returns.
func (h *Host) KillFor(id, reason string) bool {
	m := h.container(id)
	if m == nil {
		return false
	}
	m.mu.Lock()
	m.why = reason
	m.mu.Unlock()
	m.kill()
	return true
}

// Vanish removes a sandbox without any driver, as `docker rm -f` would. It reports whether the
// sandbox existed.
func (h *Host) Vanish(id string) bool {
	m := h.container(id)
	if m == nil {
		return false
	}
	m.kill()
	m.serving.Wait()
	h.drop(id)
	return true
}

func (h *Host) container(id string) *container {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.containers[id]
}

func (h *Host) drop(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.containers, id)
}

func (h *Host) add(m *container) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, there := h.containers[m.spec.ID]; there {
		return fmt.Errorf("create sandbox %s: %w", m.spec.ID, errdefs.ErrAlreadyExists)
	}
	if h.containers == nil {
		h.containers = map[string]*container{}
	}
	h.containers[m.spec.ID] = m
	h.created = append(h.created, m.spec.ID)
	return nil
}

// runHook calls the hook without holding the lock, because a hook may wait.
func (h *Host) runHook(ctx context.Context, op Op, id string) error {
	h.mu.Lock()
	hook := h.hook
	h.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", op, id, err)
	}
	if hook == nil {
		return nil
	}
	if err := hook(ctx, op, id); err != nil {
		return fmt.Errorf("%s %s: %w", op, id, err)
	}
	return nil
}

// remove destroys a container in any state. It succeeds if there is none.
func (h *Host) remove(ctx context.Context, id string) error {
	if err := h.runHook(ctx, OpDestroy, id); err != nil {
		return err
	}
	h.Withdraw(id)
	m := h.container(id)
	if m == nil {
		return nil
	}
	m.kill()
	m.serving.Wait()
	h.drop(id)
	return nil
}
