package relay

import "golang.org/x/sys/unix"

const (
	// manyPipes limits the pipes of a pool that contain bytes. keepPipes limits the empty ones that
	// are kept while any copy runs. A pipe uses two descriptors, and little memory while it is
	// empty.
	manyPipes = 4
	keepPipes = 2
	// pipeSize is the requested size. The kernel limits the pipes of one user, which all guests
	// share, to 64 MiB by default. Above that, a pipe has the default size, or two pages.
	pipeSize = 512 << 10
)

// pipe holds bytes in the kernel between two sockets.
type pipe struct{ r, w int }

func newPipe() (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{fds[0], fds[1]}, nil
}

func (b *pipe) close() {
	unix.Close(b.r)
	unix.Close(b.w)
}

// pipes is the state of a pool's pipes.
type pipes struct {
	taken int
	free  []*pipe // empty and unused
	users int     // running copies
	never bool    // the kernel does not support it
}

// enter is called before a copy, and leave after it. The last leave closes the unused pipes.
func (p *Pool) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pipes.users++
}

func (p *Pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pipes.users--
	if p.pipes.users > 0 {
		return
	}
	for _, b := range p.pipes.free {
		b.close()
	}
	p.pipes.free = nil
}

// takePipe returns an empty pipe, or nil if none is available.
func (p *Pool) takePipe() *pipe {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.pipes
	if q.never || q.taken == manyPipes {
		return nil
	}
	if n := len(q.free); n > 0 {
		b := q.free[n-1]
		q.free = q.free[:n-1]
		q.taken++
		return b
	}
	b, err := newPipe()
	if err != nil {
		return nil
	}
	q.taken++
	return b
}

// putPipe returns a pipe. It closes a pipe that still contains bytes.
func (p *Pool) putPipe(b *pipe, empty bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pipes.taken--
	if empty && len(p.pipes.free) < keepPipes {
		p.pipes.free = append(p.pipes.free, b)
		return
	}
	b.close()
}

// neverSplice makes all later transfers copy the bytes.
func (p *Pool) neverSplice() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pipes.never = true
}
