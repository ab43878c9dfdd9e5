package relay

import "golang.org/x/sys/unix"

const (
	// manyPipes is how many pipes of a pool hold bytes on their way, and keepPipes
	// how many more wait for the next ones while anything is copied. Each takes two
	// descriptors, and no memory but its table while it is empty.
	manyPipes = 4
	keepPipes = 2
	// pipeSize is what one takes, if the kernel lets it: all guests are one user
	// to it, whose pipes may be of 64 MiB together. Beyond that it has the usual
	// size, or two pages.
	pipeSize = 512 << 10
)

// pipe is where bytes are between two sockets without being copied.
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

// pipes are those of a pool.
type pipes struct {
	taken int
	free  []*pipe // empty ones that nobody has
	users int     // copies under way
	never bool    // the kernel does not do it
}

// enter and leave are called around a copy: with the last of them the pipes go
// that waited for the next.
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

// takePipe gives an empty pipe; nil: there is none to be had.
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

// putPipe takes one back. What has bytes in it is nobody else's.
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

// neverSplice has all that is moved from now on copied.
func (p *Pool) neverSplice() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pipes.never = true
}
