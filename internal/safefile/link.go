package safefile

import (
	"path"

	"golang.org/x/sys/unix"
)

// Symlink makes the symbolic link p with the given target, and the directories above it. It does
// not check the target. It returns false if the same link existed already. Any other file with that
// name is AlreadyExists.
func (r *Root) Symlink(p, target string) (bool, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return false, err
	}
	if name == "." {
		return false, invalid("path", "is the root directory")
	}
	if dir := path.Dir(name); dir != "." {
		if err := r.mkdirAll(dir, 0o755); err != nil {
			return false, err
		}
	}
	dir, base, err := r.openParent("path", name)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	err = retryEINTR(func() error { return unix.Symlinkat(target, fd(dir), base) })
	if err == unix.EEXIST {
		if info, serr := statAt(fd(dir), base, name); serr == nil && info.Type == TypeSymlink && info.Target == target {
			return false, nil
		}
	}
	if err != nil {
		return false, newError("make link", "path", name, err)
	}
	return true, nil
}
