package netpolicy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// SOCKS5 (RFC 1928): CONNECT without authentication.
const (
	socksVersion = 0x05
	socksConnect = 0x01
	socksNoAuth  = 0x00
	socksNoneFit = 0xff

	socksIPv4 = 0x01
	socksName = 0x03
	socksIPv6 = 0x04
)

// socks serves one connection whose first byte is that of SOCKS5.
func (s *Session) socks(c *client) {
	c.SetDeadline(c.begun.Add(s.g.o.Limits.HeaderTime))
	w, err := readSocks(c)
	if err != nil {
		s.recordInvalid(c.begun, err.Error())
		if no, ok := errors.AsType[*refusal](err); ok {
			writeLast(c.Conn, socksReply(no.code))
		}
		return
	}
	c.SetDeadline(time.Time{})
	t, err := s.openTunnel(c.ctx, c, w)
	if err != nil {
		writeLast(c.Conn, socksReply(asRefusal(err).code))
		return
	}
	t.run(socksReply(socksDone), nil)
}

// socksReply returns a reply without an address, which the client could not use.
func socksReply(code byte) []byte {
	return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}
}

// readSocks reads the greeting and the request, and no bytes of the tunnel. A *refusal must be
// answered. After any other error the client no longer reads.
func readSocks(c *client) (Want, error) {
	var b [256]byte
	read := func(n int) ([]byte, error) {
		if _, err := io.ReadFull(c, b[:n]); err != nil {
			return nil, fmt.Errorf("SOCKS5: incomplete request: %s", clientError(err))
		}
		return b[:n], nil
	}
	p, err := read(2)
	if err != nil {
		return Want{}, err
	}
	methods, err := read(int(p[1]))
	if err != nil {
		return Want{}, err
	}
	if bytes.IndexByte(methods, socksNoAuth) < 0 {
		writeLast(c.Conn, []byte{socksVersion, socksNoneFit})
		return Want{}, errors.New("SOCKS5: the client requires authentication: remove user and password from the proxy's URL")
	}
	if _, err := c.Conn.Write([]byte{socksVersion, socksNoAuth}); err != nil {
		return Want{}, errGone
	}
	if p, err = read(4); err != nil {
		return Want{}, err
	}
	switch {
	case p[0] != socksVersion || p[2] != 0:
		return Want{}, malformed("SOCKS5: invalid request")
	case p[1] != socksConnect:
		return Want{}, &refusal{400, socksCommand, fmt.Sprintf("SOCKS5: command %d is not supported: use CONNECT (1)", p[1])}
	}
	host, err := readSocksHost(p[3], read)
	if err != nil {
		return Want{}, err
	}
	if p, err = read(2); err != nil {
		return Want{}, err
	}
	port := int(p[0])<<8 | int(p[1])
	if port == 0 {
		return Want{}, malformed("SOCKS5: invalid port 0")
	}
	return Want{Host: host, Port: port, Tunnel: true}, nil
}

func readSocksHost(kind byte, read func(int) ([]byte, error)) (string, error) {
	var n int
	switch kind {
	case socksIPv4:
		n = 4
	case socksIPv6:
		n = 16
	case socksName:
		p, err := read(1)
		if err != nil {
			return "", err
		}
		n = int(p[0])
	default:
		return "", &refusal{400, socksAddress, fmt.Sprintf("SOCKS5: unknown address type %d", kind)}
	}
	p, err := read(n)
	if err != nil {
		return "", err
	}
	if kind == socksName {
		return string(p), nil
	}
	a, _ := netip.AddrFromSlice(p)
	return a.String(), nil
}

// target returns host:port, for messages and Host fields.
func target(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
