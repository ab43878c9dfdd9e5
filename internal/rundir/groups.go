package rundir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

func (c *Cell) groupDir(name string) string {
	return filepath.Join(c.RunDir(), filepath.Base(wire.CgroupDir), name)
}

// recordPath is the file that names the delegated cgroups, for a removal by a process that did not delegate them.
func (c *Cell) recordPath() string { return filepath.Join(c.root, "cgroup.json") }

// makeGroupDirs makes the folders that cgroups are bound on: all that this host's mode has. On a host without any there is
// nothing to bind, and Attach says so.
func (c *Cell) makeGroupDirs() error {
	names := cgroup.Names()
	if h, err := cgroup.Detect(); err != nil {
		c.log.Debug("no cgroups for commands", "error", err)
		names = nil
	} else if h.Mode == cgroup.ModeV2 {
		names = []string{cgroup.Unified}
	}
	if err := os.Mkdir(c.groupDir(""), 0o700); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Mkdir(c.groupDir(name), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// bindGroups delegates the cgroups and binds them. It completes what an earlier one left undone.
func (c *Cell) bindGroups(initPid int, share cgroup.Share) error {
	d, err := cgroup.Delegate(initPid, share)
	if err != nil {
		return err
	}
	if err := c.record(d); err != nil {
		return err
	}
	c.groups.Store(d)
	check := c.checkGroups
	c.checkGroups = true
	for _, name := range cgroup.Names() {
		source, ok := d.Dirs[name]
		if !ok {
			continue
		}
		if check {
			bound, err := livemount.IsMount(c.groupDir(name))
			if err != nil {
				return err
			}
			if bound {
				continue
			}
		}
		if err := livemount.Bind(c.groupDir(name), source, false); err != nil {
			return err
		}
	}
	return nil
}

// Figures are what the sandbox uses now. errors.ErrUnsupported before Attach and where it has no cgroups that are ours to read (AttachAs, and a host
// without any); fs.ErrNotExist once it is gone. It waits for no other call.
func (c *Cell) Figures() (cgroup.Figures, error) {
	d := c.groups.Load()
	if d == nil {
		return cgroup.Figures{}, fmt.Errorf("figures of cell %s: it has no cgroups of its own: %w", c.id, errors.ErrUnsupported)
	}
	f, err := d.Figures()
	if err != nil {
		return cgroup.Figures{}, fmt.Errorf("figures of cell %s: %w", c.id, err)
	}
	return f, nil
}

// record writes which cgroups are ours, whole or not at all. It need not outlive a crash of the machine: neither do they.
func (c *Cell) record(d *cgroup.Delegated) error {
	b, err := json.Marshal(d.Dirs)
	if err != nil {
		return fmt.Errorf("record cgroups: %w", err)
	}
	fresh := c.recordPath() + ".new"
	err = os.WriteFile(fresh, b, 0o600)
	if err == nil {
		err = os.Rename(fresh, c.recordPath())
	}
	if err != nil {
		return fmt.Errorf("record cgroups: %w", err)
	}
	return nil
}

// removeGroups kills what is left in the sandbox's cgroups and removes them.
func (c *Cell) removeGroups(ctx context.Context) error {
	b, err := os.ReadFile(c.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read record of cgroups: %w", err)
	}
	var dirs map[string]string
	if err := json.Unmarshal(b, &dirs); err != nil {
		// Only a crash of the machine leaves that, and then the cgroups are gone too.
		c.log.Warn("record of cgroups is unreadable", "error", err)
		return nil
	}
	for name := range dirs {
		if !slices.Contains(cgroup.Names(), name) {
			delete(dirs, name)
		}
	}
	return (&cgroup.Delegated{Dirs: dirs}).Remove(ctx)
}
