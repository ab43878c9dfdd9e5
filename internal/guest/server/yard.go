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
	// oomScore makes the kernel take commands before the guest.
	oomScore = "600"
	// spares is how many wait: the next command comes while the place of the
	// last one is being filled. All are made before a sandbox has a user: the
	// kernel's first move of a process to another cgroup after a pause takes 5
	// to 15 ms, and a command that begins meanwhile is held up by it.
	spares = 2
	// refillPause is how long the yard waits after it could not make a spare.
	refillPause = 500 * time.Millisecond
)

var errYardClosed = errors.New("guest is ending")

// spare is all that a command needs before it is known which: a group with a
// parked leader in it, and pipes.
type spare struct {
	group  group
	groups []uint32
	leader *prefork.Leader
	in     pipe // the guest writes
	out    pipe // the guest reads
	err    pipe
}

// handOver closes the command's end, which it has got by now.
func (p *pipe) handOver() {
	if p.theirs >= 0 {
		unix.Close(p.theirs)
		p.theirs = -1
	}
}

func (p *pipe) close() {
	p.handOver()
	if p.ours != nil {
		p.ours.Close()
	}
}

func (sp *spare) handOver() {
	sp.in.handOver()
	sp.out.handOver()
	sp.err.handOver()
}

func (sp *spare) closePipes() {
	sp.in.close()
	sp.out.close()
	sp.err.close()
}

// alive says whether the leader still waits.
func (sp *spare) alive() bool { return len(sp.leader.Exit) == 0 }

// limit sets the caps that the command alone has.
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
		return wire.Failf(wire.FailedPrecondition, field, "a command cannot have caps of its own here: %v", err)
	}
	if err != nil {
		return wire.Failf(wire.Internal, "", "set the caps of the command: %v", err)
	}
	return nil
}

// discard gives up a spare that never ran anything.
func (sp *spare) discard(log *slog.Logger) {
	sp.closePipes()
	if sp.leader != nil {
		sp.leader.Discard()
		ctx, cancel := context.WithTimeout(context.Background(), killTime)
		defer cancel()
		select {
		case <-sp.leader.Exit:
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

// yard keeps spares, so that no command waits for a fork or a cgroup.
type yard struct {
	forker *prefork.Forker
	maker  *groupMaker
	log    *slog.Logger
	kick   chan struct{}

	mu     sync.Mutex
	free   []*spare
	closed bool
}

func newYard(forker *prefork.Forker, maker *groupMaker, log *slog.Logger) *yard {
	return &yard{forker: forker, maker: maker, log: log, kick: make(chan struct{}, 1)}
}

func (y *yard) wake() {
	select {
	case y.kick <- struct{}{}:
	default:
	}
}

// run keeps the yard full until ctx ends.
func (y *yard) run(ctx context.Context) {
	defer y.close()
	for {
		var retry <-chan time.Time
		if err := y.fill(); err != nil && !errors.Is(err, errYardClosed) {
			y.log.Warn("no command could be parked", "error", err)
			retry = time.After(refillPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-y.kick:
		case <-retry:
		}
	}
}

// fill replaces spares that died, and makes those that are missing.
func (y *yard) fill() error {
	for {
		y.mu.Lock()
		var dead []*spare
		alive := y.free[:0:0]
		for _, sp := range y.free {
			if sp.alive() {
				alive = append(alive, sp)
			} else {
				dead = append(dead, sp)
			}
		}
		y.free = alive
		full := len(y.free) >= spares || y.closed
		y.mu.Unlock()
		for _, sp := range dead {
			sp.discard(y.log)
		}
		if full {
			return nil
		}
		sp, err := y.make()
		if err != nil {
			return err
		}
		if !y.put(sp) {
			sp.discard(y.log)
			return errYardClosed
		}
	}
}

func (y *yard) put(sp *spare) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.closed {
		return false
	}
	y.free = append(y.free, sp)
	return true
}

// take hands out a spare, a new one if there is none. The yard is filled up
// when it has none left, or when told by wake that there is time for it.
func (y *yard) take() (*spare, error) {
	for {
		y.mu.Lock()
		if y.closed {
			y.mu.Unlock()
			return nil, wire.Failf(wire.Unavailable, "", "the sandbox is ending")
		}
		var sp *spare
		if n := len(y.free); n > 0 {
			sp, y.free = y.free[n-1], y.free[:n-1]
		}
		left := len(y.free)
		y.mu.Unlock()
		if left == 0 {
			y.wake()
		}
		if sp == nil {
			return y.make()
		}
		if sp.alive() {
			return sp, nil
		}
		sp.discard(y.log)
	}
}

// close discards all spares; none are made any more. Idempotent.
func (y *yard) close() {
	y.mu.Lock()
	free := y.free
	y.free, y.closed = nil, true
	y.mu.Unlock()
	for _, sp := range free {
		sp.discard(y.log)
	}
}

// make makes a spare.
func (y *yard) make() (_ *spare, err error) {
	sp := &spare{in: pipe{theirs: -1}, out: pipe{theirs: -1}, err: pipe{theirs: -1}}
	if sp.group, sp.groups, err = y.maker.make(); err != nil {
		return nil, cannotStart(err)
	}
	defer func() {
		if err != nil {
			sp.discard(y.log)
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
	if sp.leader, err = y.forker.Park(); err != nil {
		return nil, cannotStart(err)
	}
	if err = sp.group.Add(sp.leader.Pid); err != nil {
		return nil, cannotStart(err)
	}
	preferForOOM(sp.leader.Pid)
	return sp, nil
}

// preferForOOM may be refused, and then the cgroups have to do: the guest is not in those
// that can run full.
func preferForOOM(pid int) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	unix.Write(fd, []byte(oomScore)) //nolint:errcheck // see above
	unix.Close(fd)
}

// cannotStart classes what kept a command from being prepared.
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
