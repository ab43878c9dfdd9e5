package cgroup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Group holds the processes of one exec in every hierarchy in use. Safe for concurrent use. Each must be removed with [Group.Remove], which gives its
// directories and descriptors (one per hierarchy) back.
type Group struct {
	name   string
	tree   *Tree
	made   int // how many of the tree's hierarchies have the directory
	dirs   []member
	split  atomic.Bool  // an Add failed: somebody may be in some of dirs only
	denied atomic.Int64 // PidsDenied when Kill closed the group for forks, -1 before
}

// Name is the group's name in the tree.
func (g *Group) Name() string { return g.name }

// Add moves a process with all its threads into the group; children it forks from then on are in it too, so it should not have begun its work. pid is
// in the caller's pid namespace. After an error the process may be in some hierarchies: kill it.
//
// The first move after a pause waits for a grace period of the kernel, 5-15 ms, unless [Host].FastMoves; the moves right after it take 20 µs.
func (g *Group) Add(pid int) error {
	if pid <= 1 { // 0 would move the guest itself
		return fmt.Errorf("add process %d to group %s: not a command's pid", pid, g.name)
	}
	for _, d := range g.dirs {
		if err := d.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
			g.split.Store(true)
			return fmt.Errorf("add process %d to group %s: %w", pid, g.name, err)
		}
	}
	return nil
}

// Signal sends a signal to every process in the group, each once. One that is forked meanwhile may be missed, except with SIGKILL where the kernel has
// cgroup.kill; to be sure of an end use [Group.Kill]. An empty group is no error.
func (g *Group) Signal(sig syscall.Signal) error {
	p := g.prey()
	if sig == syscall.SIGKILL && p.tree != nil {
		_, err := p.strikeTree()
		return err
	}
	if _, err := p.hunt(sig); err != nil {
		return fmt.Errorf("signal group %s: %w", g.name, err)
	}
	return nil
}

// Kill ends every process in the group, stopped, traced or forking ones included, and returns nil only when none is alive; zombies do not count (see the
// package comment). It ends with ctx at the latest, and the error says what was left: a process in an uninterruptible wait, say. The group cannot be used for
// another process afterwards. Killing an empty group is cheap and no error.
func (g *Group) Kill(ctx context.Context) error {
	p := g.prey()
	if p.tree == nil && p.pids != nil {
		// The kill forbids forks, which would count as denied.
		g.denied.CompareAndSwap(-1, p.pids.keyed("pids.events")["max"])
	}
	if err := p.kill(ctx); err != nil {
		return fmt.Errorf("group %s: %w", g.name, err)
	}
	return nil
}

func (g *Group) prey() prey {
	// A command cannot move itself: what it forks is where it is, in every hierarchy.
	p := prey{whole: !g.split.Load()}
	for _, d := range g.dirs {
		p.all = append(p.all, d.dir)
		p.aim(d.kind, d.dir)
	}
	return p
}

// Alive counts the processes in the group. It is a snapshot.
func (g *Group) Alive() (int, error) {
	found, hidden, err := g.prey().members()
	if err != nil {
		return 0, fmt.Errorf("group %s: %w", g.name, err)
	}
	return len(found) + hidden, nil
}

// Usage returns the group's counters: also when its processes are dead, not when it is removed.
func (g *Group) Usage() (Usage, error) {
	u, err := usage(g.dirs)
	if err != nil {
		return Usage{}, fmt.Errorf("group %s: %w", g.name, err)
	}
	if n := g.denied.Load(); n >= 0 {
		u.PidsDenied = n
	}
	return u, nil
}

// Remove removes the group from every hierarchy. It waits up to 2 s for the kernel to let go of processes that just died; with one alive it fails after that and
// may be called again, after a Kill. Idempotent.
func (g *Group) Remove() error { return g.remove(rmdirPatience) }

func (g *Group) remove(patience time.Duration) error {
	var errs []error
	for _, d := range g.tree.dirs[:g.made] {
		errs = append(errs, d.remove(g.name, patience))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("group %s: %w", g.name, err)
	}
	for _, d := range g.dirs {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// undo takes back a Make that failed half-way; nobody was in the group.
func (g *Group) undo() { _ = g.remove(0) }
