package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// What is walked here was made by commands: paths are octets, a name can be
// anything, and a tree as deep or wide as its file system allows. So folders
// are opened one at a time from the tree's root, no part of a path is followed
// if it is a link, and what is remembered is bounded.
//
// A path is relative to its tree, "" for the root.

// maxTreeEntries is how many files and folders of a tree are looked at.
const maxTreeEntries = 2 << 20

// maxTreeBytes is how many octets the paths of its folders have together: all of
// them are remembered while it is cloned.
const maxTreeBytes = 64 << 20

// maxTreePath is the longest path in a tree, of the kernel.
const maxTreePath = unix.PathMax - 1

// tree is an open folder with what is below it.
type tree struct{ top *os.File }

// openTree opens a folder that the caller vouches for.
func openTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return &tree{top: os.NewFile(uintptr(fd), dir)}, nil
}

func (t *tree) close() error { return t.top.Close() }

// openDir opens a folder of the tree for reading.
func (t *tree) openDir(rel string) (*os.File, error) {
	return t.open(rel, unix.O_RDONLY|unix.O_DIRECTORY)
}

func (t *tree) open(rel string, flags uint64) (*os.File, error) {
	if len(rel) > maxTreePath {
		return nil, fmt.Errorf("%q is longer than %d octets: %w", shorten(rel), maxTreePath, errdefs.ErrFailedPrecondition)
	}
	at := rel
	if at == "" {
		at = "."
	}
	how := unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(fdOf(t.top), at, &how)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), rel), nil
		case unix.EINTR, unix.EAGAIN: // something was moved meanwhile
			continue
		}
		return nil, &os.PathError{Op: "open", Path: rel, Err: err}
	}
}

// openRegular opens a regular file for reading; anything else is an error and is
// not opened for more than a look.
func (t *tree) openRegular(rel string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	handle, err := t.open(rel, unix.O_PATH)
	if err != nil {
		return nil, st, err
	}
	defer handle.Close()
	if err := unix.Fstat(fdOf(handle), &st); err != nil {
		return nil, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, st, fmt.Errorf("%q is not a regular file: %w", shorten(rel), errdefs.ErrFailedPrecondition)
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fdOf(handle)), os.O_RDONLY|unix.O_NONBLOCK, 0)
	return f, st, err
}

// stat describes what is at rel itself; found is false where nothing is, and
// where something on the way is no folder.
func (t *tree) stat(rel string) (st unix.Stat_t, found bool, err error) {
	f, err := t.open(rel, unix.O_PATH)
	if isMissing(err) {
		return st, false, nil
	}
	if err != nil {
		return st, false, err
	}
	defer f.Close()
	err = unix.Fstat(fdOf(f), &st)
	return st, err == nil, err
}

// isMissing says whether an error means that a name is not there. A link on the
// way is no folder of the tree.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// readLink is the text of the symbolic link at rel.
func (t *tree) readLink(rel string) (string, error) {
	f, err := t.open(rel, unix.O_PATH)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return readLinkAt(fdOf(f), "")
}

func readLinkAt(dir int, name string) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// eachName calls do for every name in an open folder, in no order.
func eachName(ctx context.Context, dir *os.File, do func(name string) error) error {
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// statAt describes name in an open folder.
func statAt(dir *os.File, name string) (st unix.Stat_t, err error) {
	err = unix.Fstatat(fdOf(dir), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// walk calls do for everything in the tree below rel, a folder before what is in
// it. do says whether to go into a folder. What goes away meanwhile is left out.
func (t *tree) walk(ctx context.Context, rel string, do func(rel string, dir *os.File, name string, st *unix.Stat_t) (into bool, err error)) error {
	todo, seen, names := []string{rel}, 0, 0
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		dir, err := t.openDir(at)
		if isMissing(err) && at != "" {
			continue
		}
		if err != nil {
			return err
		}
		err = eachName(ctx, dir, func(name string) error {
			if seen++; seen > maxTreeEntries {
				return fmt.Errorf("there are more than %d files: %w", maxTreeEntries, errdefs.ErrResourceExhausted)
			}
			st, err := statAt(dir, name)
			if err == unix.ENOENT {
				return nil
			}
			if err != nil {
				return &os.PathError{Op: "stat", Path: shorten(path.Join(at, name)), Err: err}
			}
			below := joinName(at, name)
			into, err := do(below, dir, name, &st)
			if !into || err != nil {
				return err
			}
			if names += len(below); names > maxTreeBytes {
				return fmt.Errorf("its folders have paths of more than %d octets together, remove some: %w", maxTreeBytes, errdefs.ErrResourceExhausted)
			}
			todo = append(todo, below)
			return nil
		})
		if err := errors.Join(err, dir.Close()); err != nil {
			return err
		}
	}
	return nil
}

// joinName is path.Join for names that are no paths.
func joinName(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// parents are the folders above rel, the nearest first, without the root.
func parents(rel string) []string {
	var out []string
	for i := strings.LastIndexByte(rel, '/'); i >= 0; i = strings.LastIndexByte(rel, '/') {
		rel = rel[:i]
		out = append(out, rel)
	}
	return out
}

// shorten shortens what is said of a path.
func shorten(rel string) string {
	const most = 200
	if len(rel) > most {
		rel = rel[:most] + "…"
	}
	return strings.ToValidUTF8(rel, "\uFFFD")
}

func fdOf(f *os.File) int { return int(f.Fd()) }

// makeDir makes the folder name for the commands' user.
func makeDir(dir *os.File, name string, mode uint32) error {
	if err := unix.Mkdirat(fdOf(dir), name, 0o700); err != nil {
		return err
	}
	return setDir(dir, name, mode)
}

// setDir gives a folder to the commands' user, without special bits.
func setDir(dir *os.File, name string, mode uint32) error {
	fd, err := unix.Openat(fdOf(dir), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, runtime.CommandUID, runtime.CommandGID); err != nil {
		return err
	}
	return unix.Fchmod(fd, mode&0o777)
}
