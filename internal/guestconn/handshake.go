package guestconn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Every connection of a line begins with a greeting of the host and an answer of the guest. Both
// begin with lineMagic and a big-endian uint16 version. A line begins only when the host confirms
// the answer to a fresh greeting with confirmByte, and the guest answers again: the greeting of a
// connection that the host has given up may arrive late.
const (
	lineMagic    = "orline"
	lineVersion  = 1
	prefixSize   = len(lineMagic) + 2
	idSize       = 16
	greetingSize = prefixSize + idSize + 1 + 4 + 8 + 8
	answerSize   = prefixSize + 1 + 8
	confirmByte  = 'C'
)

// Answers to a greeting.
const (
	answerReady   = 0
	answerUnknown = 1 // the guest does not know the line
	answerVersion = 2 // the guest has another version
	answerFenced  = 3 // a host with a higher epoch has begun a line
)

// lineID identifies a line. It is a secret of the host and the guest.
type lineID [idSize]byte

// greeting opens a connection.
type greeting struct {
	id       lineID
	fresh    bool   // this is the line's first connection
	attempt  uint32 // increases with each connection of the line
	received uint64 // bytes that the host has counted
	epoch    int64  // of the host, see Dialer
}

func prefix() []byte { return binary.BigEndian.AppendUint16([]byte(lineMagic), lineVersion) }

func (g greeting) encode() []byte {
	b := append(prefix(), g.id[:]...)
	var fresh byte
	if g.fresh {
		fresh = 1
	}
	b = binary.BigEndian.AppendUint32(append(b, fresh), g.attempt)
	b = binary.BigEndian.AppendUint64(b, g.received)
	return binary.BigEndian.AppendUint64(b, uint64(g.epoch))
}

// decodeGreeting decodes greetingSize bytes.
func decodeGreeting(b []byte) (g greeting, err error) {
	if err := checkPrefix(b); err != nil {
		return g, err
	}
	b = b[prefixSize:]
	copy(g.id[:], b)
	b = b[idSize:]
	g.fresh = b[0] == 1
	g.attempt = binary.BigEndian.Uint32(b[1:])
	g.received = binary.BigEndian.Uint64(b[5:])
	g.epoch = int64(binary.BigEndian.Uint64(b[13:]))
	return g, nil
}

func encodeAnswer(code byte, received uint64) []byte {
	return binary.BigEndian.AppendUint64(append(prefix(), code), received)
}

// readAnswer returns how many bytes the guest has received.
func readAnswer(r io.Reader) (received uint64, err error) {
	b := make([]byte, answerSize)
	if n, err := io.ReadFull(r, b); err != nil {
		if n > 0 {
			return 0, fmt.Errorf("invalid answer %q: %w", b[:n], err)
		}
		return 0, fmt.Errorf("no answer: %w", err)
	}
	if err := checkPrefix(b); err != nil {
		return 0, err
	}
	switch code := b[prefixSize]; code {
	case answerReady:
		return binary.BigEndian.Uint64(b[prefixSize+1:]), nil
	case answerUnknown:
		return 0, ErrGone
	case answerFenced:
		return 0, ErrFenced
	default:
		return 0, fmt.Errorf("invalid answer code %d", code)
	}
}

func checkPrefix(b []byte) error {
	if !bytes.HasPrefix(b, []byte(lineMagic)) {
		return fmt.Errorf("invalid greeting %q", b[:prefixSize])
	}
	if v := binary.BigEndian.Uint16(b[len(lineMagic):]); v != lineVersion {
		return fmt.Errorf("%w: the other side has line version %d, this one has %d", ErrVersion, v, lineVersion)
	}
	return nil
}

// errNoConfirm means that the host has given up a first connection.
var errNoConfirm = errors.New("the host did not confirm the connection")

// readConfirm waits for the host's confirmation.
func readConfirm(r io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("%w: %w", errNoConfirm, err)
	}
	if b[0] != confirmByte {
		return errNoConfirm
	}
	return nil
}
