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

// memBytes is the part of the buffer that holds childMem; blobs come after it.
const memBytes = 16 << 10

var _ [memBytes - unsafe.Sizeof(childMem{})]byte // it fits

// orderTime bounds how long the nursery may take for a fork. It waits for
// nothing else.
const orderTime = 10 * time.Second

// nursery is the process that leaders are forked from.
type nursery struct {
	ctl  *os.File
	exit <-chan Exit
}

// newNursery forks one. The buffer is not touched by this process afterwards.
func (f *Forker) newNursery() (*nursery, error) {
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
	m.order.prepare(uintptr(unsafe.Pointer(&m.order.one)), 1)
	m.program.prepare(f.base, regionBytes)
	f.listDroppable(m)
	_, exit, err := f.reaper.Start(func() (int, error) {
		syscall.ForkLock.Lock()
		pid, errno := fork(m)
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
	return &nursery{ctl: os.NewFile(uintptr(pair[0]), "nursery"), exit: exit}, nil
}

// prepare makes an inbox that receives n bytes at an address.
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

// listDroppable notes what the nursery is to give back: all memory that was
// written to, but for the buffer. Its own stack it spares itself. What is
// missed here only costs.
func (f *Forker) listDroppable(m *childMem) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	keep := span{uintptr(unsafe.Pointer(&f.region[0])), uintptr(unsafe.Pointer(&f.region[0])) + uintptr(len(f.region))}
	for line := range bytes.Lines(text) {
		// from-to perms offset device inode [path]
		fields := bytes.Fields(line)
		if len(fields) < 5 || !bytes.Equal(fields[1], []byte("rw-p")) || len(fields) > 5 && !bytes.HasPrefix(fields[5], []byte("[anon")) {
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
			if piece.from < piece.to && m.ndrop < maxDrop {
				m.drop[m.ndrop] = piece
				m.ndrop++
			}
		}
	}
}

// What the nursery is told: fork the leader as a child of the guest, or fork it
// behind another process that ends, so that it comes to PID 1.
const (
	orderOnce  = 'f'
	orderTwice = 't'
)

// order has a leader forked that gets the socket, and returns its pid.
func (n *nursery) order(how byte, socket int) (int, error) {
	if err := n.ctl.SetDeadline(time.Now().Add(orderTime)); err != nil {
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

// learn finds out whether children that the nursery forks with CLONE_PARENT
// are this process's: gVisor makes them the nursery's, and nobody would learn of
// their end.
func (f *Forker) learn() {
	f.how = orderOnce
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(pair[0]) // ends the child
	defer unix.Close(pair[1])
	pid, _, err := f.reaper.Start(func() (int, error) { return f.nursery.order(orderOnce, pair[1]) })
	if err == nil && !isOurs(pid) {
		f.how = orderTwice
		f.reaper.forget(pid)
	}
}

// isOurs says whether a process is a child of this one, or has ended.
func isOurs(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	return len(fields) < 2 || string(fields[1]) == strconv.Itoa(os.Getpid())
}

// fork has a leader forked, by a new nursery if the old one has died.
func (f *Forker) fork(socket int) (int, <-chan Exit, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for again := false; ; again = true {
		if f.nursery == nil {
			n, err := f.newNursery()
			if err != nil {
				return 0, nil, err
			}
			f.nursery = n
			if f.how == 0 {
				f.learn()
			}
		}
		pid, exit, err := f.reaper.Start(func() (int, error) { return f.nursery.order(f.how, socket) })
		if _, refused := errors.AsType[syscall.Errno](err); err == nil || refused && len(f.nursery.exit) == 0 && !errors.Is(err, syscall.EPIPE) {
			return pid, exit, err
		}
		// It is dead, or does not keep to the order: neither is waited for.
		f.nursery.ctl.Close()
		f.nursery = nil
		if again {
			return 0, nil, fmt.Errorf("the nursery does not answer: %w", err)
		}
	}
}
