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

// Remove removes p, a link itself and not what it leads to. A folder that is
// not empty is removed with recursive only. When ctx ends, or something cannot
// be removed, what is left of a tree stays, in no particular shape.
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

// unlink removes a file or an empty folder.
func unlink(dir int, base string) error {
	err := retryEINTR(func() error { return unix.Unlinkat(dir, base, 0) })
	if err == unix.EISDIR {
		err = retryEINTR(func() error { return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR) })
	}
	return err
}

// treeRemover is a folder that is being emptied. A folder in it that is not empty is
// flattened: its files are removed, and its folders moved up into top. So
// there are two open folders at any time, however deep the tree is.
type treeRemover struct {
	top    *os.File
	dev    uint64
	prefix string
	n      int
}

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

// empty removes what is in dir, handing folders that are not empty to full.
// Names that appear while a folder is read may be missed: it goes on until a
// whole pass finds nothing.
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

// flatten removes the folder base of top, moving the folders in it to top.
func (t *treeRemover) flatten(ctx context.Context, base string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	dir, err := openDir(fd(t.top), base)
	if err != nil {
		return err
	}
	defer dir.Close()
	// Another filesystem mounted here is not ours to empty.
	if dev, err := deviceOf(dir); err != nil || dev != t.dev {
		return errors.Join(err, unix.EXDEV)
	}
	err = t.empty(ctx, dir, func(ctx context.Context, sub string) error { return t.moveUp(ctx, dir, sub) })
	if err != nil {
		return err
	}
	return unlink(fd(t.top), base)
}

// moveUp moves the folder sub of dir to top under a new name. Where there is no room
// for that name it makes some: a full file system can be emptied too.
func (t *treeRemover) moveUp(ctx context.Context, dir *os.File, sub string) error {
	const tries = 100 // against whoever makes the same names meanwhile
	opened := false
	for left := tries; left > 0; left-- {
		t.n++
		err := unix.Renameat(fd(dir), sub, fd(t.top), t.prefix+strconv.Itoa(t.n))
		switch {
		case err == unix.EACCES && !opened:
			// A folder's ".." changes, so it has to be writable itself.
			opened = true
			if err := makeAccessible(fd(dir), sub); err != nil {
				return err
			}
		case err == unix.ENOSPC || err == unix.EDQUOT:
			if err := t.freeSpace(ctx, dir, sub); err != nil {
				return err
			}
			left++ // something is gone: it comes to an end
		case err == unix.EEXIST || err == unix.ENOTEMPTY || err == unix.ENOTDIR || err == unix.EINTR:
		default:
			return err
		}
	}
	return unix.EBUSY
}

// freeSpace removes one file or folder from the depth of sub, or sub itself once it is
// empty, and waits until what that took is free. Two folders are open at a time.
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
		if err != nil { // somebody else emptied it
			return ignoreEOF(err)
		}
		sub = names[0]
	}
}

// openDir opens a folder to be emptied, making it accessible if its owner took
// that away, as read-only caches do.
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
		_ = unix.Fchmod(n, 0o700) // if it may not, unlinking says so
	}
	return os.NewFile(uintptr(n), base), nil
}

// makeAccessible gives the owner all rights on a folder that cannot be opened. There
// is no fchmodat that leaves links alone before Linux 6.6, so it goes by a
// handle and its name in /proc.
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

// ignoreNotExist takes "no such file" as success: somebody else removed it.
func ignoreNotExist(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}
