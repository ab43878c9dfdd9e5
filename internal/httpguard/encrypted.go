package httpguard

import (
	"crypto/tls"
	"net"
)

// limited returns the counted connection of conn, which may be encrypted, or nil.
func limited(conn net.Conn) *limitedConn {
	if outer, ok := conn.(*tls.Conn); ok {
		conn = outer.NetConn()
	}
	c, _ := conn.(*limitedConn)
	return c
}
