package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
)

// tearDown removes one part after the other. Each step succeeds if there is nothing to do.
func (d *Driver) tearDown(ctx context.Context, id string) error {
	if !ocidriver.Exists(d.bundle(id)) {
		return nil // the bundle goes last
	}
	// runsc keeps its state in the bundle. The end of its kernel does not end its file server and
	// its tasks.
	several := func() bool { return ocidriver.Exists(filepath.Join(d.bundle(id), runscName)) }
	if err := d.End(ctx, id, func() (*ocidriver.Process, error) { return d.initFor(id) }, several); err != nil {
		return err
	}
	failpoint.Hit("oci.destroy.killed")
	if err := d.RemoveRunDir(ctx, id); err != nil {
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
	if err := ocidriver.ReturnIDs(d.ids, d.bundle(id), unmountRoot); err != nil {
		return err
	}
	failpoint.Hit("oci.destroy.unmounted")
	return os.RemoveAll(d.bundle(id))
}

// initFor returns the first process, or nil if none can be found.
func (d *Driver) initFor(id string) (*ocidriver.Process, error) {
	rec, err := d.read(id)
	if err != nil {
		return nil, nil //nolint:nilerr // half written or not ours: kill by cgroup instead
	}
	return d.initOf(rec)
}

// delete makes the runtime delete the container. The runtime does not know a container that it
// never finished; we remove its directory.
func (d *Driver) delete(ctx context.Context, id string) error {
	state := filepath.Join(d.runtime.Root, id)
	if !ocidriver.Exists(state) {
		return nil
	}
	if err := d.runtime.Delete(ctx, id, nil); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("delete container: %w", context.Cause(ctx))
		}
		d.Log.Debug("the runtime did not delete a container, its state is removed", "sandbox", id, "error", err)
	}
	return ocidriver.RemoveState(ctx, state)
}

// leftOf names what is left of a sandbox, for error messages.
func (d *Driver) leftOf(id string) []string {
	var left []string
	if rec, err := d.read(id); err == nil && d.running(rec) {
		left = append(left, fmt.Sprintf("process %d", rec.Pid))
	}
	return append(left, d.Left(id, filepath.Join(d.runtime.Root, id), d.bundle(id))...)
}
