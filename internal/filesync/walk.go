package filesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// walk visits everything below a directory, each directory before its content, in the file system's
// order. It does not follow links, and skips entries that disappear. visit reports whether to enter
// a directory.
func walk(ctx context.Context, root *os.Root, visit func(name string, info fs.FileInfo) (bool, error)) error {
	open := []string{"."}
	for len(open) > 0 {
		dir := open[len(open)-1]
		open = open[:len(open)-1]
		below, err := walkDir(ctx, root, dir, visit)
		if err != nil {
			return err
		}
		open = append(open, below...)
	}
	return nil
}

// walkDir visits the entries of one directory and returns the directories to enter.
func walkDir(ctx context.Context, root *os.Root, dir string,
	visit func(name string, info fs.FileInfo) (bool, error),
) (below []string, err error) {
	f, err := openDir(root, dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open directory %.200q: %w", dir, err)
	}
	defer func() { _ = f.Close() }()
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		entries, err := f.ReadDir(readDirBatch)
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			if name == StageName {
				continue
			}
			info, err := root.Lstat(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("stat %.200q: %w", name, err)
			}
			enter, err := visit(name, info)
			if err != nil {
				return nil, err
			}
			if enter && info.IsDir() {
				below = append(below, name)
			}
		}
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read directory %.200q: %w", dir, err)
		}
	}
}

// openDir opens a directory, even if its owner removed the permissions.
func openDir(root *os.Root, name string) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := root.OpenFile(name, flags, 0)
	if !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	if root.Chmod(name, ownerEnters) != nil {
		return nil, err
	}
	return root.OpenFile(name, flags, 0)
}

// openFile opens a regular file, even if its owner removed the read permission.
func openFile(root *os.Root, name string, mode fs.FileMode) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := root.OpenFile(name, flags, 0)
	if !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	if root.Chmod(name, mode.Perm()|ownerReads) != nil {
		return nil, err
	}
	f, err = root.OpenFile(name, flags, 0)
	return f, errors.Join(err, root.Chmod(name, mode.Perm()))
}
