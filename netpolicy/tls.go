package netpolicy

import (
	"errors"
	"io"
	"net"
	"net/netip"
)

// alertDenied is the fatal TLS alert access_denied.
var alertDenied = []byte{21, 3, 3, 0, 2, 2, 49}

// usualHello is the size of the first read, in bytes. Most ClientHellos fit in it.
const usualHello = 2 << 10

// readHello reads a complete ClientHello and returns all bytes read, unchanged, for forwarding. The
// ClientHello must name the decision's host, or no host if that is an address. The connection's
// deadline limits the time.
func readHello(nc net.Conn, head []byte, d Decision) ([]byte, error) {
	refuse := func(why string) ([]byte, error) {
		return nil, denied(target(d.Host, d.Port) + " is allowed with tls: " + why)
	}
	b := head
	for {
		name, _, need, err := ParseHello(b)
		switch {
		case err != nil:
			return refuse(err.Error())
		case need == 0:
			if why := nameMismatch(name, d.Host); why != "" {
				return refuse(why)
			}
			return b, nil
		}
		got := len(b)
		b = append(b, make([]byte, max(need, usualHello))...)
		n, err := io.ReadAtLeast(nc, b[got:], need)
		b = b[:got+n]
		switch {
		case err == nil:
		case len(b) == 0 && errors.Is(err, io.EOF):
			return nil, errGone
		default:
			return refuse("the ClientHello is incomplete: " + clientError(err))
		}
	}
}

// nameMismatch returns what is wrong with a server name, or "".
func nameMismatch(name, host string) string {
	_, err := netip.ParseAddr(host)
	switch isAddress := err == nil; {
	case name == host, name == "" && isAddress:
		return ""
	case name == "":
		return "the ClientHello has no server name"
	default:
		return "the ClientHello is for " + name
	}
}

// clientError returns the text of an error in reading from the sandbox.
func clientError(err error) string {
	if isTimeout(err) {
		return "timed out"
	}
	return "the connection ended"
}
