package containerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
)

// stateTime bounds the unmounting below a directory of the daemon.
const stateTime = time.Second

// tearDown removes one part after the other. Each step succeeds if there is nothing to do. The
// record goes last.
func (d *Driver) tearDown(ctx context.Context, id string) error {
	// Kill what can be killed without the daemon, whether it answers or not.
	if s := d.Get(id); s != nil {
		if err := s.Init.Kill(); err != nil {
			return fmt.Errorf("kill process %d: %w", s.Init.Pid, err)
		}
	}
	recorded, err := d.recorded(ctx, id)
	if err != nil {
		return err
	}
	if !recorded && d.Get(id) == nil && len(d.leftOf(id)) == 0 {
		return nil
	}
	// The end of gVisor's kernel does not end its file server and its tasks.
	several := func() bool { return ocidriver.Exists(d.runscState(id)) }
	if err := d.End(ctx, id, func() (*ocidriver.Process, error) { return d.initFor(ctx, id) }, several); err != nil {
		return err
	}
	failpoint.Hit("containerd.destroy.killed")
	if err := d.deleteTask(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("containerd.destroy.task")
	if err := d.sweep(ctx, id); err != nil {
		return err
	}
	if err := d.RemoveRunDir(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("containerd.destroy.cell")
	if err := d.returnUser(ctx, id); err != nil {
		return err
	}
	if err := d.api.ContainerService().Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete record: %w", err)
	}
	return nil
}

// recorded reports whether the daemon has the container.
func (d *Driver) recorded(ctx context.Context, id string) (bool, error) {
	_, err := d.api.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for its record: %w", err)
	}
	return true, nil
}

// initFor returns the first process, or nil if none can be found.
func (d *Driver) initFor(ctx context.Context, id string) (*ocidriver.Process, error) {
	init, err := d.initOf(ctx, id)
	if ctx.Err() != nil || errdefs.IsUnavailable(err) && !d.answers(ctx) {
		return nil, err
	}
	if err != nil {
		// There is none, or the daemon does not know it: kill by cgroup.
		d.Log.Debug("no first process to kill", "sandbox", id, "error", err)
		return nil, nil
	}
	return init, nil
}

// sweep removes what a killed daemon, shim or runtime left.
func (d *Driver) sweep(ctx context.Context, id string) error {
	if err := ocidriver.RemoveCgroups(ctx, id); err != nil {
		return err
	}
	if err := d.endShims(ctx, id); err != nil {
		return err
	}
	for _, root := range d.bundleMounts(id) {
		if err := livemount.Sweep(ctx, root, stateTime); err != nil {
			return fmt.Errorf("root: %w", err)
		}
		_ = os.RemoveAll(filepath.Dir(root)) // the daemon's directory; it removes it too when it starts
	}
	for _, state := range []string{d.runtimeState(id), d.runscState(id)} {
		if err := ocidriver.RemoveState(ctx, state); err != nil {
			return err
		}
	}
	return nil
}

// leftOf names what is left of a sandbox on the host, for error messages.
func (d *Driver) leftOf(id string) []string {
	var left []string
	for _, pid := range d.shimsOf(id) {
		left = append(left, fmt.Sprintf("shim %d", pid))
	}
	left = append(left, d.bundleMounts(id)...)
	return append(left, d.Left(id, d.runtimeState(id), d.runscState(id), d.userDir(id))...)
}
