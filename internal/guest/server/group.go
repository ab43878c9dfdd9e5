package server

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// group is everything that one command is and starts.
type group interface {
	// Add puts the leader in; what it forks is in it too.
	Add(pid int) error
	Signal(sig syscall.Signal) error
	// Kill returns nil when nothing in it is alive.
	Kill(ctx context.Context) error
	// Limit caps what is in it; cgroup.ErrUnsupported where that cannot be.
	Limit(memory int64, cores float64) error
	Usage() (cgroup.Usage, error)
	Remove() error
}

// groupMaker makes a group per command: a cgroup where some were delegated, a
// tag where not.
type groupMaker struct {
	tree *cgroup.Tree
	// late is whether counters of the tree tell what those of a group do not.
	late bool
	tags *tagRange
	// around are the counters of the sandbox's own cgroup.
	around around
	next   atomic.Int64
}

func newGroupMaker(tree *cgroup.Tree) (*groupMaker, error) {
	if tree != nil {
		return &groupMaker{tree: tree, late: !slices.Contains(tree.Hierarchies(), cgroup.Pids)}, nil
	}
	tags, err := newTagRange()
	if err != nil {
		return nil, err
	}
	return &groupMaker{tags: tags, around: findAround("/sys/fs/cgroup")}, nil
}

// kind is "cgroup" or "tag".
func (m *groupMaker) kind() string {
	if m.tree != nil {
		return "cgroup"
	}
	return "tag"
}

// make makes a group and says which supplementary groups its leader needs.
func (m *groupMaker) make() (group, []uint32, error) {
	if m.tree == nil {
		t, err := m.tags.take()
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

// counters are those of all commands together, where a group's own do not
// tell of a cap that it met with others, or there are none.
func (m *groupMaker) counters() cgroup.Usage {
	if m.tree == nil {
		return m.around.read()
	}
	if !m.late {
		return cgroup.Usage{}
	}
	u, err := m.tree.Usage()
	if err != nil {
		return cgroup.Usage{}
	}
	return u
}
