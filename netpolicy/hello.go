package netpolicy

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of what is read before a tls tunnel carries data, in bytes.
const (
	// MaxHello is the maximum size of a ClientHello for ParseHello, including record headers.
	MaxHello = 64 << 10

	recordHeader  = 5
	maxRecord     = 16 << 10 // of a plaintext fragment, RFC 8446 section 5.1
	messageHeader = 4
)

// Errors of ParseHello that callers can distinguish.
var (
	ErrNotTLS = errors.New("the connection does not start with TLS")
	ErrECH    = errors.New("the ClientHello is encrypted (ECH), which hides its server name: disable ECH in the client")
)

// ParseHello parses the ClientHello at the start of a connection. b contains all bytes received so
// far. If need is not 0, at least that many more bytes are required. It keeps no reference to b,
// and allocates only if a complete message spans several records.
//
// serverName is the host name in canonical form, or empty if the client sent none. ech reports that
// the ClientHello hides another name; err is then ErrECH. An error is final: the bytes are not a
// ClientHello, exceed MaxHello, or are ambiguous.
func ParseHello(b []byte) (serverName string, ech bool, need int, err error) {
	if len(b) == 0 {
		return "", false, 1, nil
	}
	message, need, err := handshakeMessage(b)
	switch {
	case err != nil:
		return "", false, 0, err
	case need > 0 && len(b)+need > MaxHello:
		return "", false, 0, fmt.Errorf("the ClientHello has more than %d bytes", MaxHello)
	case need > 0:
		return "", false, need, nil
	}
	return parseHello(message)
}

// handshakeMessage returns the first handshake message without its header. need is the minimum
// number of missing bytes, assuming that the next record contains them all, so that a message in
// thousands of records is scanned only a few times.
func handshakeMessage(b []byte) (body []byte, need int, err error) {
	var head [messageHeader]byte
	got, total := 0, messageHeader
	rest, first := b, 0
	for got < total {
		size, err := recordSize(rest)
		if err != nil {
			return nil, 0, err
		}
		if len(rest) < recordHeader {
			return nil, recordHeader - len(rest) + total - got, nil
		}
		fragment := rest[recordHeader:]
		if missing := size - len(fragment); missing > 0 {
			if after := total - got - size; after > 0 {
				missing += recordHeader + after
			}
			return nil, missing, nil
		}
		fragment, rest = fragment[:size], fragment[size:]
		copy(head[min(got, messageHeader):], fragment)
		if head[0] != 1 {
			return nil, 0, fmt.Errorf("%w: the first message is not a ClientHello", ErrNotTLS)
		}
		if got == 0 {
			first = size
		}
		if got += size; got >= messageHeader {
			total = messageHeader + int(head[1])<<16 + int(head[2])<<8 + int(head[3])
		}
	}
	switch {
	case got > total:
		return nil, 0, errors.New("the ClientHello's record contains other messages")
	case first == total:
		return b[recordHeader+messageHeader : recordHeader+total], 0, nil
	}
	return joinRecords(b, total)[messageHeader:], 0, nil
}

// recordSize returns the length of a record's fragment, or 0 if the header is incomplete. It
// returns an error if this is not a TLS handshake record; SSL 2 is not supported.
func recordSize(b []byte) (int, error) {
	switch {
	case len(b) > 0 && b[0] != 22, len(b) > 1 && b[1] != 3, len(b) > 2 && b[2] > 4:
		return 0, ErrNotTLS
	case len(b) < recordHeader:
		return 0, nil
	}
	size := int(b[3])<<8 | int(b[4])
	if size == 0 || size > maxRecord {
		return 0, fmt.Errorf("%w: a record of %d bytes", ErrNotTLS, size)
	}
	return size, nil
}

// joinRecords concatenates the fragments of complete records.
func joinRecords(b []byte, total int) []byte {
	out := make([]byte, 0, total)
	for len(out) < total {
		size := int(b[3])<<8 | int(b[4])
		out = append(out, b[recordHeader:recordHeader+size]...)
		b = b[recordHeader+size:]
	}
	return out
}

// Extensions of a ClientHello (IANA: TLS ExtensionType Values).
const (
	extensionServerName = 0
	extensionESNI       = 0xffce // drafts before ECH
	extensionECH        = 0xfe0d
	extensionECHOuter   = 0xfd00 // only valid in hidden ClientHellos
)

var errHello = errors.New("the ClientHello is malformed")

// parseHello parses the body of a ClientHello (RFC 8446, section 4.1.2).
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

// serverName parses the only name of a list (RFC 6066, section 3).
func serverName(b []byte) (string, error) {
	r := reader{b: b}
	list := reader{b: r.vector(2)}
	kind := list.number(1)
	name := string(list.vector(2))
	switch {
	case r.failed || len(r.b) > 0 || list.failed || name == "":
		return "", errHello
	case kind != 0:
		return "", errors.New("the ClientHello has a server name that is not a host name")
	case len(list.b) > 0:
		return "", errors.New("the ClientHello has more than one server name")
	}
	host, addr, err := CanonicalHost(name)
	switch {
	case err != nil:
		return "", fmt.Errorf("the ClientHello's server name: %w", err)
	case addr.IsValid() || !strings.EqualFold(name, host):
		return "", fmt.Errorf("the ClientHello's server name %s is not an ASCII name without a final dot", quoted(name))
	}
	return host, nil
}

// reader reads big-endian numbers and length-prefixed vectors. After the first missing byte, failed
// is true and it returns zero values.
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
