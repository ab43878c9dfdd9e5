package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// bulk is how large a piece has to be for the next ones to go by a pipe, until
// there were patience smaller ones in a row: small ones cost less when they are
// copied, and most connections have no others.
const (
	bulk     = 16 << 10
	patience = 8
)

// errCopy says that bytes have to be copied: no pipe is there for them, or the
// kernel does not move them.
var errCopy = errors.New("there is no pipe")

// splice moves the bytes of one kernel socket to another without copying them to
// this process and back, through a pipe that it has only while bytes are in it.
type splice struct {
	pool     *Pool
	from, to syscall.RawConn // nil: not a stream of the kernel's
	out      io.Writer       // to
	count    func(n int) error

	fill, drain func(fd uintptr) bool // of each try
	pipe        *pipe                 // nil while it waits for from
	left        int                   // in the pipe
	err         error                 // of the last try
}

func newSplice(p *Pool, dst io.Writer, src io.Reader, count func(n int) error) *splice {
	s := &splice{pool: p, from: socket(src), to: socket(dst), out: dst, count: count}
	s.fill, s.drain = s.fillFrom, s.drainTo
	return s
}

// mangles says that this kernel is gVisor's. When a socket takes what is in a pipe
// in several bites, each bite of gVisor's is the pipe's beginning (seen with
// 2022's): beyond 64 KiB other bytes arrive than were sent, and no call fails. It
// says of itself what no version of it has changed.
var mangles = sync.OnceValue(func() bool {
	var name unix.Utsname
	return unix.Uname(&name) == nil && bytes.HasPrefix(name.Version[:], []byte("#1 SMP Sun Jan 10 15:06:54 PST 2016"))
})

// socket is nil for all but plain streams: what wraps one has its reason to.
func socket(v any) syscall.RawConn {
	if mangles() {
		return nil
	}
	var c syscall.Conn
	switch v := v.(type) {
	case *net.TCPConn:
		c = v
	case *net.UnixConn:
		c = v
	default:
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// next moves what is there, and waits for it without a pipe. errCopy: nothing
// was taken from the source. Any other error may have lost what was.
func (s *splice) next() (moved int, err error) {
	if s.from == nil || s.to == nil {
		return 0, errCopy
	}
	s.left, s.err = 0, nil
	if err := s.from.Read(s.fill); err != nil {
		return 0, err
	}
	defer s.release()
	switch {
	case unsupported(s.err):
		s.pool.neverSplice()
		return 0, errCopy
	case s.err != nil:
		return 0, s.err
	case s.left == 0:
		return 0, io.EOF
	}
	all := s.left
	if err := s.count(all); err != nil {
		return 0, err
	}
	err = s.to.Write(s.drain)
	if err == nil {
		err = s.err
	}
	if unsupported(err) {
		s.pool.neverSplice()
		err = s.pour()
	}
	return all - s.left, err
}

// fillFrom is one try without waiting; false: there is nothing yet.
func (s *splice) fillFrom(fd uintptr) bool {
	if s.pipe = s.pool.takePipe(); s.pipe == nil {
		s.err = errCopy
		return true
	}
	n, err := move(int(fd), s.pipe.w, pipeSize)
	if err == unix.EAGAIN {
		s.release()
		return false
	}
	s.left, s.err = n, err
	return true
}

// drainTo is one try without waiting; false: it takes no more yet.
func (s *splice) drainTo(fd uintptr) bool {
	for s.left > 0 {
		n, err := move(s.pipe.r, int(fd), s.left)
		if err == unix.EAGAIN {
			return false
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if s.err = err; err != nil {
			return true
		}
		s.left -= n
	}
	return true
}

// pour copies what is in the pipe.
func (s *splice) pour() error {
	b := s.pool.get()
	defer s.pool.put(b)
	for s.left > 0 {
		n, err := unix.Read(s.pipe.r, b)
		if err == unix.EINTR {
			continue
		}
		if err == nil {
			n, err = s.out.Write(b[:n])
			s.left -= n
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *splice) release() {
	if s.pipe != nil {
		s.pool.putPipe(s.pipe, s.left == 0)
		s.pipe = nil
	}
}

// move is splice(2), which neither waits for the one nor for the other.
func move(from, to, most int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if err != unix.EINTR {
			return int(max(n, 0)), err
		}
	}
}

// unsupported: the kernel, what stands for it, or a filter of system calls does
// not do it with these.
func unsupported(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP || err == unix.EPERM
}
