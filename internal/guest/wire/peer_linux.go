package wire

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeerGone reports whether the peer has closed the stream or its sending half, without reading
// pending data. It returns false for streams that are not sockets.
func (c *Conn) PeerGone() bool {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	gone := true // a closed descriptor
	_ = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone
}

// AwaitPeer waits until the peer has sent data (nil), has closed the stream (io.EOF), or the read
// deadline has passed. It consumes no data. It returns errors.ErrUnsupported for streams that are
// not sockets.
func (c *Conn) AwaitPeer() error {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	if c.end > c.start {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var peek error
	var one [1]byte
	if err := raw.Read(func(fd uintptr) bool {
		n, _, peek = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return peek != unix.EAGAIN && peek != unix.EINTR
	}); err != nil {
		return err
	}
	if peek == nil && n == 0 {
		return io.EOF
	}
	return peek
}
