// Package relay copies bytes between two streams in both directions. It holds buffers only while
// bytes move: an idle connection costs two goroutines and its descriptors, and 4 KiB for each
// stream that is not a socket. Large transfers between two sockets stay in the kernel: they use a
// pipe and splice(2).
//
// The package does not interpret the bytes and sets no deadlines. To stop a copy, close its
// streams. Join returns when all its goroutines have ended.
package relay

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
)

const (
	// large is the size of a piece while large buffers are available, of which a pool has
	// manyLarge. Otherwise it is small. So the connections of a pool hold at most 2 MiB, plus 4 KiB
	// for each direction, while the receivers do not read.
	large     = 64 << 10
	manyLarge = 32
	small     = 4 << 10
)

// A piece of at least bulk bytes switches to splicing, until patience smaller pieces have followed.
// Copying is cheaper for small pieces, and most connections have no others.
const (
	bulk     = 16 << 10
	patience = 8
)

// errCopy means that the bytes must be copied: no pipe is available, or the kernel does not support
// the splice.
var errCopy = errors.New("no pipe available")

// Pool has the buffers of many relays. The zero value is ready to use. Its methods are safe for
// concurrent use.
type Pool struct {
	mu    sync.Mutex
	taken int      // large buffers in use
	free  [][]byte // unused large buffers
	small sync.Pool
	pipes pipes
}

// keepLarge is the maximum number of unused large buffers.
const keepLarge = 4

func (p *Pool) get() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken < manyLarge {
		p.taken++
		if n := len(p.free); n > 0 {
			b := p.free[n-1]
			p.free = p.free[:n-1]
			return b
		}
		return make([]byte, large)
	}
	if b, ok := p.small.Get().(*[small]byte); ok {
		return b[:]
	}
	return new([small]byte)[:]
}

func (p *Pool) put(b []byte) {
	if len(b) == small {
		p.small.Put((*[small]byte)(b))
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if len(p.free) < keepLarge {
		p.free = append(p.free, b)
	}
}

// Join copies in both directions until both have ended, and closes both streams. If a stream has
// CloseWrite, Join passes the end of one direction on with it. Otherwise, and after an error, it
// ends both. It returns the number of bytes in each direction.
func (p *Pool) Join(a, b net.Conn) (there, back int64) {
	var way sync.WaitGroup
	end := func() { a.Close(); b.Close() }
	one := func(dst, src net.Conn) int64 {
		n, err := p.Copy(dst, src)
		if half, ok := dst.(interface{ CloseWrite() error }); err != nil || !ok || half.CloseWrite() != nil {
			end()
		}
		return n
	}
	way.Go(func() { there = one(b, a) })
	back = one(a, b)
	way.Wait()
	end()
	return there, back
}

// Copy copies src to dst until src ends. It closes neither. It returns the number of bytes copied.
func (p *Pool) Copy(dst io.Writer, src io.Reader) (moved int64, err error) {
	return p.CopyCounted(dst, src, func(int) error { return nil })
}

// CopyCounted is like Copy, and calls count with the size of each piece, at most 512 KiB, before it
// sends the piece. An error of count ends the copy, and the piece is not sent.
func (p *Pool) CopyCounted(dst io.Writer, src io.Reader, count func(n int) error) (moved int64, err error) {
	p.enter()
	defer p.leave()
	s := newSource(p, src)
	defer s.release()
	var direct *splice
	for small := patience; ; {
		var n int
		err := errCopy
		if small < patience {
			if direct == nil {
				direct = newSplice(p, dst, src, count)
			}
			n, err = direct.next()
		}
		if err == errCopy {
			n, err = s.pass(dst, count)
		}
		moved += int64(n)
		if err == io.EOF {
			return moved, nil
		}
		if err != nil {
			return moved, err
		}
		if small = min(small+1, patience); n >= bulk {
			small = 0
		}
	}
}

// source reads a stream in pieces.
type source struct {
	pool *Pool
	from io.Reader
	raw  syscall.RawConn // nil: waiting requires a buffer
	try  func(fd uintptr) bool
	buf  []byte // from the pool; nil while waiting
	n    int
	err  error
	one  *[small]byte // without raw: receives the first bytes after a pause
	full bool         // the last piece filled its buffer
}

func newSource(p *Pool, from io.Reader) *source {
	s := &source{pool: p, from: from}
	if !s.readRaw() {
		s.one = new([small]byte)
	}
	return s
}

// next returns the next piece. It waits without a buffer of the pool. The piece is valid until
// release.
func (s *source) next() ([]byte, error) {
	if s.raw == nil {
		return s.blocking()
	}
	s.n, s.err = 0, nil
	if err := s.raw.Read(s.try); err != nil {
		return nil, err
	}
	if s.err == nil && s.n == 0 {
		s.err = io.EOF
	}
	return s.buf[:max(s.n, 0)], s.err
}

// blocking uses a buffer of the pool only if the last piece filled its buffer, so that more data is
// likely.
func (s *source) blocking() ([]byte, error) {
	b := s.one[:]
	if s.full {
		s.buf = s.pool.get()
		b = s.buf
	}
	n, err := s.from.Read(b)
	s.full = n == len(b)
	return b[:n], err
}

// pass copies one piece to dst.
func (s *source) pass(dst io.Writer, count func(n int) error) (moved int, err error) {
	piece, err := s.next()
	defer s.release()
	if len(piece) == 0 {
		return 0, err
	}
	if err := count(len(piece)); err != nil {
		return 0, err
	}
	if n, err := dst.Write(piece); err != nil {
		return n, err
	}
	return len(piece), err
}

func (s *source) release() {
	if s.buf != nil {
		s.pool.put(s.buf)
		s.buf = nil
	}
}
