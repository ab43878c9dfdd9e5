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

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Commands created the trees that are walked here. Names are arbitrary bytes, and a tree can be as
// deep and wide as its file system allows. So directories are opened one at a time from the tree's
// root, symbolic links are never followed, and memory is bounded.
//
// Paths are relative to their tree; "" is the root.

// maxTreeEntries limits the files and directories of a walk.
const maxTreeEntries = 2 << 20

// maxTreeBytes limits the total length of a tree's directory paths, which a clone keeps in memory.
const maxTreeBytes = 64 << 20

// maxTreePath is the kernel's limit for a path.
const maxTreePath = unix.PathMax - 1

// tree is an open directory with everything below it.
type tree struct{ top *os.File }

// openTree opens a directory that only this service can replace.
func openTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return &tree{top: os.NewFile(uintptr(fd), dir)}, nil
}

func (t *tree) close() error { return t.top.Close() }

// openDir opens a directory of the tree for reading.
func (t *tree) openDir(rel string) (*os.File, error) {
	return t.open(rel, unix.O_RDONLY|unix.O_DIRECTORY)
}

func (t *tree) open(rel string, flags uint64) (*os.File, error) {
	if len(rel) > maxTreePath {
		return nil, fmt.Errorf("path %q is longer than %d bytes: %w",
			clip.Message(rel), maxTreePath, errdefs.ErrFailedPrecondition)
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
		case unix.EINTR, unix.EAGAIN: // A directory was moved during the lookup.
			continue
		}
		return nil, &os.PathError{Op: "open", Path: rel, Err: err}
	}
}

// openRegular opens a regular file for reading. It checks the type before it opens the file for
// reading.
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
		return nil, st, fmt.Errorf("%q is not a regular file: %w", clip.Message(rel), errdefs.ErrFailedPrecondition)
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fdOf(handle)), os.O_RDONLY|unix.O_NONBLOCK, 0)
	return f, st, err
}

// stat describes rel without following links. found is false if it does not exist, or a part of its
// path is not a directory.
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

// isMissing reports whether an error means that a path does not exist. A symbolic link on the way
// counts as missing.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// readLink returns the target of the symbolic link at rel.
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

// eachName calls do for every name in an open directory, in no order.
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

// statAt describes a name in an open directory without following links.
func statAt(dir *os.File, name string) (st unix.Stat_t, err error) {
	err = unix.Fstatat(fdOf(dir), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// walk calls do for everything below rel, a directory before its content. do reports whether to
// enter a directory. Entries that disappear during the walk are skipped.
func (t *tree) walk(ctx context.Context, rel string,
	do func(rel string, dir *os.File, name string, st *unix.Stat_t) (into bool, err error),
) error {
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
				return fmt.Errorf("more than %d files: %w", maxTreeEntries, errdefs.ErrResourceExhausted)
			}
			st, err := statAt(dir, name)
			if err == unix.ENOENT {
				return nil
			}
			if err != nil {
				return &os.PathError{Op: "stat", Path: clip.Message(path.Join(at, name)), Err: err}
			}
			below := joinName(at, name)
			into, err := do(below, dir, name, &st)
			if !into || err != nil {
				return err
			}
			if names += len(below); names > maxTreeBytes {
				return fmt.Errorf("directory paths have more than %d bytes in total: remove some directories: %w",
					maxTreeBytes, errdefs.ErrResourceExhausted)
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

// joinName joins a directory and a name without cleaning them.
func joinName(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// parents returns the directories above rel, innermost first, without the root.
func parents(rel string) []string {
	var out []string
	for i := strings.LastIndexByte(rel, '/'); i >= 0; i = strings.LastIndexByte(rel, '/') {
		rel = rel[:i]
		out = append(out, rel)
	}
	return out
}

func fdOf(f *os.File) int { return int(f.Fd()) }

// makeDir creates a directory for the commands' user.
func makeDir(dir *os.File, name string, mode uint32) error {
	if err := unix.Mkdirat(fdOf(dir), name, 0o700); err != nil {
		return err
	}
	return setDir(dir, name, mode)
}

// setDir gives a directory to the commands' user and drops special mode bits.
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
