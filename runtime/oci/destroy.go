package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"orchestrator/internal/cell"
	"orchestrator/internal/fault"
	"orchestrator/internal/slot"
	"orchestrator/runtime"
)

const (
	removeTime  = 30 * time.Second // bounds a Remove whose context has no end
	removeTries = 3
	killTime    = time.Second // for init alone, before its cgroups are emptied by force
)

// Remove destroys a sandbox from any state: held or not, half made, half removed, its first process dead or never started.
func (d *Driver) Remove(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return fmt.Errorf("remove sandbox %q: not an id: %w", id, errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, removeTime, fmt.Errorf("not removed within %s", removeTime))
	defer cancel()
	unlock, err := d.busy.lock(ctx, id)
	if err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	defer unlock()
	return d.destroy(ctx, id)
}

// destroy is Remove for who has the lock. It starts over a few times, as one part may hold on to another for a moment.
func (d *Driver) destroy(ctx context.Context, id string) error {
	if !exists(d.bundle(id)) {
		return nil // the folder goes last
	}
	var err error
	for try := range removeTries {
		if try > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		if err = d.tearDown(ctx, id); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("remove sandbox %s: left are %s: %w", id, strings.Join(d.leftOf(id), ", "), err)
}

// tearDown removes one part after the other; each step is done when there is nothing to do.
func (d *Driver) tearDown(ctx context.Context, id string) error {
	if err := d.end(ctx, id); err != nil {
		return err
	}
	fault.Hit("oci.destroy.killed")
	if err := d.removeCell(ctx, id); err != nil {
		return err
	}
	if err := d.delete(ctx, id); err != nil {
		return err
	}
	if err := removeCgroups(ctx, id); err != nil {
		return err
	}
	fault.Hit("oci.destroy.deleted")
	if err := unmountRoot(filepath.Join(d.bundle(id), overlayName)); err != nil {
		return err
	}
	fault.Hit("oci.destroy.unmounted")
	if s := d.held(id); s != nil {
		s.letGo()
	}
	return os.RemoveAll(d.bundle(id))
}

// end kills everything inside and waits until it is dead.
func (d *Driver) end(ctx context.Context, id string) error {
	init, done, err := d.initFor(id)
	if err != nil {
		return err
	}
	defer done()
	if init == nil {
		// Never recorded, or dead: what a runtime that was cut short left is in the cgroups.
		return removeCgroups(ctx, id)
	}
	if err := init.kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", init.pid, err)
	}
	short, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	if init.wait(short) == nil {
		return nil
	}
	if err := removeCgroups(ctx, id); err != nil {
		return err
	}
	return init.wait(ctx)
}

// initFor takes hold of the first process, nil if there is none to be found. done gives up a hold that is not the sandbox's own.
func (d *Driver) initFor(id string) (init *process, done func(), err error) {
	if s := d.held(id); s != nil {
		return s.init, func() {}, nil
	}
	rec, err := d.read(id)
	if err != nil {
		// Half written or foreign: it names no process, so the cgroups have to do.
		return nil, func() {}, nil
	}
	init, err = d.initOf(rec)
	if err != nil {
		return nil, nil, err
	}
	return init, init.close, nil
}

func (d *Driver) removeCell(ctx context.Context, id string) error {
	if s := d.held(id); s != nil {
		return s.cell.Remove(ctx)
	}
	return cell.Remove(ctx, d.cellOptions(id, runtime.Limits{}.WithDefaults()))
}

// delete lets the runtime forget the container. A container that it never finished it does not know; its folder is ours to remove.
func (d *Driver) delete(ctx context.Context, id string) error {
	state := filepath.Join(d.runtime.Root, id)
	if !exists(state) {
		return nil
	}
	if err := d.runtime.Delete(ctx, id, nil); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("delete container: %w", context.Cause(ctx))
		}
		d.log.Debug("the runtime did not delete a container, its state is removed", "sandbox", id, "error", err)
	}
	// A runtime that was killed while it started leaves the mount of its own program in there.
	if err := slot.Sweep(ctx, state, killTime); err != nil {
		return fmt.Errorf("delete container: %w", err)
	}
	if err := os.RemoveAll(state); err != nil {
		return fmt.Errorf("delete container: %w", err)
	}
	return nil
}

// leftOf names what there still is of a sandbox, for the error that says so.
func (d *Driver) leftOf(id string) []string {
	var left []string
	if rec, err := d.read(id); err == nil && d.running(rec) {
		left = append(left, fmt.Sprintf("process %d", rec.Pid))
	}
	if dirs, err := cgroupsOf(id); err == nil {
		left = append(left, dirs...)
	}
	for _, path := range []string{filepath.Join(d.cells, id), filepath.Join(d.runtime.Root, id), d.bundle(id)} {
		if exists(path) {
			left = append(left, path)
		}
	}
	if len(left) == 0 {
		left = append(left, "no parts that can be seen")
	}
	return left
}
