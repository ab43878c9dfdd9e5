// Package relay moves bytes between two streams, in both directions, with
// buffers only while bytes move: a connection that rests costs its two
// goroutines and its descriptors, and no more. Many bytes between two sockets
// stay in the kernel: they go by a pipe, with splice(2).
//
// It never looks at what it moves, sets no deadline and bounds no time: who
// wants an end of it closes the streams. Join returns when nothing of it runs.
package relay

import (
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// large is what is moved at a time while there are such buffers, of which a
	// pool has manyLarge; else it is small. So what all connections of a pool hold
	// while nobody takes it from them is 2 MiB, and 4 KiB for each direction.
	large     = 64 << 10
	manyLarge = 32
	small     = 4 << 10
)

// Pool has the buffers of many relays. The zero value is ready; its methods may
// be called concurrently.
type Pool struct {
	mu    sync.Mutex
	taken int      // large ones
	free  [][]byte // large ones that nobody has
	small sync.Pool
	pipes pipes
}

// keepLarge is how many large buffers wait for the next bytes.
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

// Join moves what each stream says to the other until both have ended, and
// closes them. Where a stream has a CloseWrite the end of one direction is told
// by that and leaves the other; where it has none, and wherever a direction
// breaks, both end. It returns how many bytes went each way.
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

// Copy moves what src says to dst until src has said its last, and closes
// neither. It returns how many bytes went.
func (p *Pool) Copy(dst io.Writer, src io.Reader) (moved int64, err error) {
	return p.CopyCounted(dst, src, func(int) error { return nil })
}

// CopyCounted is Copy that asks count with the size of each piece before it is
// sent on: 512 KiB at the most. An error of count ends it, and nothing of that
// piece is sent.
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
	raw  syscall.RawConn // nil: it cannot be waited for without a buffer
	try  func(fd uintptr) bool
	buf  []byte // of the pool; nil while it waits
	n    int
	err  error
	one  *[small]byte // without raw: what the first bytes after a pause go to
	full bool         // and whether the last piece filled its buffer
}

func newSource(p *Pool, from io.Reader) *source {
	s := &source{pool: p, from: from}
	if sc, ok := from.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			s.raw, s.try = raw, s.read
			return s
		}
	}
	s.one = new([small]byte)
	return s
}

// next returns what is there, and waits for it without a buffer of the pool. The
// piece is good until release.
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

// read is one try without waiting; false: there is nothing yet.
func (s *source) read(fd uintptr) bool {
	s.buf = s.pool.get()
	for {
		s.n, s.err = unix.Read(int(fd), s.buf)
		if s.err != unix.EINTR {
			break
		}
	}
	if s.err == unix.EAGAIN {
		s.release()
		return false
	}
	return true
}

// blocking takes a buffer of the pool only where more is there for sure, or the
// stream has filled the last one.
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
