package prefork

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit is how a process ended and what it and those it waited for used.
type Exit struct {
	Status syscall.WaitStatus
	Rusage syscall.Rusage
}

// Reaper waits for every child of this process: those it was told of, whose
// end it reports, and the orphans that the kernel gives to PID 1.
type Reaper struct {
	forked chan struct{}

	// mu is held over a reap, so that nobody is signalled after it.
	mu      sync.Mutex
	waiting map[int]chan Exit
	// While forks are under way, early holds the ends of those that nobody
	// waits for yet.
	forking int
	early   map[int]Exit
}

// NewReaper makes a reaper. Nothing is reaped before Run.
func NewReaper() *Reaper {
	return &Reaper{waiting: make(map[int]chan Exit), early: make(map[int]Exit), forked: make(chan struct{}, 1)}
}

// Run reaps until ctx ends and no children are left; with children it may
// outlive ctx, asleep in the kernel. Call it once, in a goroutine of its own.
func (r *Reaper) Run(ctx context.Context) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
		switch {
		case err == nil:
			r.reap()
		case errors.Is(err, unix.EINTR):
		default: // no children
			select {
			case <-r.forked:
			case <-ctx.Done():
				return
			}
		}
	}
}

// reap takes away all that have ended.
func (r *Reaper) reap() {
	for {
		var e Exit
		r.mu.Lock()
		pid, err := syscall.Wait4(-1, &e.Status, syscall.WNOHANG|syscall.WALL, &e.Rusage)
		done := r.waiting[pid]
		delete(r.waiting, pid)
		if err == nil && pid > 0 && done == nil && r.forking > 0 {
			r.early[pid] = e
		}
		r.mu.Unlock()
		if err != nil || pid <= 0 {
			return
		}
		if done != nil {
			done <- e
		}
	}
}

// Start runs a function that makes a child, and returns where the child's end
// will be reported, once. If pids are used up so fast that a stranger of the
// same pid ended meanwhile, its end is reported instead.
func (r *Reaper) Start(fork func() (int, error)) (int, <-chan Exit, error) {
	r.mu.Lock()
	r.forking++
	r.mu.Unlock()
	pid, err := fork()
	done := make(chan Exit, 1)
	r.mu.Lock()
	if e, ended := r.early[pid]; err == nil && ended {
		done <- e
	} else if err == nil {
		r.waiting[pid] = done
	}
	delete(r.early, pid)
	if r.forking--; r.forking == 0 {
		clear(r.early)
	}
	r.mu.Unlock()
	if err != nil {
		return 0, nil, err
	}
	select {
	case r.forked <- struct{}{}:
	default:
	}
	return pid, done, nil
}

// Signal signals a child that was not reaped yet; ESRCH if it was.
func (r *Reaper) Signal(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[pid]; !ok {
		return fmt.Errorf("signal %d to process %d: %w", int(sig), pid, syscall.ESRCH)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal %d to process %d: %w", int(sig), pid, err)
	}
	return nil
}

// forget takes back a Start of what turned out to be no child.
func (r *Reaper) forget(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, pid)
}

// Settle reaps those that have died by now: after a kill not even zombies are
// left to be seen.
func (r *Reaper) Settle() { r.reap() }
