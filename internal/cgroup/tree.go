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

// Tree is the guest's view of its delegated cgroups. It is safe for concurrent use.
type Tree struct {
	dirs []hierarchyDir // in the order of Names
}

// hierarchyDir is a directory with its hierarchy.
type hierarchyDir struct {
	dir
	kind string
}

// OpenTree opens the delegated cgroups bound below dir, one directory per hierarchy ([Names]). A
// missing directory, or one without a cgroup mount, means that the hierarchy is not used. It
// returns ErrNone if none is used.
//
// The descriptors stay open: later mounts are not seen, and a cgroup stays usable after its
// unmount.
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
				t.dirs = append(t.dirs, hierarchyDir{dir: d, kind: kind})
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

// isCgroup checks the file system type: an empty directory without its mount is not a cgroup.
func isCgroup(d dir) (bool, error) {
	var st unix.Statfs_t
	if err := d.withFD(func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return false, fmt.Errorf("statfs: %w", err)
	}
	return st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

// Close closes the descriptors. Existing groups stay usable except for Remove.
func (t *Tree) Close() error {
	errs := make([]error, 0, len(t.dirs))
	for _, d := range t.dirs {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Hierarchies returns the hierarchies in use, a subset of [Names].
func (t *Tree) Hierarchies() []string {
	names := make([]string, 0, len(t.dirs))
	for _, d := range t.dirs {
		names = append(names, d.kind)
	}
	return names
}

var groupName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Make makes a group in every hierarchy. The name must match [a-z0-9-]{1,64}. If it is in use, the
// error wraps fs.ErrExist.
func (t *Tree) Make(name string) (*Group, error) {
	if !groupName.MatchString(name) {
		return nil, fmt.Errorf("make group: name %.80q is not of the form %s", name, groupName)
	}
	g := &Group{name: name, tree: t}
	g.denied.Store(-1)
	for _, parent := range t.dirs {
		if err := parent.mkdir(name); err != nil {
			g.rollBack()
			return nil, fmt.Errorf("make group %s/%s: %w", parent.name, name, unwrapPath(err))
		}
		g.madeCount++
		d, err := parent.open(name)
		if err == nil {
			g.dirs = append(g.dirs, hierarchyDir{dir: d, kind: parent.kind})
			err = initGroup(parent.dir, d, parent.kind)
		}
		if err != nil {
			g.rollBack()
			return nil, fmt.Errorf("make group %s: %w", name, err)
		}
	}
	return g, nil
}

// initGroup sets what a group does not inherit from its parent.
//
// memory.kmem.tcp (v1): see inheritSockets. The others are v2.
//
// memory.oom.group: at the cap of all commands the kernel picks one victim. With this option the
// victim's whole command dies, and no other. A command that loses one process, for example a build
// its compiler, rarely fails with a clear message and often hangs.
//
// pids.max: since kernel 6.11 a rejected fork is counted where the cap is set. With the same cap on
// each group, a command that fills it alone can be identified. If several commands fill it
// together, only the tree's counter changes.
func initGroup(parent, d dir, kind string) error {
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
	if isGone(err) {
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

// Usage returns the usage of all commands together since the tree was made, see [Group.Usage]. On
// v1, OOMKills and PidsDenied are counted per group only and are 0 here.
func (t *Tree) Usage() (Usage, error) { return readUsage(t.dirs) }
