// Package scratch makes temporary directories that do not outlive a killed process for long.
//
// A directory is locked while its process uses it. Sweep removes those that no process has locked.
// The kernel releases a lock when its process dies, so that Sweep needs no ages and no process ids.
// All functions may be called concurrently, by several processes too. The package starts no
// goroutine.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is a locked temporary directory. Use Make.
type Dir struct {
	// Path is where it was made.
	Path string
	lock *os.File
}

// Make makes a directory of mode 0700 in parent, whose name begins with prefix, and locks it.
func Make(parent, prefix string) (*Dir, error) {
	for {
		path, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, err
		}
		lock, err := take(path)
		if err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		if lock != nil {
			return &Dir{path, lock}, nil
		}
		// A sweep was between the two calls, and has removed it.
	}
}

// Remove removes the directory with all that is in it. The lock is held until then.
func (d *Dir) Remove() error { return errors.Join(os.RemoveAll(d.Path), d.Release()) }

// Release gives the lock back and leaves the directory. It is for one that was renamed.
func (d *Dir) Release() error { return d.lock.Close() }

// Sweep removes the directories in parent whose names begin with prefix and that no process uses.
// undo is called first, with the directory locked; it may be nil. A parent that does not exist has
// none. Sweep removes nothing in a parent that other users can write to: the names may be theirs.
func Sweep(parent, prefix string, undo func(dir string) error) error {
	const others = 0o022 // group and others, to write
	info, err := os.Stat(parent)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm()&others != 0 {
		return nil
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("look for temporary directories: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.IsDir() {
			errs = append(errs, sweep(filepath.Join(parent, e.Name()), undo))
		}
	}
	return errors.Join(errs...)
}

func sweep(path string, undo func(dir string) error) error {
	lock, err := take(path)
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	if undo != nil {
		if err := undo(path); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return os.RemoveAll(path)
}

// take locks the directory at path. It returns nil where another process has it, or it is gone.
func take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	had, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if is, err := os.Lstat(path); err != nil || !os.SameFile(had, is) {
		return nil, f.Close() // removed, or renamed, before it was locked
	}
	return f, nil
}
