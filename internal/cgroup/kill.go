package cgroup

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killSet is a set of processes to kill: those in any of the cgroups.
type killSet struct {
	tree *dir  // cgroup2 directory with cgroup.kill, or nil; a write kills all in it and below
	pids *dir  // directory with pids.max, or nil
	all  []dir // all directories, of every hierarchy
	// treeComplete is set if all processes are in tree, so that an empty tree means an empty set.
	treeComplete bool
}

// kill returns nil once no process in the cgroups is alive, or an error when ctx ends. Without
// cgroup.kill it prevents forks by setting the pids cap to zero, so that each scan finds fewer
// processes. This needs no freezer, and SIGKILL also reaches stopped, traced and (v2) frozen
// processes. With neither, it scans until two scans in a row find no process.
func (p killSet) kill(ctx context.Context) error {
	need := 1
	if p.tree == nil {
		need = 2
		if p.pids != nil {
			if err := p.pids.write("pids.max", "0"); err != nil && !isGone(err) {
				return err
			}
		}
	}
	emptyScans := 0
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		alive, err := p.killOnce(pause >= time.Millisecond)
		if err == nil && alive == 0 {
			if emptyScans++; emptyScans >= need {
				return nil
			}
			continue
		}
		emptyScans = 0
		if sleepContext(ctx, pause) {
			continue
		}
		if err != nil {
			return fmt.Errorf("kill cgroup: %w: %w", context.Cause(ctx), err)
		}
		return fmt.Errorf("kill cgroup: at least %d processes still alive: %w", alive, context.Cause(ctx))
	}
}

// sleepContext waits for pause, and returns false if ctx has ended. Go's timers round a short wait
// up to a millisecond, which would dominate the time of a kill. So short waits use nanosleep.
func sleepContext(ctx context.Context, pause time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if pause < time.Millisecond {
		ts := unix.NsecToTimespec(int64(pause))
		_ = unix.Nanosleep(&ts, nil) // an interrupted wait is only shorter
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

// killOnce kills all living processes and returns a lower bound of their number. With thorough it
// does not rely on cgroup.kill alone: the kernel sends that signal to the first thread of each
// process, and misses a process whose first thread has ended.
func (p killSet) killOnce(thorough bool) (int, error) {
	alive := 0
	if p.tree != nil {
		var err error
		if alive, err = p.killTree(); err != nil || alive > 0 && !thorough || alive == 0 && p.treeComplete {
			return alive, err
		}
	}
	// The remaining processes are in some hierarchies only, or did not get the signal of
	// cgroup.kill.
	found, err := p.signalAll(syscall.SIGKILL)
	return max(alive, found), err
}

func (p killSet) killTree() (int, error) {
	events, err := p.tree.read("cgroup.events")
	if isGone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if parseKeyed(events)["populated"] == 0 {
		return 0, nil
	}
	if err := p.tree.write("cgroup.kill", "1"); err != nil && !isGone(err) {
		return 1, err
	}
	return 1, nil
}

// signalAll sends a signal to every process in the cgroups once, and returns how many it found. It
// may miss a process that is forked during the scan.
func (p killSet) signalAll(sig syscall.Signal) (int, error) {
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
		errs = append(errs, p.signalPids(todo[:n], sig))
		todo = todo[n:]
	}
	return len(found) + hidden, errors.Join(errs...)
}

// members returns the union of all lists. A process counts once even if it is in only some
// hierarchies.
func (p killSet) members() (found map[int]struct{}, hidden int, err error) {
	found = map[int]struct{}{}
	for _, d := range p.all {
		pids, h, err := d.readProcs()
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

// signalPids signals those pids that are still in the cgroups. A pid may have been reused since it
// was listed. So it opens a pidfd first and then reads the lists again: if the pid is still listed,
// the pidfd refers to that process or to a dead one.
func (p killSet) signalPids(pids []int, sig syscall.Signal) error {
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
			// Kernel before 5.3, or a seccomp profile without pidfd_open: the listed pid is the
			// best available.
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
