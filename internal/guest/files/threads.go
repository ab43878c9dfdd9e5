package files

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// maxThreads limits concurrent file operations.
const maxThreads = 4

var errClosed = errors.New("the file server is closed")

// threads runs functions on a few operating system threads that have another user for file access
// only. Processes of that user cannot trace or signal them. Each thread is locked to its goroutine
// until both end, so that no other goroutine ever runs as that user.
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

// become sets the user. It fails after the first thread was started.
func (t *threads) become(uid, gid int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n > 0 {
		return errors.New("file operations have already run")
	}
	t.uid, t.gid = uid, gid
	return nil
}

// do runs f as the user and waits for it. An error means that f did not run: ctx had ended, or t is
// closed.
func (t *threads) do(ctx context.Context, f func()) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
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

// grow starts another thread if the limit permits.
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
	// Never unlocked: the thread ends with the goroutine, and with it these credentials.
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

// close ends all threads and waits for their current functions.
func (t *threads) close() {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.quit)
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// become changes the file access of the calling thread only. With the user, the kernel drops the
// capabilities over files. It uses raw system calls, because those of package syscall would change
// every thread.
func become(uid, gid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("drop groups: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); errno == unix.ENOSYS {
		return becomeEffective(uid, gid)
	}
	// setfsuid and setfsgid return no errors. A call with an invalid id returns the current one.
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
	if got, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, ^uintptr(0), 0, 0); int(got) != gid {
		return fmt.Errorf("set group %d: still %d", gid, got)
	}
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	if got, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); int(got) != uid {
		return fmt.Errorf("set user %d: still %d", uid, got)
	}
	return nil
}

// becomeEffective is become for gVisor, which has no separate user for file access. The real and
// saved users, which decide who may signal or trace the thread, remain root.
func becomeEffective(uid, gid int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(gid), same); errno != 0 {
		return fmt.Errorf("set group %d: %w", gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return fmt.Errorf("set user %d: %w", uid, errno)
	}
	return nil
}
