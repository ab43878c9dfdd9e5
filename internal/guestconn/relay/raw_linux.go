package relay

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// readRaw lets next wait for a socket without a buffer. It returns false for other streams.
func (s *source) readRaw() bool {
	sc, ok := s.from.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	s.raw, s.try = raw, s.read
	return true
}

// read is one attempt without waiting. It returns false if no data is available yet.
func (s *source) read(fd uintptr) bool {
	s.buf = s.pool.get()
	for {
		s.n, s.err = unix.Read(int(fd), s.buf)
		if s.err != unix.EINTR {
			break
		}
	}
	if s.err == unix.EAGAIN {
		s.release()
		return false
	}
	return true
}

// widen sets a large send buffer. The host may exceed the system's limit; a guest gets what the
// limit permits.
func widen(u *net.UnixConn) {
	raw, err := u.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, linkBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, linkBuffer)
		}
	})
}
