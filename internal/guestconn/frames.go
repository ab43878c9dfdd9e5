package guestconn

import (
	"encoding/binary"
	"errors"
	"io"
	"time"
)

// The frame format of yamux: version, type, flags (2), stream (4), length (4), big-endian.
const (
	frameHeader = 12
	frameData   = 0
	framePing   = 2
	// beginFlags open a stream and belong to its first data, endFlags close it and belong to its last.
	beginFlags = 1 | 2
	endFlags   = 4 | 8
)

// frameBuffer is how many bytes of a peer are read at once.
const frameBuffer = 32 << 10

const (
	// pingBurst and pingRefill limit the pings of a peer: this many at once, and one more per
	// pingRefill. An honest peer sends one every 30 s.
	pingBurst  = 64
	pingRefill = 100 * time.Millisecond
)

// errPings ends a session whose peer sends too many pings.
var errPings = errors.New("the peer sends too many pings")

// frames rewrites the yamux frames of a peer so that yamux never waits inside of a frame: while it
// waits for the data of a frame it holds a lock of the stream, and readers of the stream could
// neither be cancelled nor closed. A frame with data becomes frames with the data that has arrived.
// frames also limits pings. It is for one goroutine.
type frames struct {
	r     io.Reader
	guard pingGuard

	buf        []byte
	start, end int // buf[start:end] has arrived and was not handed out

	head  [frameHeader]byte // of the peer's current frame
	begun bool              // a part of its data was announced
	left  uint32            // its data that was not announced
	piece [frameHeader]byte // the header that announces the current part
	out   []byte            // the rest of a header to hand out
	data  int               // bytes in buf that follow this header
}

// Read implements io.Reader.
func (f *frames) Read(b []byte) (int, error) {
	for len(f.out) == 0 && f.data == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	if len(f.out) > 0 {
		n := copy(b, f.out)
		f.out = f.out[n:]
		return n, nil
	}
	n := copy(b, f.buf[f.start:f.start+f.data])
	f.start += n
	f.data -= n
	return n, nil
}

// next prepares the next header and the data that follows it.
func (f *frames) next() error {
	if f.left == 0 {
		if err := f.fill(frameHeader); err != nil {
			return err
		}
		f.start += copy(f.head[:], f.buf[f.start:])
		switch f.head[1] {
		case framePing:
			if !f.guard.allow(time.Now()) {
				return errPings
			}
		case frameData:
			f.left, f.begun = binary.BigEndian.Uint32(f.head[8:]), false
		}
		if f.left == 0 {
			f.out = f.head[:]
			return nil
		}
	}
	if err := f.fill(1); err != nil {
		return err
	}
	f.announce()
	return nil
}

// announce makes a frame of the data that has arrived.
func (f *frames) announce() {
	f.data = int(min(int64(f.left), int64(f.end-f.start)))
	f.left -= uint32(f.data)
	f.piece = f.head
	flags := binary.BigEndian.Uint16(f.head[2:])
	if f.begun {
		flags &^= beginFlags
	}
	if f.left > 0 {
		flags &^= endFlags
	}
	f.begun = true
	binary.BigEndian.PutUint16(f.piece[2:], flags)
	binary.BigEndian.PutUint32(f.piece[8:], uint32(f.data))
	f.out = f.piece[:]
}

// fill reads until n bytes can be handed out. n is at most frameHeader.
func (f *frames) fill(n int) error {
	if f.buf == nil {
		f.buf = make([]byte, frameBuffer)
	}
	if f.start == f.end || len(f.buf)-f.start < frameHeader {
		f.end = copy(f.buf, f.buf[f.start:f.end])
		f.start = 0
	}
	for f.end-f.start < n {
		m, err := f.r.Read(f.buf[f.end:])
		f.end += m
		if err != nil && f.end-f.start < n {
			return err
		}
	}
	return nil
}

// pingGuard counts pings. yamux answers each ping in a new goroutine that can block for long if the
// peer does not read, so a hostile peer could create millions of them.
type pingGuard struct {
	used   int
	refill time.Time
}

func (g *pingGuard) allow(now time.Time) bool {
	if back := int(min(now.Sub(g.refill)/pingRefill, pingBurst)); back > 0 {
		g.used = max(0, g.used-back)
		g.refill = now
	}
	g.used++
	return g.used <= pingBurst
}
