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
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

func (c *Dir) cgroupDir(name string) string {
	return filepath.Join(c.RunDir(), filepath.Base(wire.CgroupDir), name)
}

// recordPath is the file that names the delegated cgroups, for a removal by another process.
func (c *Dir) recordPath() string { return filepath.Join(c.root, "cgroup.json") }

// makeCgroupDirs creates the directories that cgroups are bound on: all that this host's mode has.
// On a host without cgroups there is nothing to bind, and Attach reports it.
func (c *Dir) makeCgroupDirs() error {
	names := cgroup.Names()
	if h, err := cgroup.Detect(); err != nil {
		c.log.Debug("cgroups not available; commands run without", "error", err)
		names = nil
	} else if h.Mode == cgroup.ModeV2 {
		names = []string{cgroup.Unified}
	}
	for _, name := range append([]string{""}, names...) {
		if err := os.Mkdir(c.cgroupDir(name), 0o700); err != nil {
			return err
		}
		if err := os.Lchown(c.cgroupDir(name), c.user.Root(), c.user.Root()); err != nil {
			return err
		}
	}
	return nil
}

// bindCgroups delegates the cgroups and binds them. It completes what an earlier call left undone.
func (c *Dir) bindCgroups(initPid int, share cgroup.Share) error {
	d, err := cgroup.Delegate(initPid, share)
	if err != nil {
		return err
	}
	if err := c.record(d); err != nil {
		return err
	}
	if c.user != nil {
		if err := d.GiveTo(c.user.Root()); err != nil {
			return err
		}
	}
	c.cgroups.Store(d)
	check := c.mayBeBound
	c.mayBeBound = true
	for _, name := range cgroup.Names() {
		source, ok := d.Dirs[name]
		if !ok {
			continue
		}
		if check {
			bound, err := livemount.IsMount(c.cgroupDir(name))
			if err != nil {
				return err
			}
			if bound {
				continue
			}
		}
		if err := livemount.Bind(c.cgroupDir(name), source, false); err != nil {
			return err
		}
	}
	return nil
}

// Figures returns what the sandbox uses now. errors.ErrUnsupported: before Attach, and if it has no
// cgroups that we can read (AttachAs, or a host without cgroups). fs.ErrNotExist: it is gone. It
// waits for no other call.
func (c *Dir) Figures() (cgroup.Figures, error) {
	d := c.cgroups.Load()
	if d == nil {
		return cgroup.Figures{}, fmt.Errorf("figures of sandbox %s: it has no cgroups: %w", c.id, errors.ErrUnsupported)
	}
	f, err := d.Figures()
	if err != nil {
		return cgroup.Figures{}, fmt.Errorf("figures of sandbox %s: %w", c.id, err)
	}
	return f, nil
}

// record writes which cgroups are ours, atomically. The file need not survive a crash of the
// machine, since the cgroups do not either.
func (c *Dir) record(d *cgroup.Delegated) error {
	b, err := json.Marshal(d.Dirs)
	if err != nil {
		return fmt.Errorf("record cgroups: %w", err)
	}
	if err := hostfile.Replace(c.recordPath(), b, 0o600); err != nil {
		return fmt.Errorf("record cgroups: %w", err)
	}
	return nil
}

// removeCgroups kills what is left in the sandbox's cgroups and removes them.
func (c *Dir) removeCgroups(ctx context.Context) error {
	b, err := os.ReadFile(c.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read record of cgroups: %w", err)
	}
	var dirs map[string]string
	if err := json.Unmarshal(b, &dirs); err != nil {
		// Only a crash of the machine damages the record, and then the cgroups are gone too.
		c.log.Warn("failed to read the cgroup record; ignoring it", "error", err)
		return nil
	}
	for name := range dirs {
		if !slices.Contains(cgroup.Names(), name) {
			delete(dirs, name)
		}
	}
	return (&cgroup.Delegated{Dirs: dirs}).Remove(ctx)
}
