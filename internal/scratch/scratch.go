// Package scratch makes temporary directories that are removed even if their process is killed.
//
// A directory is locked while its process uses it. Sweep removes directories that no process has
// locked. The kernel releases a lock when its process ends, so Sweep needs neither ages nor process
// ids. All functions may be called concurrently, also by several processes. The package starts no
// goroutines.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// Dir is a locked temporary directory. Use Make.
type Dir struct {
	// Path is the path of the directory.
	Path string
	lock *os.File
}

// Make creates a directory with mode 0700 in parent, whose name starts with prefix, and locks it.
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
		// A concurrent Sweep removed it before it was locked.
	}
}

// Remove removes the directory and its content, and then releases the lock.
func (d *Dir) Remove() error { return errors.Join(os.RemoveAll(d.Path), d.Release()) }

// Release releases the lock and keeps the directory. It is for a directory that was renamed.
func (d *Dir) Release() error { return d.lock.Close() }

// Sweep removes the directories in parent whose names start with prefix and that no process has
// locked. It first calls undo, if not nil, with the locked directory. A missing parent is not an
// error. Sweep removes nothing from a parent that other users can write to: the names may be
// theirs.
func Sweep(parent, prefix string, undo func(dir string) error) error {
	const others = 0o022 // write permission of group and others
	info, err := os.Stat(parent)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm()&others != 0 {
		return nil
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("list temporary directories: %w", err)
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

// take locks the directory at path. It returns nil if another process has locked it, or if it is
// gone.
func take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|hostfile.Directory, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if locked, err := hostfile.TryLock(f, hostfile.Exclusive); !locked {
		return nil, errors.Join(err, f.Close())
	}
	had, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if is, err := os.Lstat(path); err != nil || !os.SameFile(had, is) {
		return nil, f.Close() // removed or renamed before it was locked
	}
	return f, nil
}
