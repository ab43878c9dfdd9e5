package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// GiveTo lets the user owner of this host, and its group, make groups in the delegated cgroups
// and move its processes there: a guest in a user namespace is not root for the kernel. The files
// that hold the caps stay root's. It is idempotent.
//
// On the cgroup2 tree, a move needs write access to cgroup.procs of the closest common parent,
// which is that of the delegated cgroup.
func (d *Delegated) GiveTo(owner int) error {
	for name, dir := range d.Dirs {
		files := []string{dir, path.Join(dir, "cgroup.procs")}
		if name == Unified {
			files = append(files, path.Join(dir, "cgroup.subtree_control"), path.Join(path.Dir(dir), "cgroup.procs"))
		}
		for _, file := range files {
			if err := os.Lchown(file, owner, owner); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("give cgroup to user %d: %w", owner, err)
			}
		}
	}
	return nil
}
