package guestconn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// The host's direction of a muxed stream is framed, because yamux cannot end one direction and keep
// the other: the end of its stream means that the host does not read any more. A frame is a
// big-endian uint32 length and that many bytes. Length 0 ends the direction.
const (
	pieceHeader = 4
	maxPiece    = 1 << 20
	// mergePiece is the largest payload that is copied behind its header, to be sent in one write.
	mergePiece = 4 << 10
)

var (
	errHalfSent  = errors.New("an earlier write was not completed")
	errHostEnded = errors.New("the host closed the stream")
)

var mergeBuffers = sync.Pool{New: func() any { return new([pieceHeader + mergePiece]byte) }}

// framer writes the host's direction of a stream. Its methods may be called concurrently.
type framer struct {
	w io.Writer

	mu    sync.Mutex
	head  []byte // unsent bytes of the current header
	left  int    // unsent bytes of the current payload
	ended bool
}

// Write writes b in frames. After a timeout, the next Write continues the current frame.
func (f *framer) Write(b []byte) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return 0, net.ErrClosed
	}
	for n < len(b) && err == nil {
		if len(f.head) == 0 && f.left == 0 {
			f.left = min(len(b)-n, maxPiece)
			f.head = binary.BigEndian.AppendUint32(nil, uint32(f.left))
		}
		var m int
		m, err = f.send(b[n:min(n+f.left, len(b))])
		n += m
	}
	return n, err
}

// send writes the rest of the header and a part of the payload. It returns how much of the payload
// was written. The caller holds mu.
func (f *framer) send(payload []byte) (n int, err error) {
	if len(f.head) > 0 && len(payload) <= mergePiece {
		both := mergeBuffers.Get().(*[pieceHeader + mergePiece]byte)
		defer mergeBuffers.Put(both)
		size := copy(both[:], f.head)
		size += copy(both[size:], payload)
		n, err = f.w.Write(both[:size])
		sent := min(n, len(f.head))
		f.head = f.head[sent:]
		n -= sent
		f.left -= n
		return n, err
	}
	if len(f.head) > 0 {
		sent, err := f.w.Write(f.head)
		f.head = f.head[sent:]
		if err != nil {
			return 0, err
		}
	}
	n, err = f.w.Write(payload)
	f.left -= n
	return n, err
}

// CloseWrite ends the direction after everything that was written. It waits like Write.
func (f *framer) CloseWrite() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return nil
	case len(f.head) > 0 || f.left > 0:
		return fmt.Errorf("close the write direction: %w", errHalfSent)
	}
	f.ended = true
	_, err := f.w.Write(make([]byte, pieceHeader))
	return err
}

// deframer reads what a framer wrote. It returns io.EOF at the end of the direction, and
// errHostEnded if the stream ended without it. It is for one goroutine.
type deframer struct {
	r     io.Reader
	left  uint32
	ended bool
}

// Read implements io.Reader.
func (d *deframer) Read(b []byte) (int, error) {
	if d.left == 0 && !d.ended {
		var head [pieceHeader]byte
		if _, err := io.ReadFull(d.r, head[:]); err != nil {
			return 0, hostEnded(err)
		}
		d.left = binary.BigEndian.Uint32(head[:])
		d.ended = d.left == 0
		if d.left > maxPiece {
			return 0, fmt.Errorf("frame of %d bytes, at most %d", d.left, maxPiece)
		}
	}
	if d.ended {
		return 0, io.EOF
	}
	n, err := d.r.Read(b[:min(uint32(len(b)), d.left)])
	d.left -= uint32(n)
	return n, hostEnded(err)
}

func hostEnded(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errHostEnded
	}
	return err
}
