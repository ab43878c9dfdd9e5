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

// Group holds the processes of one command in every hierarchy in use. It is safe for concurrent
// use. Each group must be removed with [Group.Remove], which frees its directories and descriptors
// (one per hierarchy).
type Group struct {
	name      string
	tree      *Tree
	madeCount int // number of the tree's hierarchies that have the directory
	dirs      []hierarchyDir
	partial   atomic.Bool  // an Add failed: a process may be in some of dirs only
	denied    atomic.Int64 // PidsDenied when Kill disabled forks; -1 before
}

// Name returns the group's name in the tree.
func (g *Group) Name() string { return g.name }

// Add moves a process with all its threads into the group. Children that it forks later are in the
// group too, so call it before the process starts its work. pid is in the caller's pid namespace.
// After an error the process may be in some hierarchies: kill it.
//
// The first move after a pause waits for a grace period of the kernel, 5 to 15 ms, unless
// [Host].FastMoves. Moves right after it take 20 µs.
func (g *Group) Add(pid int) error {
	if pid <= 1 { // 0 would move the guest itself
		return fmt.Errorf("add process %d to group %s: not a command's pid", pid, g.name)
	}
	for _, d := range g.dirs {
		if err := d.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
			g.partial.Store(true)
			return fmt.Errorf("add process %d to group %s: %w", pid, g.name, err)
		}
	}
	return nil
}

// Signal sends a signal to every process in the group once. It may miss a process that is forked
// during the call, except for SIGKILL where the kernel has cgroup.kill; use [Group.Kill] to be
// sure. An empty group is not an error.
func (g *Group) Signal(sig syscall.Signal) error {
	p := g.killSet()
	if sig == syscall.SIGKILL && p.tree != nil {
		_, err := p.killTree()
		return err
	}
	if _, err := p.signalAll(sig); err != nil {
		return fmt.Errorf("signal group %s: %w", g.name, err)
	}
	return nil
}

// Kill kills every process in the group, including stopped, traced and forking ones. It returns nil
// only if none is alive; zombies do not count, see the package comment. When ctx ends it returns an
// error with the number of remaining processes, for example in an uninterruptible wait. The group
// cannot be used for another process afterwards. Killing an empty group is cheap and not an error.
func (g *Group) Kill(ctx context.Context) error {
	p := g.killSet()
	if p.tree == nil && p.pids != nil {
		// The kill disables forks, which would then count as denied.
		g.denied.CompareAndSwap(-1, p.pids.readKeyed("pids.events")["max"])
	}
	if err := p.kill(ctx); err != nil {
		return fmt.Errorf("group %s: %w", g.name, err)
	}
	return nil
}

func (g *Group) killSet() killSet {
	// A command cannot move itself: its children are in the same groups, in every hierarchy.
	p := killSet{treeComplete: !g.partial.Load()}
	for _, d := range g.dirs {
		p.all = append(p.all, d.dir)
		p.addTarget(d.kind, d.dir)
	}
	return p
}

// Alive returns the current number of processes in the group.
func (g *Group) Alive() (int, error) {
	found, hidden, err := g.killSet().members()
	if err != nil {
		return 0, fmt.Errorf("group %s: %w", g.name, err)
	}
	return len(found) + hidden, nil
}

// Usage returns the group's counters. It works until the group is removed, even if its processes
// are dead.
func (g *Group) Usage() (Usage, error) {
	u, err := readUsage(g.dirs)
	if err != nil {
		return Usage{}, fmt.Errorf("group %s: %w", g.name, err)
	}
	if n := g.denied.Load(); n >= 0 {
		u.PidsDenied = n
	}
	return u, nil
}

// Remove removes the group from every hierarchy. It waits up to 2 s for the kernel to release
// processes that just died. If one is alive it fails, and may be called again after a Kill. It is
// idempotent.
func (g *Group) Remove() error { return g.remove(removeTimeout) }

func (g *Group) remove(patience time.Duration) error {
	var errs []error
	for _, d := range g.tree.dirs[:g.madeCount] {
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

// rollBack removes a group whose Make failed. No process was in it.
func (g *Group) rollBack() { _ = g.remove(0) }
