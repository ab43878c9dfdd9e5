package ocidriver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	removeTime  = 30 * time.Second // bounds a removal whose context has no deadline
	removeTries = 3
	killTime    = time.Second // for the first process alone, before its cgroups are emptied by force
)

// Remover destroys sandboxes from any state: held or not, half made, half removed, their first
// process dead or never started.
type Remover struct {
	// Locks keeps other calls about the sandbox out.
	Locks *Locks
	// TearDown removes one part after the other. Each step succeeds if there is nothing to do.
	TearDown func(ctx context.Context, id string) error
	// Remaining names what is left of a sandbox, for error messages.
	Remaining func(id string) []string
}

// Remove takes the lock and destroys a sandbox.
func (r *Remover) Remove(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return fmt.Errorf("remove sandbox %q: not an id: %w", id, errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, removeTime, fmt.Errorf("not removed within %s", removeTime))
	defer cancel()
	unlock, err := r.Locks.Lock(ctx, id)
	if err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	defer unlock()
	return r.Destroy(ctx, id)
}

// Destroy destroys a sandbox whose lock the caller holds. It starts over a few times, since one
// part may briefly block another.
func (r *Remover) Destroy(ctx context.Context, id string) error {
	var err error
	for try := range removeTries {
		if try > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		if err = r.TearDown(ctx, id); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	left := r.Remaining(id)
	if len(left) == 0 {
		left = []string{"no parts that can be seen"}
	}
	return fmt.Errorf("remove sandbox %s: left are %s: %w", id, strings.Join(left, ", "), err)
}

// End kills all processes of a sandbox and waits until they are dead. Without a first process
// (init is nil), it kills by cgroup. several reports whether the sandbox consists of several host
// processes that do not end with init.
func End(ctx context.Context, id string, init *Process, several func() bool) error {
	if init == nil {
		return RemoveCgroups(ctx, id)
	}
	if err := init.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", init.Pid, err)
	}
	short, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	if init.Wait(short) == nil && !several() {
		return nil
	}
	if err := RemoveCgroups(ctx, id); err != nil {
		return err
	}
	return init.Wait(ctx)
}
