package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"time"
)

// removeTimeout bounds the wait for a cgroup whose last process just died.
const removeTimeout = 2 * time.Second

// Remove kills every process in the commands' cgroups and removes these cgroups, their children and
// a stand-in above them. The runtime removes the sandbox's own cgroup. Remove is idempotent and may
// be called before or after the container's removal. If ctx ends, the error has the number of
// remaining processes.
func (d *Delegated) Remove(ctx context.Context) error {
	var p killSet
	var tops []dir
	defer func() {
		for _, x := range p.all {
			x.Close()
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(d.Dirs)) {
		top, err := openDir(d.Dirs[name])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w", d.Dirs[name], unwrapPath(err))
		}
		p.all, tops = append(p.all, top), append(tops, top)
		p.addTarget(name, top)
		below, err := top.children()
		if err != nil && !isGone(err) {
			return fmt.Errorf("remove cgroup %s: %w", top.name, unwrapPath(err))
		}
		for _, child := range below {
			if c, err := top.open(child); err == nil {
				p.all = append(p.all, c)
			} else if !isGone(err) {
				return err
			}
		}
	}
	if err := p.kill(ctx); err != nil {
		return err
	}
	var errs []error
	for _, top := range tops {
		errs = append(errs, removeChildren(top))
	}
	for _, dir := range d.Dirs {
		errs = append(errs, d.rmdir(dir))
	}
	return errors.Join(errs...)
}

// addTarget records what a directory can do for the kill.
func (p *killSet) addTarget(name string, d dir) {
	if name == Unified && d.has("cgroup.kill") {
		p.tree = &d
	}
	if (name == Pids || name == Unified) && d.has("pids.max") {
		p.pids = &d
	}
}

// removeChildren removes the commands' groups.
func removeChildren(top dir) error {
	below, err := top.children()
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", top.name, unwrapPath(err))
	}
	var errs []error
	for _, child := range below {
		errs = append(errs, top.remove(child, removeTimeout))
	}
	return errors.Join(errs...)
}

func (d *Delegated) rmdir(dir string) error {
	parent, err := openDir(path.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, unwrapPath(err))
	}
	defer parent.Close()
	if err := parent.remove(path.Base(dir), removeTimeout); err != nil {
		return err
	}
	if !isStandIn(path.Dir(dir)) {
		return nil
	}
	above, err := openDir(path.Dir(path.Dir(dir)))
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", path.Dir(dir), unwrapPath(err))
	}
	defer above.Close()
	return above.remove(path.Base(path.Dir(dir)), removeTimeout)
}
