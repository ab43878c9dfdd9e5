package files

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// maxThreads bounds how many file operations touch the disk at a time.
const maxThreads = 4

var errClosed = errors.New("files are served no more")

// threads runs functions on a few operating system threads that the kernel
// takes for another user where files are concerned, and for nothing else: no
// process of that user may trace or signal them. They are locked to their
// goroutines for good, so that no other goroutine ever runs as that user, and
// end with them.
type threads struct {
	uid, gid int

	jobs chan job
	quit chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	n      int
	closed bool
}

type job struct {
	run  func()
	done chan error
}

func newThreads(uid, gid int) *threads {
	return &threads{uid: uid, gid: gid, jobs: make(chan job), quit: make(chan struct{})}
}

// become makes them another user's. It is refused once a thread is there.
func (t *threads) become(uid, gid int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n > 0 {
		return errors.New("files have been touched already")
	}
	t.uid, t.gid = uid, gid
	return nil
}

// do runs f as the user and waits for it. An error means that f did not run.
func (t *threads) do(ctx context.Context, f func()) error {
	j := job{run: f, done: make(chan error, 1)}
	select {
	case t.jobs <- j:
		return <-j.done
	default:
	}
	if err := t.grow(); err != nil {
		return err
	}
	select {
	case t.jobs <- j:
		return <-j.done
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.quit:
		return errClosed
	}
}

// grow starts one more thread, if there may be more.
func (t *threads) grow() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errClosed
	}
	if t.n < maxThreads {
		t.n++
		t.wg.Go(t.serve)
	}
	return nil
}

func (t *threads) serve() {
	// Never unlocked: with the goroutine the thread ends, credentials and all.
	runtime.LockOSThread()
	err := become(t.uid, t.gid)
	for {
		select {
		case j := <-t.jobs:
			if err == nil {
				j.run()
			}
			j.done <- err
		case <-t.quit:
			return
		}
	}
}

// close ends all threads and waits for what they do.
func (t *threads) close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.quit)
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// become changes what files the calling thread, and no other, may use. The
// kernel drops the capabilities over files together with the user. The calls
// are raw: those of package syscall would change every thread.
func become(uid, gid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("drop groups: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); errno == unix.ENOSYS {
		return becomeEffective(uid, gid)
	}
	// setfsuid and setfsgid tell no errors: asking with an id that does not
	// exist tells what is in force.
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
	if got, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, ^uintptr(0), 0, 0); int(got) != gid {
		return fmt.Errorf("become group %d: still %d", gid, got)
	}
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	if got, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); int(got) != uid {
		return fmt.Errorf("become user %d: still %d", uid, got)
	}
	return nil
}

// becomeEffective is become for gVisor, which has no users for files alone. The
// real and the saved user stay root, and it is those that decide who may signal or
// trace the thread.
func becomeEffective(uid, gid int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(gid), same); errno != 0 {
		return fmt.Errorf("become group %d: %w", gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return fmt.Errorf("become user %d: %w", uid, errno)
	}
	return nil
}
