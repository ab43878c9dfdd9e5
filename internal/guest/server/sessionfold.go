package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// fold is the group of a session, in which its commands are told apart. As a
// group it is all of the session.
type fold interface {
	group
	// next is called while no command runs: what the shell starts from now on
	// belongs to the next one.
	next() error
	// interrupt signals everything of the command, the shell too.
	interrupt()
	// strike kills everything of the command but the shell, which may start more.
	strike(ctx context.Context) error
	// spent is what the command has used so far.
	spent() cgroup.Usage
}

// newFold makes the fold of a session that begins with a spare.
func (s *Server) newFold(sp *spare) fold {
	if t, ok := sp.group.(*tag); ok {
		return &tagFold{tag: t, shell: sp.leader.Pid}
	}
	return &herd{maker: s.yard.maker, log: s.Log, shell: sp.leader.Pid, now: sp.group}
}

// herd is a fold of cgroups: the shell is moved to a new one for each command,
// and what it forks is in it. One that still has processes when its command has
// ended is kept until it has none.
type herd struct {
	maker *groupMaker
	log   *slog.Logger
	shell int

	tidying sync.Mutex // held while groups are removed, and over the kill of all

	mu     sync.Mutex
	now    group
	used   cgroup.Usage // of groups that the command had before now
	left   []group
	killed bool
}

var errHerdKilled = errors.New("the session was killed")

// move moves the shell to a new group and returns the one before.
func (h *herd) move() (group, error) {
	g, _, err := h.maker.make()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.killed {
		err = errHerdKilled
	} else {
		err = g.Add(h.shell)
	}
	if err != nil {
		// The shell may be in it by half: both are of the session.
		if rErr := g.Remove(); rErr != nil {
			h.left = append(h.left, g)
		}
		return nil, err
	}
	old := h.now
	h.now, h.left = g, append(h.left, old)
	return old, nil
}

// Add puts the leader in.
func (h *herd) Add(pid int) error { return h.now.Add(pid) }

// Limit cannot be: what a session uses moves from group to group.
func (h *herd) Limit(int64, float64) error { return cgroup.ErrUnsupported }

func (h *herd) all() []group {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]group{h.now}, h.left...)
}

// Signal reaches everything of the session.
func (h *herd) Signal(sig syscall.Signal) error {
	var errs []error
	for _, g := range h.all() {
		errs = append(errs, g.Signal(sig))
	}
	return errors.Join(errs...)
}

// Kill ends everything of the session; no group is made for it after that.
func (h *herd) Kill(ctx context.Context) error {
	h.mu.Lock()
	h.killed = true
	h.mu.Unlock()
	h.tidying.Lock()
	defer h.tidying.Unlock()
	var errs []error
	for _, g := range h.all() {
		errs = append(errs, g.Kill(ctx))
	}
	return errors.Join(errs...)
}

// Usage is that of the last command.
func (h *herd) Usage() (cgroup.Usage, error) { return h.spent(), nil }

// Remove removes the groups.
func (h *herd) Remove() error {
	var errs []error
	for _, g := range h.all() {
		errs = append(errs, g.Remove())
	}
	return errors.Join(errs...)
}

func (h *herd) next() error {
	if _, err := h.move(); err != nil {
		return err
	}
	h.tidying.Lock()
	defer h.tidying.Unlock()
	h.mu.Lock()
	h.used = cgroup.Usage{}
	left := h.left
	h.mu.Unlock()
	removed := map[group]bool{}
	for _, g := range left {
		removed[g] = empty(g) && g.Remove() == nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = slices.DeleteFunc(h.left, func(g group) bool { return removed[g] })
	return nil
}

// empty says whether nothing lives in a group.
func empty(g group) bool {
	c, ok := g.(interface{ Alive() (int, error) })
	if !ok {
		return false
	}
	n, err := c.Alive()
	return err == nil && n == 0
}

func (h *herd) interrupt() {
	h.mu.Lock()
	g := h.now
	h.mu.Unlock()
	_ = g.Signal(syscall.SIGINT) // what is missed is interrupted again, or killed
}

func (h *herd) strike(ctx context.Context) error {
	old, err := h.move()
	if err != nil {
		return err
	}
	u, uErr := old.Usage()
	err = old.Kill(ctx)
	if uErr == nil {
		h.mu.Lock()
		h.used = sum(h.used, u)
		h.mu.Unlock()
	}
	return err
}

func (h *herd) spent() cgroup.Usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	u, err := h.now.Usage()
	if err != nil {
		h.log.Warn("usage of a session could not be read", "error", err)
	}
	return sum(h.used, u)
}

// sum adds what two groups used one after the other.
func sum(a, b cgroup.Usage) cgroup.Usage {
	return cgroup.Usage{
		CPUUser: a.CPUUser + b.CPUUser, CPUSystem: a.CPUSystem + b.CPUSystem,
		MemoryPeak: max(a.MemoryPeak, b.MemoryPeak), PidsPeak: max(a.PidsPeak, b.PidsPeak),
		OOMKills: a.OOMKills + b.OOMKills, PidsDenied: a.PidsDenied + b.PidsDenied,
	}
}
