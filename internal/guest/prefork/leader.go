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

// Step is what a child was doing when it had to give up.
type Step string

const (
	StepIdentity Step = "take on the user"
	StepTerminal Step = "take on the terminal"
	StepDir      Step = "enter the working directory"
	StepExec     Step = "execute"
)

// StepError says why a command could not be executed.
type StepError struct {
	Step  Step
	Errno syscall.Errno
}

func (e *StepError) Error() string { return string(e.Step) + ": " + e.Errno.Error() }

func (e *StepError) Unwrap() error { return e.Errno }

// ErrInterrupted says that Exec was given up; whether the command runs is open.
var ErrInterrupted = errors.New("start of the command was interrupted")

// Forker parks leaders. Safe for concurrent use.
type Forker struct {
	reaper *Reaper
	region []byte    // the buffer that nursery and leaders keep
	mem    *childMem // at its start
	base   uintptr   // where blobs go, after that
	maxFD  uintptr

	mu      sync.Mutex // held over an order to the nursery
	nursery *nursery
	how     byte // what the nursery is told; 0: not known yet
}

// NewForker makes a forker whose children reaper waits for.
func NewForker(reaper *Reaper) (*Forker, error) {
	region, err := unix.Mmap(-1, 0, memBytes+regionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
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

// Leader is a parked child, and later the command that it became. Its owner
// calls Exec or Discard, once; Interrupt and Signal may be called at any time.
type Leader struct {
	Pid int
	// Exit receives the child's end, once, whatever it was.
	Exit   <-chan Exit
	forker *Forker
	ctl    *os.File
}

// Park forks a child that waits for Exec. It holds no descriptor of this
// process, is in a session of its own, and has no_new_privs set.
func (f *Forker) Park() (*Leader, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("park a command: %w", err)
	}
	pid, exit, err := f.fork(pair[1])
	unix.Close(pair[1])
	if err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("park a command: %w", err)
	}
	unix.SetNonblock(pair[0], true) //nolint:errcheck // only makes Interrupt slow
	return &Leader{Pid: pid, Exit: exit, forker: f, ctl: os.NewFile(uintptr(pair[0]), "leader"+strconv.Itoa(pid))}, nil
}

// Exec makes the child the program, with the descriptors as 0, 1 and 2, and
// returns when it is. A *StepError: it could not be, and its end is reported
// on Exit. That the child was killed on the way is no error: Exit tells.
func (l *Leader) Exec(p *Program, stdio [3]int) error {
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

// send writes the blob with the descriptors. That nobody is there to take it
// is no error: the end of the child is reported on Exit.
func (l *Leader) send(p *Program, stdio [3]int) error {
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

// Interrupt makes a running Exec return.
func (l *Leader) Interrupt() { l.ctl.SetDeadline(time.Unix(1, 0)) } //nolint:errcheck // closed: Exec is over

// Signal signals the child, but nobody else once it has been reaped.
func (l *Leader) Signal(sig syscall.Signal) error { return l.forker.reaper.Signal(l.Pid, sig) }

// Discard lets a parked child go. It is safe after Exec.
func (l *Leader) Discard() { l.ctl.Close() }
