package netpolicy

import (
	"errors"
	"fmt"
	"strings"
)

// Extensions of a ClientHello that are looked at (IANA: TLS ExtensionType Values).
const (
	extensionServerName = 0
	extensionESNI       = 0xffce // the drafts that came before ECH
	extensionECH        = 0xfe0d
	extensionECHOuter   = 0xfd00 // stands in hidden hellos alone
)

var errHello = errors.New("the ClientHello is malformed")

// parseHello reads the body of a ClientHello (RFC 8446, section 4.1.2).
func parseHello(b []byte) (name string, ech bool, need int, err error) {
	r := reader{b: b}
	version := r.number(2)
	r.bytes(32) // random
	r.vector(1) // session
	r.vector(2) // cipher suites
	r.vector(1) // compressions
	if r.failed || version>>8 != 3 {
		return "", false, 0, errHello
	}
	if len(r.b) == 0 {
		return "", false, 0, nil
	}
	all := r.vector(2)
	if r.failed || len(r.b) > 0 {
		return "", false, 0, errHello
	}
	named := false
	for x := (reader{b: all}); len(x.b) > 0; {
		kind := x.number(2)
		body := x.vector(2)
		if x.failed {
			return "", false, 0, errHello
		}
		switch kind {
		case extensionServerName:
			if named {
				return "", false, 0, errors.New("the ClientHello has two lists of server names")
			}
			named = true
			if name, err = serverName(body); err != nil {
				return "", false, 0, err
			}
		case extensionECH, extensionESNI, extensionECHOuter:
			ech = true
		}
	}
	if ech {
		return name, true, 0, ErrECH
	}
	return name, false, 0, nil
}

// serverName reads the one name of a list (RFC 6066, section 3).
func serverName(b []byte) (string, error) {
	r := reader{b: b}
	list := reader{b: r.vector(2)}
	kind := list.number(1)
	name := string(list.vector(2))
	switch {
	case r.failed || len(r.b) > 0 || list.failed || name == "":
		return "", errHello
	case kind != 0:
		return "", errors.New("the ClientHello has a server name that is no host's")
	case len(list.b) > 0:
		return "", errors.New("the ClientHello has more than one server name")
	}
	host, addr, err := CanonicalHost(name)
	switch {
	case err != nil:
		return "", fmt.Errorf("the ClientHello's server name: %w", err)
	case addr.IsValid() || !strings.EqualFold(name, host):
		return "", fmt.Errorf("the ClientHello's server name %s is not a name in ASCII without a last dot", quoted(name))
	}
	return host, nil
}

// reader takes big-endian numbers and vectors with their length before them.
// Once something is missing it has failed, and gives nothing.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) bytes(n int) []byte {
	if r.failed || len(r.b) < n {
		r.failed, r.b = true, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) number(size int) int {
	n := 0
	for _, c := range r.bytes(size) {
		n = n<<8 | int(c)
	}
	return n
}

func (r *reader) vector(size int) []byte { return r.bytes(r.number(size)) }
