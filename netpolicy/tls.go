package netpolicy

import (
	"errors"
	"io"
	"net"
	"net/netip"
)

// alertDenied is the TLS alert access_denied, fatal.
var alertDenied = []byte{21, 3, 3, 0, 2, 2, 49}

// usualHello is what is read at once: most are whole then.
const usualHello = 2 << 10

// readHello reads until a whole ClientHello is there and returns all that was
// read, to be passed on as it came. It has to name the decision's host, or
// nothing where that is an address. The connection's deadline bounds it.
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
			if why := mismatch(name, d.Host); why != "" {
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
			return refuse("no whole ClientHello came: " + clientError(err))
		}
	}
}

// mismatch says what is wrong with a server name.
func mismatch(name, host string) string {
	_, err := netip.ParseAddr(host)
	switch isAddress := err == nil; {
	case name == host, name == "" && isAddress:
		return ""
	case name == "":
		return "the ClientHello names no server"
	default:
		return "the ClientHello is for " + name
	}
}

// clientError is the text of an error in reading from inside.
func clientError(err error) string {
	if isTimeout(err) {
		return "timed out"
	}
	return "the connection ended"
}
