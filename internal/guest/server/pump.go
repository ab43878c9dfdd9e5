package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/server/spool"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

const (
	smallBuffer = 16 << 10
	largeBuffer = wire.MaxFrame
	// maxLarge is how many streams may use large buffers at once, and keepLarge how many buffers
	// are kept for reuse.
	maxLarge  = 12
	keepLarge = 2
	// largePipe is the pipe size for streams that proved to be fast. All pipes of a user share one
	// limit, so slow streams keep the default.
	largePipe = 1 << 20
)

// sink receives a command's output.
type sink interface {
	// space returns a buffer for the next bytes, or nil if the output is no longer wanted.
	space() []byte
	// commit passes on the first n bytes of that buffer.
	commit(n int) error
}

// pump moves a command's output from its pipe to a sink.
type pump struct {
	file    *os.File
	sink    sink
	limit   int64 // 0: unlimited
	onLimit func()
	onError func() // called when the sink fails
	count   int64
	scrap   []byte // buffer for unwanted output
	tail    []byte // the end of the output, used to derive the ending
	// terminal is set if file is the master of a pseudo-terminal.
	terminal bool
}

// run returns once all writers have closed the pipe, or once a read deadline has passed and the
// rest of the pipe was moved.
func (p *pump) run() {
	for {
		b := p.buffer()
		n, err := p.file.Read(b)
		p.keepTail(b[:max(n, 0)])
		p.deliver(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.drain()
			return
		}
		if err != nil {
			return
		}
	}
}

func (p *pump) buffer() []byte {
	if p.sink != nil {
		if b := p.sink.space(); b != nil {
			return b
		}
		p.sink = nil
	}
	if p.scrap == nil {
		p.scrap = make([]byte, smallBuffer)
	}
	return p.scrap
}

// keepTail keeps the end of the output.
func (p *pump) keepTail(b []byte) {
	if len(b) >= tailBytes {
		p.tail = append(p.tail[:0], b[len(b)-tailBytes:]...)
		return
	}
	if over := len(p.tail) + len(b) - tailBytes; over > 0 {
		p.tail = append(p.tail[:0], p.tail[over:]...)
	}
	p.tail = append(p.tail, b...)
}

func (p *pump) deliver(n int) {
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
		p.onError()
		return
	}
	if over {
		p.sink = nil
		p.onLimit()
	}
}

// drain moves the bytes that the pipe holds now, without waiting. All processes of the command are
// dead, and a process that got hold of the pipe must not prolong the output.
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
			b := p.buffer()
			n, readErr := unix.Read(int(fd), b[:min(len(b), left)])
			if errors.Is(readErr, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return
			}
			p.keepTail(b[:n])
			p.deliver(n)
			left -= n
		}
	})
}

// frameSink sends each piece as one frame.
type frameSink struct {
	conn  *wire.Conn
	kind  wire.Kind
	large *largeBuffers
	file  *os.File
	buf   []byte
	big   bool
}

func (f *frameSink) space() []byte {
	if f.buf == nil {
		f.buf = make([]byte, smallBuffer+wire.HeaderLen)
	}
	return f.buf[wire.HeaderLen:]
}

func (f *frameSink) commit(n int) error {
	if n == 0 {
		return nil
	}
	if err := f.conn.WriteRoom(f.kind, f.buf[:wire.HeaderLen+n]); err != nil {
		return err
	}
	if n == len(f.buf)-wire.HeaderLen && !f.big {
		if b := f.large.get(); b != nil {
			f.buf, f.big = b, true
			growPipe(f.file)
		}
	}
	return nil
}

// close returns the large buffer.
func (f *frameSink) close() {
	if f.big {
		f.large.put(f.buf)
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

// largeBuffers bounds the memory of fast streams.
type largeBuffers struct {
	mu    sync.Mutex
	inUse int
	free  [][]byte
}

func newLargeBuffers() *largeBuffers { return &largeBuffers{} }

// get returns a buffer for the largest frame, or nil if too many are in use.
func (l *largeBuffers) get() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inUse == maxLarge {
		return nil
	}
	l.inUse++
	if n := len(l.free); n > 0 {
		b := l.free[n-1]
		l.free = l.free[:n-1]
		return b
	}
	return make([]byte, largeBuffer+wire.HeaderLen)
}

func (l *largeBuffers) put(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse--
	if len(l.free) < keepLarge {
		l.free = append(l.free, b)
	}
}

// spoolSink stores the output in a spool.
type spoolSink struct{ stream *spool.Stream }

func (s spoolSink) space() []byte { return s.stream.Space() }

func (s spoolSink) commit(n int) error {
	s.stream.Commit(n)
	return nil
}

// pipe has one end for the guest and one for the command.
type pipe struct {
	ours   *os.File
	theirs int // -1: closed
}

// newPipe makes a pipe. The guest gets the end for reading if read is set, and else the one for
// writing. The mode lets commands, which do not own the pipe, reopen their end by name, as with
// /dev/stdout.
func newPipe(read bool) (pipe, error) {
	mode := uint32(0o222)
	if !read {
		mode = 0o444
	}
	fd, err := pipeWithMode(mode)
	if err != nil {
		return pipe{theirs: -1}, fmt.Errorf("make a pipe: %w", err)
	}
	ours, theirs := fd[0], fd[1]
	if !read {
		ours, theirs = theirs, ours
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(ours)
		unix.Close(theirs)
		return pipe{theirs: -1}, fmt.Errorf("make a pipe: %w", err)
	}
	return pipe{ours: os.NewFile(uintptr(ours), "pipe"), theirs: theirs}, nil
}

// pipeWithMode makes a pipe. Both ends are blocking.
func pipeWithMode(mode uint32) (fd [2]int, err error) {
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return fd, err
	}
	err = unix.Fchmod(fd[0], mode)
	if err == nil {
		return fd, nil
	}
	unix.Close(fd[0])
	unix.Close(fd[1])
	if errors.Is(err, unix.EPERM) { // gVisor rejects fchmod on anonymous pipes, but allows it on FIFOs
		return fifoWithMode(mode)
	}
	return fd, err
}

// fifos numbers the temporary names of FIFOs.
//
//nolint:gochecknoglobals // names are unique within the process
var fifos atomic.Int64

// fifoWithMode makes a pipe from a FIFO in the guest's private directory and removes its name.
func fifoWithMode(mode uint32) (fd [2]int, err error) {
	name := filepath.Join(wire.PrivateDir, "pipe-"+strconv.FormatInt(fifos.Add(1), 10))
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return fd, err
	}
	defer func() { err = errors.Join(err, unix.Unlink(name)) }()
	if fd[0], err = unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return fd, err
	}
	if fd[1], err = unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		unix.Close(fd[0])
		return fd, err
	}
	if err := errors.Join(unix.SetNonblock(fd[0], false), unix.Chmod(name, mode)); err != nil {
		unix.Close(fd[0])
		unix.Close(fd[1])
		return fd, err
	}
	return fd, nil
}
