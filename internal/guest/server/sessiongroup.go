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

// sessionGroup is the group of a session, with operations on its current command alone. As a group
// it contains the whole session.
type sessionGroup interface {
	group
	// beginCommand is called while no command runs. Processes that the shell starts later belong to
	// the next command.
	beginCommand() error
	// interruptCommand interrupts all processes of the command and the shell.
	interruptCommand()
	// killCommand kills all processes of the command except the shell, which may start more.
	killCommand(ctx context.Context) error
	// commandUsage returns what the command has used so far.
	commandUsage() cgroup.Usage
}

// newSessionGroup returns the group of a session whose shell is the process of sp.
func (s *Server) newSessionGroup(sp *spare) sessionGroup {
	if t, ok := sp.group.(*gidGroup); ok {
		return &gidSession{gidGroup: t, shell: sp.process.Pid}
	}
	return &cgroupSession{maker: s.spares.maker, log: s.Log, shell: sp.process.Pid, current: sp.group}
}

// cgroupSession is a sessionGroup with cgroups. The shell moves to a new cgroup for each command,
// and its children start there. A cgroup that still has processes when its command has ended is
// kept until it is empty.
type cgroupSession struct {
	maker *groupMaker
	log   *slog.Logger
	shell int

	removing sync.Mutex // held while cgroups are removed or the whole session is killed

	mu       sync.Mutex
	current  group
	used     cgroup.Usage // of earlier groups of the current command
	leftover []group
	killed   bool
}

var errSessionKilled = errors.New("the session was killed")

// moveShell moves the shell to a new group and returns the previous one.
func (h *cgroupSession) moveShell() (group, error) {
	g, _, err := h.maker.newGroup()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.killed {
		err = errSessionKilled
	} else {
		err = g.Add(h.shell)
	}
	if err != nil {
		// The shell may be partly in the new group. Both groups belong to the session.
		if rErr := g.Remove(); rErr != nil {
			h.leftover = append(h.leftover, g)
		}
		return nil, err
	}
	old := h.current
	h.current, h.leftover = g, append(h.leftover, old)
	return old, nil
}

// Add adds the first process.
func (h *cgroupSession) Add(pid int) error { return h.current.Add(pid) }

// Limit is not supported: the usage of a session moves from group to group.
func (h *cgroupSession) Limit(int64, float64) error { return cgroup.ErrUnsupported }

func (h *cgroupSession) groups() []group {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]group{h.current}, h.leftover...)
}

// Signal signals all processes of the session.
func (h *cgroupSession) Signal(sig syscall.Signal) error {
	groups := h.groups()
	errs := make([]error, 0, len(groups))
	for _, g := range groups {
		errs = append(errs, g.Signal(sig))
	}
	return errors.Join(errs...)
}

// Kill kills all processes of the session. It makes no new groups afterwards.
func (h *cgroupSession) Kill(ctx context.Context) error {
	h.mu.Lock()
	h.killed = true
	h.mu.Unlock()
	h.removing.Lock()
	defer h.removing.Unlock()
	groups := h.groups()
	errs := make([]error, 0, len(groups))
	for _, g := range groups {
		errs = append(errs, g.Kill(ctx))
	}
	return errors.Join(errs...)
}

// Usage returns the usage of the last command.
func (h *cgroupSession) Usage() (cgroup.Usage, error) { return h.commandUsage(), nil }

// Remove removes all groups.
func (h *cgroupSession) Remove() error {
	groups := h.groups()
	errs := make([]error, 0, len(groups))
	for _, g := range groups {
		errs = append(errs, g.Remove())
	}
	return errors.Join(errs...)
}

func (h *cgroupSession) beginCommand() error {
	if _, err := h.moveShell(); err != nil {
		return err
	}
	h.removing.Lock()
	defer h.removing.Unlock()
	h.mu.Lock()
	h.used = cgroup.Usage{}
	left := h.leftover
	h.mu.Unlock()
	removed := map[group]bool{}
	for _, g := range left {
		removed[g] = isEmpty(g) && g.Remove() == nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leftover = slices.DeleteFunc(h.leftover, func(g group) bool { return removed[g] })
	return nil
}

// isEmpty reports whether a group has no processes.
func isEmpty(g group) bool {
	c, ok := g.(interface{ Alive() (int, error) })
	if !ok {
		return false
	}
	n, err := c.Alive()
	return err == nil && n == 0
}

func (h *cgroupSession) interruptCommand() {
	h.mu.Lock()
	g := h.current
	h.mu.Unlock()
	_ = g.Signal(syscall.SIGINT) // missed processes are interrupted again, or killed
}

func (h *cgroupSession) killCommand(ctx context.Context) error {
	old, err := h.moveShell()
	if err != nil {
		return err
	}
	u, uErr := old.Usage()
	err = old.Kill(ctx)
	if uErr == nil {
		h.mu.Lock()
		h.used = addUsage(h.used, u)
		h.mu.Unlock()
	}
	return err
}

func (h *cgroupSession) commandUsage() cgroup.Usage {
	h.mu.Lock()
	defer h.mu.Unlock()
	u, err := h.current.Usage()
	if err != nil {
		h.log.Warn("usage of a session could not be read", "error", err)
	}
	return addUsage(h.used, u)
}

// addUsage adds the usage of two groups that were used in sequence.
func addUsage(a, b cgroup.Usage) cgroup.Usage {
	return cgroup.Usage{
		CPUUser: a.CPUUser + b.CPUUser, CPUSystem: a.CPUSystem + b.CPUSystem,
		MemoryPeak: max(a.MemoryPeak, b.MemoryPeak), PidsPeak: max(a.PidsPeak, b.PidsPeak),
		OOMKills: a.OOMKills + b.OOMKills, PidsDenied: a.PidsDenied + b.PidsDenied,
	}
}
