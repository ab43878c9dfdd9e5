package rundir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// unmountGrace is how long the mounts of a dead sandbox may stay busy before they are unmounted
// lazily: its processes are gone, but the kernel may lag behind.
const unmountGrace = 3 * time.Second

// Remove removes the run directory of a dead sandbox, from any state: it stops listening, removes
// the cgroups, unmounts everything and removes the directory. Do not call it while the container
// runs: a process inside could go on writing to a workspace that counts as released. It is
// idempotent, and may be called again after an error.
func (c *Dir) Remove(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("remove run directory %s: %w", c.id, err)
	}
	defer c.unlock()
	errs := []error{c.user.Close()}
	if c.ln != nil {
		errs = append(errs, c.ln.Close())
	}
	// The cgroups first: live processes in them would keep the mounts busy.
	groups := c.removeCgroups(ctx)
	mounts := livemount.Sweep(ctx, c.root, unmountGrace)
	if errs = append(errs, groups, mounts); groups == nil && mounts == nil {
		c.workspaces = 0
		errs = append(errs, c.removeFiles())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove run directory %s: %w", c.id, err)
	}
	return nil
}

// removeFiles removes what this package makes, by name. Anything else in the directory, such as a
// mount that came back, is an error and stays.
func (c *Dir) removeFiles() error {
	for _, file := range []string{c.recordPath() + ".new", c.recordPath()} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range []string{c.RunDir(), c.WorkspaceDir(), c.root} {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	return nil
}

// Remove removes a run directory that no process holds: one of [Leftovers] that cannot be adopted,
// or whose sandbox is dead. It reads Dir, ID and Log of the options.
func Remove(ctx context.Context, o Options) error {
	c, err := newDir(o)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove run directory %s: %w", o.ID, err)
	}
	return c.Remove(ctx)
}
