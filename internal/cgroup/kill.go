package cgroup

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prey is a set of processes to end: those in any of the cgroups.
type prey struct {
	tree *dir  // a cgroup2 directory with cgroup.kill, or nil; it and all below it is killed at once, forks in flight included
	pids *dir  // a directory with pids.max, or nil
	all  []dir // every directory, on every hierarchy
	// whole: whoever is in any of them is in tree too, so that an empty tree says it all.
	whole bool
}

// kill returns when nothing is alive in the cgroups, or ctx has ended. Without cgroup.kill it forbids the group to fork by setting its pids cap to
// zero: then what a scan finds is all there is, and each round leaves fewer. That needs no freezer, which would have to be thawed again, and SIGKILL
// reaches stopped, traced and (v2) frozen processes alike. With neither it scans until two scans in a row find nobody.
func (p prey) kill(ctx context.Context) error {
	need := 1
	if p.tree == nil {
		need = 2
		if p.pids != nil {
			if err := p.pids.write("pids.max", "0"); err != nil && !gone(err) {
				return err
			}
		}
	}
	calm := 0
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		alive, err := p.strike(pause >= time.Millisecond)
		if err == nil && alive == 0 {
			if calm++; calm >= need {
				return nil
			}
			continue
		}
		calm = 0
		if rest(ctx, pause) {
			continue
		}
		if err != nil {
			return fmt.Errorf("kill cgroup: %w: %w", context.Cause(ctx), err)
		}
		return fmt.Errorf("kill cgroup: at least %d processes still alive: %w", alive, context.Cause(ctx))
	}
}

// rest waits, and is false when ctx has ended. The runtime's timers round a short wait up to a millisecond, which would be most of a kill's time; so a short one
// is the kernel's.
func rest(ctx context.Context, pause time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if pause < time.Millisecond {
		ts := unix.NsecToTimespec(int64(pause))
		_ = unix.Nanosleep(&ts, nil) // an interrupted one is a shorter one
		return true
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// strike kills whatever is alive and returns a lower bound of how many that were. Thorough does not rely on cgroup.kill alone: the kernel sends that one's
// signal to the first thread of each process, and one whose first thread has ended while others go on never gets it.
func (p prey) strike(thorough bool) (int, error) {
	alive := 0
	if p.tree != nil {
		var err error
		if alive, err = p.strikeTree(); err != nil || alive > 0 && !thorough || alive == 0 && p.whole {
			return alive, err
		}
	}
	// Whoever is left was added to some hierarchies only, or is deaf to cgroup.kill.
	found, err := p.hunt(syscall.SIGKILL)
	return max(alive, found), err
}

func (p prey) strikeTree() (int, error) {
	events, err := p.tree.read("cgroup.events")
	if gone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if parseKeyed(events)["populated"] == 0 {
		return 0, nil
	}
	if err := p.tree.write("cgroup.kill", "1"); err != nil && !gone(err) {
		return 1, err
	}
	return 1, nil
}

// hunt sends a signal to every process in the cgroups, each once, and returns how many it found. A process forked during the scan may be missed.
func (p prey) hunt(sig syscall.Signal) (int, error) {
	found, hidden, err := p.members()
	if err != nil {
		return 0, err
	}
	var errs []error
	todo := make([]int, 0, len(found))
	for pid := range found {
		todo = append(todo, pid)
	}
	const batch = 128 // bounds the descriptors held at once
	for len(todo) > 0 {
		n := min(batch, len(todo))
		errs = append(errs, p.send(todo[:n], sig))
		todo = todo[n:]
	}
	return len(found) + hidden, errors.Join(errs...)
}

// members is the union of all lists. A process that only some hierarchies know counts once.
func (p prey) members() (found map[int]struct{}, hidden int, err error) {
	found = map[int]struct{}{}
	for _, d := range p.all {
		pids, h, err := d.procs()
		if err != nil {
			return nil, 0, err
		}
		for _, pid := range pids {
			found[pid] = struct{}{}
		}
		hidden += h
	}
	return found, hidden, nil
}

// send signals the pids that are in the cgroups still. A pid may have passed to a stranger since it was listed; so the process is held by a pidfd
// first and then looked for in the lists again: if it is there, the pidfd is it, or one that is dead.
func (p prey) send(pids []int, sig syscall.Signal) error {
	held := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case err == nil:
			held[pid] = fd
		case errors.Is(err, unix.ESRCH):
		case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM):
			// Kernel before 5.3, or a seccomp profile without it: a listed pid is the best there is.
			if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("signal process %d: %w", pid, err)
			}
		default:
			return fmt.Errorf("hold process %d: %w", pid, err)
		}
	}
	if len(held) == 0 {
		return nil
	}
	still, _, err := p.members()
	if err != nil {
		return err
	}
	var errs []error
	for pid, fd := range held {
		if _, ok := still[pid]; !ok {
			continue
		}
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("signal process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}
