package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// stateTime is how long what is mounted in a runtime's state is swept.
const stateTime = time.Second

// Remove destroys a sandbox from any state: held or not, half made, half removed, its first process dead or never started.
func (d *Driver) Remove(ctx context.Context, id string) error { return d.removal.Remove(ctx, id) }

// tearDown removes one part after the other; each step is done when there is nothing to do.
func (d *Driver) tearDown(ctx context.Context, id string) error {
	if !exists(d.bundle(id)) {
		return nil // the folder goes last
	}
	if err := d.end(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("oci.destroy.killed")
	if err := d.removeCell(ctx, id); err != nil {
		return err
	}
	if err := d.delete(ctx, id); err != nil {
		return err
	}
	if err := ocidriver.RemoveCgroups(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("oci.destroy.deleted")
	if err := unmountRoot(filepath.Join(d.bundle(id), overlayName)); err != nil {
		return err
	}
	failpoint.Hit("oci.destroy.unmounted")
	if s := d.live.Get(id); s != nil {
		s.Forget()
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
	// runsc keeps its state in the bundle, and its kernel does not take its file server and its tasks along.
	return ocidriver.End(ctx, id, init, func() bool { return exists(filepath.Join(d.bundle(id), runscName)) })
}

// initFor takes hold of the first process, nil if there is none to be found. done gives up a hold that is not the sandbox's own.
func (d *Driver) initFor(id string) (init *ocidriver.Process, done func(), err error) {
	if s := d.live.Get(id); s != nil {
		return s.Init, func() {}, nil
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
	return init, init.Close, nil
}

func (d *Driver) removeCell(ctx context.Context, id string) error {
	if s := d.live.Get(id); s != nil {
		return s.RunDir.Remove(ctx)
	}
	return rundir.Remove(ctx, d.cellOptions(id, runtime.Limits{}.WithDefaults()))
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
	if err := livemount.Sweep(ctx, state, stateTime); err != nil {
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
	if dirs, err := ocidriver.CgroupsOf(id); err == nil {
		left = append(left, dirs...)
	}
	for _, path := range []string{filepath.Join(d.cells, id), filepath.Join(d.runtime.Root, id), d.bundle(id)} {
		if exists(path) {
			left = append(left, path)
		}
	}
	return left
}
