package guestconn

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"
)

// transport is what a yamux session reads and writes: the pipes, with a limit on incoming pings and
// a record of the first error.
type transport struct {
	rwc   io.ReadWriteCloser
	guard pingGuard // used only by the goroutine that reads

	mu    sync.Mutex
	first error
}

func (t *transport) Read(b []byte) (int, error) {
	n, err := t.rwc.Read(b)
	if bad := t.guard.scan(b[:n], time.Now()); bad != nil {
		n, err = 0, bad
	}
	return n, t.note(err)
}

func (t *transport) Write(b []byte) (int, error) {
	n, err := t.rwc.Write(b)
	return n, t.note(err)
}

func (t *transport) Close() error { return t.rwc.Close() }

// note keeps the first error: later ones only follow from it.
func (t *transport) note(err error) error {
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == nil {
		t.first = err
	}
	return err
}

func (t *transport) cause() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first
}

// The frame format of yamux: version, type, flags (2), stream (4), length (4), big-endian.
const (
	frameHeader = 12
	frameData   = 0
	framePing   = 2
)

const (
	// pingBurst and pingRefill limit the pings of a peer: this many at once, and one more per
	// pingRefill. An honest peer sends one per keepAlive.
	pingBurst  = 64
	pingRefill = 100 * time.Millisecond
)

// errPings ends a session whose peer sends too many pings.
var errPings = errors.New("the peer sends too many pings")

// pingGuard counts the pings in a stream of frames. yamux answers each ping in a new goroutine that
// can block for long if the peer does not read, so a hostile peer could create millions of them.
type pingGuard struct {
	head   [frameHeader]byte
	have   int    // bytes of head read so far
	body   uint32 // remaining bytes of the current frame's body
	used   int
	refill time.Time
}

// scan parses the frames in b, which may begin and end in the middle of one.
func (g *pingGuard) scan(b []byte, now time.Time) error {
	for len(b) > 0 {
		if g.body > 0 {
			n := min(uint64(g.body), uint64(len(b)))
			g.body -= uint32(n)
			b = b[n:]
			continue
		}
		n := copy(g.head[g.have:], b)
		g.have += n
		b = b[n:]
		if g.have < frameHeader {
			return nil
		}
		g.have = 0
		switch g.head[1] {
		case frameData:
			g.body = binary.BigEndian.Uint32(g.head[8:])
		case framePing:
			if !g.allow(now) {
				return errPings
			}
		}
	}
	return nil
}

func (g *pingGuard) allow(now time.Time) bool {
	if back := int(min(now.Sub(g.refill)/pingRefill, pingBurst)); back > 0 {
		g.used = max(0, g.used-back)
		g.refill = now
	}
	g.used++
	return g.used <= pingBurst
}
