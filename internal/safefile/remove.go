package safefile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Remove removes p. A link is removed itself. A directory that is not empty needs recursive. If ctx
// ends or a file cannot be removed, an arbitrary part of the tree is left.
func (r *Root) Remove(ctx context.Context, p string, recursive bool) error {
	dir, base, name, err := r.openEntry("path", p)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unlink(fd(dir), base)
	if errors.Is(err, unix.ENOTEMPTY) && recursive {
		err = removeTree(ctx, fd(dir), base)
	}
	if err != nil {
		return newError("remove", "path", name, err)
	}
	return nil
}

// unlink removes a file or an empty directory.
func unlink(dir int, base string) error {
	err := retryEINTR(func() error { return unix.Unlinkat(dir, base, 0) })
	if err == unix.EISDIR {
		err = retryEINTR(func() error { return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR) })
	}
	return err
}

// treeRemover empties a directory. It flattens non-empty subdirectories: it removes their files and
// moves their directories up to top. So only two directories are open at a time, however deep the
// tree is.
type treeRemover struct {
	top    *os.File
	dev    uint64
	prefix string
	n      int
}

// removeTree removes the directory base with everything below it.
func removeTree(ctx context.Context, dir int, base string) error {
	top, err := openDir(dir, base)
	if err != nil {
		return err
	}
	defer top.Close()
	dev, err := deviceOf(top)
	if err != nil {
		return err
	}
	t := &treeRemover{top: top, dev: dev, prefix: ".gone-" + rand.Text()[:8] + "-"}
	if err := t.empty(ctx, top, t.flatten); err != nil {
		return err
	}
	return ignoreNotExist(unlink(dir, base))
}

// empty removes the content of dir, and calls full for directories that are not empty. Reading a
// directory can miss names that appear during the read, so it repeats until a pass finds nothing.
func (t *treeRemover) empty(ctx context.Context, dir *os.File, full func(context.Context, string) error) error {
	for found := true; found; {
		found = false
		if _, err := dir.Seek(0, 0); err != nil {
			return err
		}
		err := eachName(ctx, dir, func(base string) (bool, error) {
			found = true
			err := unlink(fd(dir), base)
			if err == unix.ENOTEMPTY {
				err = full(ctx, base)
			}
			err = ignoreNotExist(err)
			return err == nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// flatten removes the directory base of top, after it moved base's directories to top.
func (t *treeRemover) flatten(ctx context.Context, base string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	dir, err := openDir(fd(t.top), base)
	if err != nil {
		return err
	}
	defer dir.Close()
	// Do not empty another file system that is mounted here.
	if dev, err := deviceOf(dir); err != nil || dev != t.dev {
		return errors.Join(err, unix.EXDEV)
	}
	err = t.empty(ctx, dir, func(ctx context.Context, sub string) error { return t.moveUp(ctx, dir, sub) })
	if err != nil {
		return err
	}
	return unlink(fd(t.top), base)
}

// moveUp moves the directory sub of dir to top under a new name. If there is no space for the name,
// it frees some, so that a full file system can be emptied too.
func (t *treeRemover) moveUp(ctx context.Context, dir *os.File, sub string) error {
	const tries = 100 // in case another process creates the same names
	opened := false
	for left := tries; left > 0; left-- {
		t.n++
		err := unix.Renameat(fd(dir), sub, fd(t.top), t.prefix+strconv.Itoa(t.n))
		switch {
		case err == unix.EACCES && !opened:
			// Its ".." changes, so the directory itself must be writable.
			opened = true
			if err := makeAccessible(fd(dir), sub); err != nil {
				return err
			}
		case err == unix.ENOSPC || err == unix.EDQUOT:
			if err := t.freeSpace(ctx, dir, sub); err != nil {
				return err
			}
			left++ // a file was removed, so this loop ends
		case err == unix.EEXIST || err == unix.ENOTEMPTY || err == unix.ENOTDIR || err == unix.EINTR:
		default:
			return err
		}
	}
	return unix.EBUSY
}

// freeSpace removes one file or directory from the depths of sub, or sub itself if it is empty, and
// waits until its space is free. Two directories are open at a time.
func (t *treeRemover) freeSpace(ctx context.Context, dir *os.File, sub string) error {
	at, own := fd(dir), (*os.File)(nil)
	defer func() {
		if own != nil {
			own.Close()
		}
	}()
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := unlink(at, sub)
		if err == nil {
			return os.NewSyscallError("fsync", unix.Fsync(fd(t.top)))
		}
		if err != unix.ENOTEMPTY {
			return err
		}
		below, err := openDir(at, sub)
		if err != nil {
			return err
		}
		if own != nil {
			own.Close()
		}
		at, own = fd(below), below
		if dev, err := deviceOf(below); err != nil || dev != t.dev {
			return errors.Join(err, unix.EXDEV)
		}
		names, err := below.Readdirnames(1)
		if err != nil { // Another process emptied it.
			return ignoreEOF(err)
		}
		sub = names[0]
	}
}

// openDir opens a directory to empty it. It restores permissions that the owner removed, as
// read-only caches do.
func openDir(dir int, base string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	open := func() (n int, err error) {
		err = retryEINTR(func() (err error) { n, err = unix.Openat(dir, base, flags, 0); return })
		return n, err
	}
	n, err := open()
	if err == unix.EACCES {
		if err = makeAccessible(dir, base); err == nil {
			n, err = open()
		}
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if unix.Fstat(n, &st) == nil && st.Mode&0o700 != 0o700 {
		_ = unix.Fchmod(n, 0o700) // If this fails, unlink reports the error.
	}
	return os.NewFile(uintptr(n), base), nil
}

// makeAccessible gives the owner all permissions on a directory that cannot be opened. Before Linux
// 6.6, fchmodat always follows links, so it uses an O_PATH descriptor in /proc.
func makeAccessible(dir int, base string) error {
	n, err := unix.Openat(dir, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(n)
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", n), 0o700)
}

func deviceOf(f *os.File) (uint64, error) {
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Fstat(fd(f), &st) })
	return st.Dev, err
}

// ignoreNotExist returns nil for ENOENT: another process removed the file.
func ignoreNotExist(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}
