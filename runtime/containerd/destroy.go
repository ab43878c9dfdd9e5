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
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// stateTime bounds the unmounting below a directory of the daemon or of a runtime.
const stateTime = time.Second

// Remove destroys a sandbox from any state: held or not, half made, half removed, its first process
// dead or never started, its shim gone.
func (d *Driver) Remove(ctx context.Context, id string) error { return d.removal.Remove(ctx, id) }

// tearDown removes one part after the other. Each step succeeds if there is nothing to do. The
// record goes last.
func (d *Driver) tearDown(ctx context.Context, id string) error {
	// Kill what can be killed without the daemon, whether it answers or not.
	if s := d.live.Get(id); s != nil {
		if err := s.Init.Kill(); err != nil {
			return fmt.Errorf("kill process %d: %w", s.Init.Pid, err)
		}
	}
	recorded, err := d.recorded(ctx, id)
	if err != nil {
		return err
	}
	if !recorded && d.live.Get(id) == nil && len(d.leftOf(id)) == 0 {
		return nil
	}
	if err := d.end(ctx, id); err != nil {
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
	if err := d.removeCell(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("containerd.destroy.cell")
	if err := d.api.ContainerService().Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete record: %w", err)
	}
	if s := d.live.Get(id); s != nil {
		s.Forget()
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

// end kills everything inside and waits until it is dead.
func (d *Driver) end(ctx context.Context, id string) error {
	init, done, err := d.initFor(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	// The end of gVisor's kernel does not end its file server and its tasks.
	return ocidriver.End(ctx, id, init, func() bool { return exists(d.runscState(id)) })
}

// initFor returns a handle of the first process, or nil if none can be found. done closes a handle
// that does not belong to the sandbox.
func (d *Driver) initFor(ctx context.Context, id string) (init *ocidriver.Process, done func(), err error) {
	if s := d.live.Get(id); s != nil {
		return s.Init, func() {}, nil
	}
	init, err = d.initOf(ctx, id)
	if ctx.Err() != nil || errdefs.IsUnavailable(err) && !d.answers(ctx) {
		return nil, nil, err
	}
	if err != nil {
		// There is none, or the daemon does not know it: kill by cgroup.
		d.log.Debug("no first process to kill", "sandbox", id, "error", err)
		return nil, func() {}, nil
	}
	return init, init.Close, nil
}

func (d *Driver) removeCell(ctx context.Context, id string) error {
	if s := d.live.Get(id); s != nil {
		return s.RunDir.Remove(ctx)
	}
	return rundir.Remove(ctx, d.cellOptions(id, runtime.Limits{}.WithDefaults()))
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
		if !exists(state) {
			continue
		}
		// A runtime that was killed while starting leaves the mount of its own program there.
		if err := livemount.Sweep(ctx, state, stateTime); err != nil {
			return fmt.Errorf("state of the runtime: %w", err)
		}
		if err := os.RemoveAll(state); err != nil {
			return fmt.Errorf("state of the runtime: %w", err)
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
	if dirs, err := ocidriver.CgroupsOf(id); err == nil {
		left = append(left, dirs...)
	}
	left = append(left, d.bundleMounts(id)...)
	for _, path := range []string{filepath.Join(d.cells, id), d.runtimeState(id), d.runscState(id)} {
		if exists(path) {
			left = append(left, path)
		}
	}
	return left
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
