package server

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// group holds all processes of one command.
type group interface {
	// Add moves the first process into the group. Its later children are in it too.
	Add(pid int) error
	Signal(sig syscall.Signal) error
	// Kill returns nil once no process of the group is alive.
	Kill(ctx context.Context) error
	// Limit caps the group. It returns cgroup.ErrUnsupported if that is not possible.
	Limit(memory int64, cores float64) error
	Usage() (cgroup.Usage, error)
	Remove() error
}

// groupMaker makes a group per command: a cgroup if cgroups were delegated, otherwise a group id.
type groupMaker struct {
	tree *cgroup.Tree
	// useTreeCounters is set if the tree's counters show events that the group's counters do not.
	useTreeCounters bool
	gids            *gidRange
	// sandbox holds the counters of the sandbox's own cgroup.
	sandbox sandboxCounters
	next    atomic.Int64
}

func newGroupMaker(tree *cgroup.Tree) (*groupMaker, error) {
	if tree != nil {
		return &groupMaker{tree: tree, useTreeCounters: !slices.Contains(tree.Hierarchies(), cgroup.Pids)}, nil
	}
	tags, err := newGIDRange()
	if err != nil {
		return nil, err
	}
	return &groupMaker{gids: tags, sandbox: findSandboxCounters("/sys/fs/cgroup")}, nil
}

// kind returns "cgroup" or "tag".
func (m *groupMaker) kind() string {
	if m.tree != nil {
		return "cgroup"
	}
	return "tag"
}

// newGroup returns a new group and the supplementary groups that its first process needs.
func (m *groupMaker) newGroup() (group, []uint32, error) {
	if m.tree == nil {
		t, err := m.gids.acquire()
		if err != nil {
			return nil, nil, err
		}
		return t, []uint32{t.gid}, nil
	}
	g, err := m.tree.Make("exec-" + strconv.FormatInt(m.next.Add(1), 10))
	if err != nil {
		return nil, nil, err
	}
	return g, nil, nil
}

// counters returns the counters of all commands together. They are zero if each group's own
// counters are sufficient.
func (m *groupMaker) counters() cgroup.Usage {
	if m.tree == nil {
		return m.sandbox.read()
	}
	if !m.useTreeCounters {
		return cgroup.Usage{}
	}
	u, err := m.tree.Usage()
	if err != nil {
		return cgroup.Usage{}
	}
	return u
}
