package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is the guest's view of its delegated cgroups. Safe for concurrent use.
type Tree struct {
	dirs []member // in the order of Names
}

// member is a directory with its hierarchy.
type member struct {
	dir
	kind string
}

// OpenTree opens the delegated cgroups bound below dir, one folder per hierarchy ([Names]). A folder that is missing, or has no cgroup bound to it, is
// a hierarchy that is not in use. ErrNone where none is.
//
// The descriptors are kept: what is bound there later is not seen, what is unbound later stays usable.
func OpenTree(dir string) (*Tree, error) { return openTree(dir, isCgroup) }

func openTree(path string, real func(dir) (bool, error)) (*Tree, error) {
	root, err := openDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("open cgroup tree: %w", err)
	}
	defer root.Close()
	t := &Tree{}
	for _, kind := range Names() {
		d, err := root.open(kind)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			d.name = kind
			var ok bool
			if ok, err = real(d); !ok {
				d.Close()
			} else {
				t.dirs = append(t.dirs, member{dir: d, kind: kind})
			}
		}
		if err != nil {
			t.Close()
			return nil, fmt.Errorf("open cgroup tree: %w", err)
		}
	}
	if len(t.dirs) == 0 {
		return nil, ErrNone
	}
	return t, nil
}

// isCgroup asks the kernel which file system this is: an empty folder that waits for its mount is not one.
func isCgroup(d dir) (bool, error) {
	var st unix.Statfs_t
	if err := d.at(func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return false, fmt.Errorf("statfs: %w", err)
	}
	return st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

// Close gives the descriptors back. Groups made before stay usable except for Remove.
func (t *Tree) Close() error {
	var errs []error
	for _, d := range t.dirs {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Hierarchies names what is in use, a subset of [Names].
func (t *Tree) Hierarchies() []string {
	var names []string
	for _, d := range t.dirs {
		names = append(names, d.kind)
	}
	return names
}

var groupName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Make makes one group in every hierarchy. The name is of [a-z0-9-], at most 64; one that is in use is an error that is fs.ErrExist.
func (t *Tree) Make(name string) (*Group, error) {
	if !groupName.MatchString(name) {
		return nil, fmt.Errorf("make group: name %.80q is not of the form %s", name, groupName)
	}
	g := &Group{name: name, tree: t}
	g.denied.Store(-1)
	for _, parent := range t.dirs {
		if err := parent.mkdir(name); err != nil {
			g.undo()
			return nil, fmt.Errorf("make group %s/%s: %w", parent.name, name, bare(err))
		}
		g.made++
		d, err := parent.open(name)
		if err == nil {
			g.dirs = append(g.dirs, member{dir: d, kind: parent.kind})
			err = prepare(parent.dir, d, parent.kind)
		}
		if err != nil {
			g.undo()
			return nil, fmt.Errorf("make group %s: %w", name, err)
		}
	}
	return g, nil
}

// prepare sets what a group does not have from its parent.
//
// memory.kmem.tcp (v1): see inheritSockets. The others are of v2.
//
// memory.oom.group: when the cap of all commands is met the kernel picks one victim; with this the whole exec it belongs to dies, and no other. An
// exec that lost one process in the middle (a compiler below a build, a worker of a pool) rarely ends in a way that tells anyone why, and often
// hangs; so the exec is the unit that fails, and it is the one that is named oom.
//
// pids.max: since kernel 6.11 a refused fork is counted where the cap is, not where the fork was. The same cap on the exec's own group lets the exec
// that fills it alone be named; where several filled it together only the tree's counter moves.
func prepare(parent, d dir, kind string) error {
	if kind == Memory {
		return inheritSockets(parent, d)
	}
	if kind != Unified {
		return nil
	}
	if d.has("memory.oom.group") {
		if err := d.write("memory.oom.group", "1"); err != nil {
			return err
		}
	}
	if !d.has("pids.max") {
		return nil
	}
	most, err := parent.read("pids.max")
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if most = strings.TrimSpace(most); most == "max" {
		return nil
	}
	if _, err := strconv.ParseInt(most, 10, 64); err != nil {
		return fmt.Errorf("%s/pids.max: %w", parent.name, err)
	}
	return d.write("pids.max", most)
}

// Usage is that of all commands together since the tree was made; see [Group.Usage]. On v1 OOMKills and PidsDenied are counted in the execs' groups
// only and stay 0 here.
func (t *Tree) Usage() (Usage, error) { return usage(t.dirs) }
