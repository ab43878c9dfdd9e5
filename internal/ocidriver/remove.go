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
	removeTime  = 30 * time.Second // bounds a removal whose context has no end
	removeTries = 3
	killTime    = time.Second // for a first process alone, before its cgroups are emptied by force
)

// Remover destroys sandboxes from any state: held or not, half made, half removed, their first process dead or never started.
type Remover struct {
	// Locks keep other calls about the sandbox away meanwhile.
	Locks *Locks
	// TearDown removes one part after the other; each step is done when there is nothing to do.
	TearDown func(ctx context.Context, id string) error
	// Remaining names what there still is of a sandbox, for the error that says so.
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

// Destroy is Remove for who has the lock. It starts over a few times, as one part may hold on to another for a moment.
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

// End kills everything of a sandbox and waits until it is dead. init is nil where there is no first process to be found: then the cgroups
// have to do. Where several processes of the host make up the sandbox, init does not take the others along.
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
