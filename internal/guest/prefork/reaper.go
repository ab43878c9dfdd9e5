package prefork

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit reports how a process ended, and the resources used by it and by the children that it waited
// for.
type Exit struct {
	Status syscall.WaitStatus
	Rusage syscall.Rusage
}

// Reaper waits for every child of this process. It reports the end of those made with Start, and
// drops the orphans that the kernel hands to PID 1.
type Reaper struct {
	hasChildren chan struct{}

	// mu is held during a reap, so that Signal never hits a reused pid.
	mu    sync.Mutex
	exits map[int]chan Exit
	// early holds the ends of unknown children while forks are under way.
	forking int
	early   map[int]Exit
}

// NewReaper returns a reaper. Nothing is reaped before Run.
func NewReaper() *Reaper {
	return &Reaper{exits: make(map[int]chan Exit), early: make(map[int]Exit), hasChildren: make(chan struct{}, 1)}
}

// Run reaps until ctx ends and no children are left. With children left it may outlive ctx, blocked
// in the kernel. Call it once, in its own goroutine.
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
			case <-r.hasChildren:
			case <-ctx.Done():
				return
			}
		}
	}
}

// reap waits for all children that have ended.
func (r *Reaper) reap() {
	for {
		var e Exit
		r.mu.Lock()
		pid, err := syscall.Wait4(-1, &e.Status, syscall.WNOHANG|syscall.WALL, &e.Rusage)
		done := r.exits[pid]
		delete(r.exits, pid)
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

// Start calls fork, which makes a child, and returns its pid and a channel that receives its end
// once. If pids wrap so fast that an orphan with the same pid ended during the call, the channel
// receives that end instead.
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
		r.exits[pid] = done
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
	case r.hasChildren <- struct{}{}:
	default:
	}
	return pid, done, nil
}

// Signal signals a child. It returns ESRCH if the child was reaped.
func (r *Reaper) Signal(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.exits[pid]; !ok {
		return fmt.Errorf("signal %d to process %d: %w", int(sig), pid, syscall.ESRCH)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("signal %d to process %d: %w", int(sig), pid, err)
	}
	return nil
}

// forget drops a pid that turned out not to be a child of this process.
func (r *Reaper) forget(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.exits, pid)
}

// ReapDead reaps all children that are dead now, so that not even zombies are visible after a kill.
func (r *Reaper) ReapDead() { r.reap() }
