package server

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

const (
	// oomScore makes the kernel kill commands before the guest.
	oomScore = "600"
	// spareCount is how many spares are kept ready: the next command can start while the place of
	// the last one is refilled. All are made before a sandbox has a user. The first move of a
	// process to another cgroup after a pause takes the kernel 5 to 15 ms and delays a command that
	// starts meanwhile.
	spareCount = 2
	// refillPause is the pause after a spare could not be made.
	refillPause = 500 * time.Millisecond
)

var errPoolClosed = errors.New("guest is shutting down")

// spare is a parked process with its group and pipes, ready for any command.
type spare struct {
	group   group
	groups  []uint32
	process *prefork.Process
	in      pipe // written by the guest
	out     pipe // read by the guest
	err     pipe
}

// closeTheirs closes the command's end, once the command has it.
func (p *pipe) closeTheirs() {
	if p.theirs >= 0 {
		unix.Close(p.theirs)
		p.theirs = -1
	}
}

func (p *pipe) close() {
	p.closeTheirs()
	if p.ours != nil {
		p.ours.Close()
	}
}

func (sp *spare) closeTheirs() {
	sp.in.closeTheirs()
	sp.out.closeTheirs()
	sp.err.closeTheirs()
}

func (sp *spare) closePipes() {
	sp.in.close()
	sp.out.close()
	sp.err.close()
}

// alive reports whether the parked process is alive.
func (sp *spare) alive() bool { return len(sp.process.Exit) == 0 }

// limit sets the caps of this command alone.
func (sp *spare) limit(cmd *wire.Command) error {
	if cmd.MemoryBytes == 0 && cmd.CPUs == 0 {
		return nil
	}
	err := sp.group.Limit(cmd.MemoryBytes, cmd.CPUs)
	if errors.Is(err, cgroup.ErrUnsupported) {
		field := "memory_bytes"
		if cmd.MemoryBytes == 0 {
			field = "cpus"
		}
		return wire.Failf(wire.FailedPrecondition, field, "limits of a single command are not supported here: %v", err)
	}
	if err != nil {
		return wire.Failf(wire.Internal, "", "set the limits of the command: %v", err)
	}
	return nil
}

// discard releases a spare that was never used.
func (sp *spare) discard(log *slog.Logger) {
	sp.closePipes()
	if sp.process != nil {
		sp.process.Discard()
		ctx, cancel := context.WithTimeout(context.Background(), killTime)
		defer cancel()
		select {
		case <-sp.process.Exit:
		case <-ctx.Done():
		}
		if err := sp.group.Kill(ctx); err != nil {
			log.Warn("spare was not killed", "error", err)
		}
	}
	if err := sp.group.Remove(); err != nil {
		log.Warn("group was not removed", "error", err)
	}
}

// sparePool keeps spares ready, so that no command waits for a fork or a cgroup.
type sparePool struct {
	forker       *prefork.Forker
	maker        *groupMaker
	log          *slog.Logger
	refillSignal chan struct{}

	mu     sync.Mutex
	free   []*spare
	closed bool
}

func newSparePool(forker *prefork.Forker, maker *groupMaker, log *slog.Logger) *sparePool {
	return &sparePool{forker: forker, maker: maker, log: log, refillSignal: make(chan struct{}, 1)}
}

func (p *sparePool) requestRefill() {
	select {
	case p.refillSignal <- struct{}{}:
	default:
	}
}

// keepFull refills the pool until ctx ends.
func (p *sparePool) keepFull(ctx context.Context) {
	defer p.close() // spares are discarded after the end
	for {
		var retry <-chan time.Time
		if err := p.refill(); err != nil && !errors.Is(err, errPoolClosed) {
			p.log.Warn("no command could be parked", "error", err)
			retry = time.After(refillPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.refillSignal:
		case <-retry:
		}
	}
}

// refill replaces dead spares and adds missing ones.
func (p *sparePool) refill() error {
	for {
		p.mu.Lock()
		var dead []*spare
		alive := p.free[:0:0]
		for _, sp := range p.free {
			if sp.alive() {
				alive = append(alive, sp)
			} else {
				dead = append(dead, sp)
			}
		}
		p.free = alive
		full := len(p.free) >= spareCount || p.closed
		p.mu.Unlock()
		for _, sp := range dead {
			sp.discard(p.log)
		}
		if full {
			return nil
		}
		sp, err := p.newSpare()
		if err != nil {
			return err
		}
		if !p.add(sp) {
			sp.discard(p.log)
			return errPoolClosed
		}
	}
}

func (p *sparePool) add(sp *spare) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.free = append(p.free, sp)
	return true
}

// acquire returns a spare, and makes a new one if the pool is empty. The pool is refilled when it
// becomes empty, or on requestRefill.
func (p *sparePool) acquire() (*spare, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, errShutDown()
		}
		var sp *spare
		if n := len(p.free); n > 0 {
			sp, p.free = p.free[n-1], p.free[:n-1]
		}
		left := len(p.free)
		p.mu.Unlock()
		if left == 0 {
			p.requestRefill()
		}
		if sp == nil {
			return p.newSpare()
		}
		if sp.alive() {
			return sp, nil
		}
		sp.discard(p.log)
	}
}

// close discards all spares and makes further calls fail. It is idempotent.
func (p *sparePool) close() {
	p.mu.Lock()
	free := p.free
	p.free, p.closed = nil, true
	p.mu.Unlock()
	for _, sp := range free {
		sp.discard(p.log)
	}
}

// newSpare makes a spare.
func (p *sparePool) newSpare() (_ *spare, err error) {
	sp := &spare{in: pipe{theirs: -1}, out: pipe{theirs: -1}, err: pipe{theirs: -1}}
	if sp.group, sp.groups, err = p.maker.newGroup(); err != nil {
		return nil, cannotStart(err)
	}
	defer func() {
		if err != nil {
			sp.discard(p.log)
		}
	}()
	if sp.in, err = newPipe(false); err != nil {
		return nil, cannotStart(err)
	}
	if sp.out, err = newPipe(true); err != nil {
		return nil, cannotStart(err)
	}
	if sp.err, err = newPipe(true); err != nil {
		return nil, cannotStart(err)
	}
	if sp.process, err = p.forker.Park(); err != nil {
		return nil, cannotStart(err)
	}
	if err = sp.group.Add(sp.process.Pid); err != nil {
		return nil, cannotStart(err)
	}
	preferForOOM(sp.process.Pid)
	return sp, nil
}

// preferForOOM raises the OOM score of a process. Where that is refused, the cgroups have to
// suffice: the guest is not in those that can run full.
func preferForOOM(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	unix.Write(fd, []byte(oomScore)) //nolint:errcheck // see above
	unix.Close(fd)
}

// cannotStart converts an error of preparing a command into a Failure.
func cannotStart(err error) error {
	if _, ok := errors.AsType[*wire.Failure](err); ok {
		return err
	}
	code := wire.Internal
	for _, full := range []error{syscall.EAGAIN, syscall.ENOMEM, syscall.ENFILE, syscall.EMFILE, syscall.ENOSPC} {
		if errors.Is(err, full) {
			code = wire.ResourceExhausted
		}
	}
	return wire.Failf(code, "", "prepare a command: %v", err)
}
