package relay

import "net"

// While a receiver does not read, the kernel charges the bytes in transit to the sender. So only
// the first connections get the kernel's default buffers. On unix sockets, whose two ends wake each
// other for each piece, they get even more: 2 MiB as the kernel counts. With 512 full connections,
// that is about 40 MiB for each end.
const (
	fast         = 8
	middle       = 64
	linkBuffer   = 1 << 20
	middleBuffer = 16 << 10
	slowBuffer   = 4 << 10
)

// Bound sets the size of the kernel's buffers for a connection that has this many others. Failures
// are ignored: they only cost memory or time.
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
	if b, ok := conn.(*net.TCPConn); ok { // the receive buffer of a unix socket is its peer's send buffer
		_ = b.SetReadBuffer(size)
	}
}
