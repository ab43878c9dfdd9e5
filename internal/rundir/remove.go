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

// unmountGrace is how long a dead sandbox's mounts may still be busy before they are taken away lazily: its processes
// are gone, but the kernel may be a little behind.
const unmountGrace = 3 * time.Second

// Remove removes the cell of a sandbox that is dead, from whatever state: it stops listening, removes the cgroups, unmounts
// everything and removes the folder. It must not be called while the container lives, for then a process inside could go on
// writing to a workspace that counts as released. Idempotent; after an error it may be called again.
func (c *Dir) Remove(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("remove cell %s: %w", c.id, err)
	}
	defer c.unlock()
	var errs []error
	if c.ln != nil {
		errs = append(errs, c.ln.Close())
	}
	// The cgroups first: whatever is alive in them would keep the mounts busy.
	groups := c.removeCgroups(ctx)
	mounts := livemount.Sweep(ctx, c.root, unmountGrace)
	if errs = append(errs, groups, mounts); groups == nil && mounts == nil {
		c.workspaces = 0
		errs = append(errs, c.removeFiles())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove cell %s: %w", c.id, err)
	}
	return nil
}

// removeFiles removes what this package makes, by name. Anything else that lies there, a mount that came back or a file of
// somebody's, is an error and stays.
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

// Remove removes a cell that nobody holds: one of [Leftovers] that cannot be adopted, or whose sandbox is dead. Of the options
// it reads Dir, ID and Log.
func Remove(ctx context.Context, o Options) error {
	c, err := newDir(o)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cell %s: %w", o.ID, err)
	}
	return c.Remove(ctx)
}
