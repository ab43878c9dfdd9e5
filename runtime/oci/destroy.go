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

// stateTime bounds the unmounting below a runtime's state directory.
const stateTime = time.Second

// Remove destroys a sandbox from any state: held or not, half made, half removed, its first process
// dead or never started.
func (d *Driver) Remove(ctx context.Context, id string) error { return d.removal.Remove(ctx, id) }

// tearDown removes one part after the other. Each step succeeds if there is nothing to do.
func (d *Driver) tearDown(ctx context.Context, id string) error {
	if !exists(d.bundle(id)) {
		return nil // the bundle goes last
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
	// runsc keeps its state in the bundle. The end of its kernel does not end its file server and
	// its tasks.
	return ocidriver.End(ctx, id, init, func() bool { return exists(filepath.Join(d.bundle(id), runscName)) })
}

// initFor returns a handle of the first process, or nil if none can be found. done closes a handle
// that does not belong to the sandbox.
func (d *Driver) initFor(id string) (init *ocidriver.Process, done func(), err error) {
	if s := d.live.Get(id); s != nil {
		return s.Init, func() {}, nil
	}
	rec, err := d.read(id)
	if err != nil {
		return nil, func() {}, nil //nolint:nilerr // half written or not ours: kill by cgroup instead
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

// delete makes the runtime delete the container. The runtime does not know a container that it
// never finished; we remove its directory.
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
	// A runtime that was killed while starting leaves the mount of its own program there.
	if err := livemount.Sweep(ctx, state, stateTime); err != nil {
		return fmt.Errorf("delete container: %w", err)
	}
	if err := os.RemoveAll(state); err != nil {
		return fmt.Errorf("delete container: %w", err)
	}
	return nil
}

// leftOf names what is left of a sandbox, for error messages.
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
