package relay

import (
	"net"

	"golang.org/x/sys/unix"
)

// What a connection has under way in the kernel, in each direction, is charged
// to who sent it while nobody takes it. So only the first connections get as much
// as the kernel gives them, and on the link, whose two ends wake each other for
// each piece, more than that: 2 MiB as the kernel counts. With 512 full ones it is
// some 40 MiB for each end.
const (
	fast         = 8
	middle       = 64
	linkBuffer   = 1 << 20
	middleBuffer = 16 << 10
	slowBuffer   = 4 << 10
)

// Bound sets what the kernel keeps of a connection that has so many beside it.
// That it cannot only costs memory, or time.
func Bound(conn net.Conn, beside int) {
	size := slowBuffer
	switch {
	case beside <= fast:
		if u, ok := conn.(*net.UnixConn); ok {
			widen(u)
		}
		return
	case beside <= middle:
		size = middleBuffer
	}
	if b, ok := conn.(interface{ SetWriteBuffer(int) error }); ok {
		_ = b.SetWriteBuffer(size)
	}
	if b, ok := conn.(*net.TCPConn); ok { // a unix socket's is its peer's
		_ = b.SetReadBuffer(size)
	}
}

// widen gets the host past the limit for everybody, which is what a socket has
// anyway; the guest gets what that allows.
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
