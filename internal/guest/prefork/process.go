package prefork

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Step names what a child was doing when it failed.
type Step string

const (
	StepIdentity Step = "take on the user"
	StepTerminal Step = "take on the terminal"
	StepDir      Step = "enter the working directory"
	StepExec     Step = "execute"
)

// StepError reports why a command could not be executed.
type StepError struct {
	Step  Step
	Errno syscall.Errno
}

func (e *StepError) Error() string { return string(e.Step) + ": " + e.Errno.Error() }

func (e *StepError) Unwrap() error { return e.Errno }

// ErrInterrupted is returned by Exec after Interrupt. The command may or may not run.
var ErrInterrupted = errors.New("start of the command was interrupted")

// Forker forks parked processes. It is safe for concurrent use.
type Forker struct {
	reaper *Reaper
	region []byte    // buffer that the zygote and the parked processes keep
	mem    *childMem // start of region
	base   uintptr   // address of blobs, after mem
	maxFD  uintptr

	mu       sync.Mutex // held during a request to the zygote
	zygote   *zygote
	forkMode byte // what the zygote is told to do; 0: not detected yet
}

// NewForker returns a forker whose children reaper waits for.
func NewForker(reaper *Reaper) (*Forker, error) {
	region, err := unix.Mmap(-1, 0, memBytes+regionBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map the command buffer: %w", err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("read the limit of open files: %w", err)
	}
	f := &Forker{reaper: reaper, region: region, maxFD: uintptr(min(limit.Cur, 1<<20))}
	f.mem = (*childMem)(unsafe.Pointer(&region[0]))
	f.base = uintptr(unsafe.Pointer(&region[memBytes]))
	return f, nil
}

// Process is a parked child, and later the command that it executes. The owner calls Exec or
// Discard once. Interrupt and Signal may be called at any time.
type Process struct {
	Pid int
	// Exit receives the end of the child exactly once.
	Exit   <-chan Exit
	forker *Forker
	ctl    *os.File
}

// Park forks a child that waits for Exec. The child holds no descriptor of this process, leads its
// own session and has no_new_privs set.
func (f *Forker) Park() (*Process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("park a command: %w", err)
	}
	pid, exit, err := f.forkProcess(pair[1])
	unix.Close(pair[1])
	if err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("park a command: %w", err)
	}
	unix.SetNonblock(pair[0], true) //nolint:errcheck // only makes Interrupt slow
	return &Process{Pid: pid, Exit: exit, forker: f, ctl: os.NewFile(uintptr(pair[0]), "leader"+strconv.Itoa(pid))}, nil
}

// Exec makes the child execute p with stdio as descriptors 0, 1 and 2, and returns once it does. If
// that fails, it returns a *StepError and the child's end is reported on Exit. It returns nil if
// the child was killed before: Exit reports that.
func (l *Process) Exec(p *Program, stdio [3]int) error {
	defer l.ctl.Close()
	if err := l.send(p, stdio); err != nil {
		return err
	}
	var report [2]uint64
	b := (*[unsafe.Sizeof(report)]byte)(unsafe.Pointer(&report))[:]
	switch _, err := io.ReadFull(l.ctl, b); {
	case err == nil:
		return stepError(binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:]))
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed):
		return ErrInterrupted
	}
	return nil // the child's end is closed: by execve, or by its death
}

func stepError(step, errno uint64) error {
	e := &StepError{Step: StepIdentity, Errno: syscall.Errno(errno)}
	switch step {
	case stepTerminal:
		e.Step = StepTerminal
	case stepChdir:
		e.Step = StepDir
	case stepExec:
		e.Step = StepExec
	}
	return e
}

// send writes the blob with the descriptors. It returns nil if the child is gone: Exit reports
// that.
func (l *Process) send(p *Program, stdio [3]int) error {
	b := blob{base: l.forker.base}
	if err := b.build(p); err != nil {
		return err
	}
	conn, err := l.ctl.SyscallConn()
	if err != nil {
		return fmt.Errorf("send the command: %w", err)
	}
	fds := stdio[:]
	if p.File != nil {
		fds = append(fds, int(p.File.Fd()))
	}
	rights, sent := unix.UnixRights(fds...), 0
	var failed error
	err = conn.Write(func(fd uintptr) bool {
		for sent < len(b.buf) {
			n, err := unix.SendmsgN(int(fd), b.buf[sent:], rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return false
			case err != nil:
				failed = err
				return true
			default:
				sent, rights = sent+n, nil
			}
		}
		return true
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
		return ErrInterrupted
	case errors.Is(failed, unix.EPIPE), errors.Is(failed, unix.ECONNRESET):
		return nil
	case failed != nil:
		return fmt.Errorf("send the command: %w", failed)
	}
	return err
}

// Interrupt makes a running Exec return ErrInterrupted.
func (l *Process) Interrupt() { l.ctl.SetDeadline(time.Unix(1, 0)) } //nolint:errcheck // closed: Exec is over

// Signal signals the child. It returns ESRCH once the child was reaped, so it never hits another
// process.
func (l *Process) Signal(sig syscall.Signal) error { return l.forker.reaper.Signal(l.Pid, sig) }

// Discard ends a parked child. It is safe to call after Exec.
func (l *Process) Discard() { l.ctl.Close() }
