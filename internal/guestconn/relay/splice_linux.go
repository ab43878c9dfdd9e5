package relay

import (
	"bytes"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// splice moves bytes from one socket to another without copying them to user space. It holds a pipe
// only while the pipe contains bytes.
type splice struct {
	pool     *Pool
	from, to syscall.RawConn // nil: not a plain stream socket
	out      io.Writer       // the same as to
	count    func(n int) error

	fill, drain func(fd uintptr) bool // one attempt each
	pipe        *pipe                 // nil while it waits for from
	left        int                   // bytes in the pipe
	err         error                 // of the last attempt
}

func newSplice(p *Pool, dst io.Writer, src io.Reader, count func(n int) error) *splice {
	s := &splice{pool: p, from: socket(src), to: socket(dst), out: dst, count: count}
	s.fill, s.drain = s.fillFrom, s.drainTo
	return s
}

// IsGVisor reports whether the kernel is gVisor's, whose splice corrupts data. When a socket takes
// a pipe's content in several parts, each part starts at the pipe's beginning (seen in 2022), so
// beyond 64 KiB wrong bytes arrive without an error. The check uses the version string, which has
// not changed in any release.
var IsGVisor = sync.OnceValue(func() bool {
	var name unix.Utsname
	return unix.Uname(&name) == nil && bytes.HasPrefix(name.Version[:], []byte("#1 SMP Sun Jan 10 15:06:54 PST 2016"))
})

// socket returns nil for everything but plain stream sockets: wrappers must see the bytes.
func socket(v any) syscall.RawConn {
	if IsGVisor() {
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

// next waits for data without a pipe, then moves it. errCopy means that nothing was read from the
// source. After another error, data may be lost.
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

// fillFrom is one attempt without waiting. It returns false if no data is available yet.
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

// drainTo is one attempt without waiting. It returns false if the socket accepts no more yet.
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

// pour copies the pipe's content.
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

// move is a splice(2) that waits for neither end.
func move(from, to, most int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if err != unix.EINTR {
			return int(max(n, 0)), err
		}
	}
}

// unsupported reports whether the kernel, its replacement, or a system call filter does not support
// the splice.
func unsupported(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP || err == unix.EPERM
}
