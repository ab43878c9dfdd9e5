package prefork

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memBytes is the part of the buffer that holds childMem. Blobs follow it.
const memBytes = 16 << 10

var _ [memBytes - unsafe.Sizeof(childMem{})]byte // fails to compile if childMem does not fit

// forkTimeout bounds one request to the zygote, which waits for nothing but the fork.
const forkTimeout = 10 * time.Second

// zygote is the process that parked processes are forked from.
type zygote struct {
	ctl  *os.File
	exit <-chan Exit
}

// newZygote forks a zygote. This process must not use the buffer afterwards.
func (f *Forker) newZygote() (*zygote, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make the nursery: %w", err)
	}
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("make the nursery: %w", err)
	}
	m := f.mem
	*m = childMem{ctl: uintptr(pair[1]), maxFD: f.maxFD, region: f.base, size: regionBytes}
	m.forkInbox.prepare(uintptr(unsafe.Pointer(&m.forkInbox.one)), 1)
	m.programInbox.prepare(f.base, regionBytes)
	f.listReleasable(m)
	_, exit, err := f.reaper.Start(func() (int, error) {
		syscall.ForkLock.Lock()
		pid, errno := forkZygote(m)
		syscall.ForkLock.Unlock()
		if errno != 0 {
			return 0, errno
		}
		return int(pid), nil
	})
	if err != nil {
		unix.Close(pair[0])
		return nil, fmt.Errorf("make the nursery: %w", err)
	}
	return &zygote{ctl: os.NewFile(uintptr(pair[0]), "nursery"), exit: exit}, nil
}

// prepare makes the inbox receive n bytes at address at.
//
//go:nocheckptr
func (in *inbox) prepare(at uintptr, n int) {
	in.iov.Base = *(**byte)(unsafe.Pointer(&at))
	in.iov.SetLen(n)
	in.msg.Iov = &in.iov
	in.msg.SetIovlen(1)
	in.msg.Control = &in.oob[0]
	in.msg.SetControllen(len(in.oob))
}

// listReleasable records the memory that the zygote releases: everything that was written to,
// except the buffer. The zygote spares its own stack. A range missed here only costs memory.
func (f *Forker) listReleasable(m *childMem) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	keep := span{uintptr(unsafe.Pointer(&f.region[0])), uintptr(unsafe.Pointer(&f.region[0])) + uintptr(len(f.region))}
	for line := range bytes.Lines(text) {
		// from-to perms offset device inode [path]
		fields := bytes.Fields(line)
		if len(fields) < 5 || !bytes.Equal(fields[1], []byte("rw-p")) || len(fields) > 5 &&
			!bytes.HasPrefix(fields[5], []byte("[anon")) {
			continue
		}
		a, b, _ := bytes.Cut(fields[0], []byte("-"))
		from, err1 := strconv.ParseUint(string(a), 16, 64)
		to, err2 := strconv.ParseUint(string(b), 16, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		s := span{uintptr(from), uintptr(to)}
		for _, piece := range []span{{s.from, min(s.to, keep.from)}, {max(s.from, keep.to), s.to}} {
			if piece.from < piece.to && m.nreleasable < maxReleasable {
				m.releasable[m.nreleasable] = piece
				m.nreleasable++
			}
		}
	}
}

// Requests to the zygote: fork a child of the guest, or fork through an intermediate process that
// exits, so that the child becomes an orphan and PID 1 inherits it.
const (
	forkChild  = 'f'
	forkOrphan = 't'
)

// requestFork makes the zygote fork a parked process that gets the socket, and returns its pid.
func (n *zygote) requestFork(how byte, socket int) (int, error) {
	if err := n.ctl.SetDeadline(time.Now().Add(forkTimeout)); err != nil {
		return 0, err
	}
	conn, err := n.ctl.SyscallConn()
	if err != nil {
		return 0, err
	}
	rights := unix.UnixRights(socket)
	var failed error
	if err := conn.Write(func(fd uintptr) bool {
		for {
			failed = unix.Sendmsg(int(fd), []byte{how}, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if !errors.Is(failed, unix.EINTR) {
				return !errors.Is(failed, unix.EAGAIN)
			}
		}
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	var b [16]byte
	if _, err := io.ReadFull(n.ctl, b[:]); err != nil {
		return 0, err
	}
	if errno := syscall.Errno(binary.NativeEndian.Uint64(b[8:])); errno != 0 {
		return 0, errno
	}
	return int(binary.NativeEndian.Uint64(b[:])), nil
}

// detectForkMode finds out whether CLONE_PARENT makes the zygote's children children of this
// process. On gVisor they stay the zygote's children, and the guest would never learn of their end.
func (f *Forker) detectForkMode() {
	f.forkMode = forkChild
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(pair[0]) // ends the child
	defer unix.Close(pair[1])
	pid, _, err := f.reaper.Start(func() (int, error) { return f.zygote.requestFork(forkChild, pair[1]) })
	if err == nil && !isOwnChild(pid) {
		f.forkMode = forkOrphan
		f.reaper.forget(pid)
	}
}

// isOwnChild reports whether pid is a child of this process, or has ended.
func isOwnChild(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	return len(fields) < 2 || string(fields[1]) == strconv.Itoa(os.Getpid())
}

// forkProcess forks a parked process, and starts a new zygote if the old one has died.
func (f *Forker) forkProcess(socket int) (int, <-chan Exit, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for again := false; ; again = true {
		if f.zygote == nil {
			n, err := f.newZygote()
			if err != nil {
				return 0, nil, err
			}
			f.zygote = n
			if f.forkMode == 0 {
				f.detectForkMode()
			}
		}
		pid, exit, err := f.reaper.Start(func() (int, error) { return f.zygote.requestFork(f.forkMode, socket) })
		if _, refused := errors.AsType[syscall.Errno](err); err == nil || refused && len(f.zygote.exit) == 0 &&
			!errors.Is(err, syscall.EPIPE) {
			return pid, exit, err
		}
		// The zygote is dead or broke the protocol. Do not wait for either.
		f.zygote.ctl.Close()
		f.zygote = nil
		if again {
			return 0, nil, fmt.Errorf("the nursery does not answer: %w", err)
		}
	}
}
