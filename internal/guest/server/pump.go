package server

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/server/spool"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

const (
	smallBuffer = 16 << 10
	largeBuffer = wire.MaxFrame
	// manyLarge is how many streams may use large buffers at once, keepLarge
	// how many are kept.
	manyLarge = 12
	keepLarge = 2
	// largePipe is what a pipe is grown to once its stream has shown to be a
	// fast one. All pipes of a user share a limit, so only those get it.
	largePipe = 1 << 20
)

// sink takes a command's output.
type sink interface {
	// space returns where to put the next bytes; nil: nobody wants them.
	space() []byte
	// commit takes n bytes of it.
	commit(n int) error
}

// pump moves what a command writes from its pipe to a sink.
type pump struct {
	file  *os.File
	sink  sink
	limit int64 // 0: none
	over  func()
	lost  func() // the sink failed
	count int64
	waste []byte // for what nobody wants
	last  []byte // the end of what came, for the ending
	// terminal: file is the master of one.
	terminal bool
}

// run returns when all writers have closed the pipe, or a read deadline has
// passed and what the pipe held then is moved.
func (p *pump) run() {
	for {
		b := p.room()
		n, err := p.file.Read(b)
		p.note(b[:max(n, 0)])
		p.took(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.drain()
			return
		}
		if err != nil {
			return
		}
	}
}

func (p *pump) room() []byte {
	if p.sink != nil {
		if b := p.sink.space(); b != nil {
			return b
		}
		p.sink = nil
	}
	if p.waste == nil {
		p.waste = make([]byte, smallBuffer)
	}
	return p.waste
}

// note keeps the end of what was read.
func (p *pump) note(b []byte) {
	if len(b) >= lastKept {
		p.last = append(p.last[:0], b[len(b)-lastKept:]...)
		return
	}
	if over := len(p.last) + len(b) - lastKept; over > 0 {
		p.last = append(p.last[:0], p.last[over:]...)
	}
	p.last = append(p.last, b...)
}

func (p *pump) took(n int) {
	if n <= 0 || p.sink == nil {
		return
	}
	over := p.limit > 0 && p.count+int64(n) > p.limit
	if over {
		n = int(p.limit - p.count)
	}
	p.count += int64(n)
	if err := p.sink.commit(n); err != nil {
		p.sink = nil
		p.lost()
		return
	}
	if over {
		p.sink = nil
		p.over()
	}
}

// drain moves what the pipe holds at this moment, and waits for nothing: every
// process of the command is dead, and another that got hold of the pipe has no
// say in when its output ends.
func (p *pump) drain() {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		if p.terminal {
			p.drainTerminal(int(fd))
			return
		}
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && left > 0 {
			b := p.room()
			n := 0
			n, err = unix.Read(int(fd), b[:min(len(b), left)])
			if errors.Is(err, unix.EINTR) {
				err = nil
				continue
			}
			if n <= 0 {
				return
			}
			p.note(b[:n])
			p.took(n)
			left -= n
		}
	})
}

// frames is a sink that sends each piece as one frame.
type frames struct {
	conn  *wire.Conn
	kind  wire.Kind
	large *largeBuffers
	file  *os.File
	buf   []byte
	big   bool
}

func (f *frames) space() []byte {
	if f.buf == nil {
		f.buf = make([]byte, smallBuffer+wire.HeaderLen)
	}
	return f.buf[wire.HeaderLen:]
}

func (f *frames) commit(n int) error {
	if n == 0 {
		return nil
	}
	if err := f.conn.WriteRoom(f.kind, f.buf[:wire.HeaderLen+n]); err != nil {
		return err
	}
	if n == len(f.buf)-wire.HeaderLen && !f.big {
		if b := f.large.take(); b != nil {
			f.buf, f.big = b, true
			growPipe(f.file)
		}
	}
	return nil
}

// close gives the buffer back.
func (f *frames) close() {
	if f.big {
		f.large.give(f.buf)
	}
	f.buf, f.big = nil, false
}

func growPipe(file *os.File) {
	if conn, err := file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			unix.FcntlInt(fd, unix.F_SETPIPE_SZ, largePipe) //nolint:errcheck // refused: it stays as it is
		})
	}
}

// largeBuffers bounds the memory that fast streams use.
type largeBuffers struct {
	mu   sync.Mutex
	out  int
	free [][]byte
}

func newLargeBuffers() *largeBuffers { return &largeBuffers{} }

// take returns a buffer for the largest frame, or nil if enough are in use.
func (l *largeBuffers) take() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out == manyLarge {
		return nil
	}
	l.out++
	if n := len(l.free); n > 0 {
		b := l.free[n-1]
		l.free = l.free[:n-1]
		return b
	}
	return make([]byte, largeBuffer+wire.HeaderLen)
}

func (l *largeBuffers) give(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out--
	if len(l.free) < keepLarge {
		l.free = append(l.free, b)
	}
}

// spooled is a sink that keeps the output.
type spooled struct{ stream *spool.Stream }

func (s spooled) space() []byte { return s.stream.Space() }

func (s spooled) commit(n int) error {
	s.stream.Commit(n)
	return nil
}
