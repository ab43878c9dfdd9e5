package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"time"
)

// rmdirPatience bounds the wait for a cgroup whose last process just died.
const rmdirPatience = 2 * time.Second

// Remove kills every process in the commands' cgroups and removes these, their children and a stand-in above them. The sandbox's own cgroup is the
// runtime's to remove. Idempotent: what is gone already is a success, so it may be called before or after the container's removal. The error when
// ctx ends says how many processes were left.
func (d *Delegated) Remove(ctx context.Context) error {
	var p prey
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
			return fmt.Errorf("remove cgroup %s: %w", d.Dirs[name], bare(err))
		}
		p.all, tops = append(p.all, top), append(tops, top)
		p.aim(name, top)
		below, err := top.children()
		if err != nil && !gone(err) {
			return fmt.Errorf("remove cgroup %s: %w", top.name, bare(err))
		}
		for _, child := range below {
			if c, err := top.open(child); err == nil {
				p.all = append(p.all, c)
			} else if !gone(err) {
				return err
			}
		}
	}
	if err := p.kill(ctx); err != nil {
		return err
	}
	var errs []error
	for _, top := range tops {
		errs = append(errs, empty(top))
	}
	for _, dir := range d.Dirs {
		errs = append(errs, d.rmdir(dir))
	}
	return errors.Join(errs...)
}

// aim notes what a directory can do for the kill.
func (p *prey) aim(name string, d dir) {
	if name == Unified && d.has("cgroup.kill") {
		p.tree = &d
	}
	if (name == Pids || name == Unified) && d.has("pids.max") {
		p.pids = &d
	}
}

// empty removes the execs' groups.
func empty(top dir) error {
	below, err := top.children()
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", top.name, bare(err))
	}
	var errs []error
	for _, child := range below {
		errs = append(errs, top.remove(child, rmdirPatience))
	}
	return errors.Join(errs...)
}

func (d *Delegated) rmdir(dir string) error {
	parent, err := openDir(path.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, bare(err))
	}
	defer parent.Close()
	if err := parent.remove(path.Base(dir), rmdirPatience); err != nil {
		return err
	}
	if !isStandIn(path.Dir(dir)) {
		return nil
	}
	above, err := openDir(path.Dir(path.Dir(dir)))
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", path.Dir(dir), bare(err))
	}
	defer above.Close()
	return above.remove(path.Base(path.Dir(dir)), rmdirPatience)
}

// Sweep removes every stand-in whose sandbox is dead, with whatever is alive in it, and returns their directories. It is for the start of a host
// process: one that crashed between a sandbox's end and Remove has left no other trace of them. Those of other pid namespaces are left alone, since
// from here nobody can tell whether their sandboxes live.
func Sweep(ctx context.Context) ([]string, error) {
	h, err := Detect()
	if err != nil {
		return nil, err
	}
	mine, err := pidSpace("self")
	if err != nil {
		return nil, err
	}
	var swept []string
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(h.mounts)) {
		point := h.mounts[name].point
		entries, err := os.ReadDir(point)
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep cgroups: %w", err))
			continue
		}
		for _, e := range entries {
			p, ok := parseStandIn(e.Name())
			if !ok || p.space != mine || p.alive() {
				continue
			}
			dir := path.Join(point, e.Name())
			d := &Delegated{Dirs: map[string]string{name: path.Join(dir, commands)}}
			if err := d.Remove(ctx); err != nil {
				errs = append(errs, err)
				continue
			}
			swept = append(swept, dir)
		}
	}
	return swept, errors.Join(errs...)
}

// alive errs on the side of alive: only a process that is surely gone, or whose pid is surely another's, is dead.
func (p process) alive() bool {
	now, err := lookUp(p.pid)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return now.start == p.start
}
