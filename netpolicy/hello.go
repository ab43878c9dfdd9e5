package netpolicy

import (
	"errors"
	"fmt"
)

// Bounds of what is read before a tunnel of tls may carry anything, in bytes.
const (
	// MaxHello is the most that ParseHello looks at: records with their headers.
	MaxHello = 64 << 10

	recordHeader  = 5
	maxRecord     = 16 << 10 // of a plaintext fragment, RFC 8446 section 5.1
	messageHeader = 4
)

// Errors of ParseHello that callers may want to tell apart.
var (
	ErrNotTLS = errors.New("what came is not TLS")
	ErrECH    = errors.New("the ClientHello is encrypted (ECH), so that nobody sees whose it is: switch ECH off in the client")
)

// ParseHello reads the ClientHello at the beginning of a connection. It is
// called with all bytes that came so far; while need is not 0, that many more
// have to come, at least, before it knows more. It keeps nothing, and allocates
// once, when the whole message is there and lies in several records.
//
// serverName is the host's name in canonical form, empty if the client sent
// none. ech says that another name is hidden in it, and then err is ErrECH. An
// error is final: what came is no ClientHello, is larger than MaxHello, or can
// be read in two ways.
func ParseHello(b []byte) (serverName string, ech bool, need int, err error) {
	if len(b) == 0 {
		return "", false, 1, nil
	}
	message, need, err := handshake(b)
	switch {
	case err != nil:
		return "", false, 0, err
	case need > 0 && len(b)+need > MaxHello:
		return "", false, 0, fmt.Errorf("the ClientHello takes more than %d bytes", MaxHello)
	case need > 0:
		return "", false, need, nil
	}
	return parseHello(message)
}

// handshake gives the first handshake message, without its header. need is what
// has to come even if the next record holds all that is missing: so a message
// in thousands of records is walked through a few times only.
func handshake(b []byte) (body []byte, need int, err error) {
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
			return nil, 0, fmt.Errorf("%w as it begins: its first message is no ClientHello", ErrNotTLS)
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
		return nil, 0, errors.New("the ClientHello's record holds more than the ClientHello")
	case first == total:
		return b[recordHeader+messageHeader : recordHeader+total], 0, nil
	}
	return join(b, total)[messageHeader:], 0, nil
}

// recordSize is the length of a record's fragment; what is there of its header
// has to be that of a handshake record. SSL 2's is none.
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

// join puts the fragments of whole records together.
func join(b []byte, total int) []byte {
	out := make([]byte, 0, total)
	for len(out) < total {
		size := int(b[3])<<8 | int(b[4])
		out = append(out, b[recordHeader:recordHeader+size]...)
		b = b[recordHeader+size:]
	}
	return out
}
