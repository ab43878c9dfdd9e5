package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// Bounds of a context.
const (
	MaxContext    = 4 << 30 // octets of the tar
	maxDockerfile = 1 << 20
	maxEntries    = 200_000
	ignoreFile    = ".dockerignore"
)

// Pack writes a folder as a tar, without what its .dockerignore names. The
// Dockerfile, a path in the folder, and .dockerignore itself are always in it:
// the engine leaves them out of what it copies. Sockets, devices and the like
// are left out.
func Pack(ctx context.Context, dir, dockerfile string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("build context: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer root.Close()
	dockerfile = path.Clean(filepath.ToSlash(dockerfile))
	if info, err := root.Stat(dockerfile); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("build context %s has no file %s: %w", dir, dockerfile, errdefs.ErrInvalidArgument)
	}
	ignored, err := ignores(root)
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if name == "." {
			return nil
		}
		skip, err := ignored.MatchesOrParentMatches(name)
		if err != nil {
			return fmt.Errorf("%s: %w: %w", ignoreFile, err, errdefs.ErrInvalidArgument)
		}
		if skip && name != dockerfile && name != ignoreFile {
			// Below a folder, an exception or the Dockerfile may still be.
			if d.IsDir() && !ignored.Exclusions() && !strings.HasPrefix(dockerfile, name+"/") {
				return fs.SkipDir
			}
			return nil
		}
		return add(t, root, name, d)
	})
	if err != nil {
		return fmt.Errorf("pack the build context: %w", err)
	}
	return t.Close()
}

func ignores(root *os.Root) (*patternmatcher.PatternMatcher, error) {
	var patterns []string
	// Without O_NONBLOCK a FIFO would wait for its writer.
	f, err := root.OpenFile(ignoreFile, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case err == nil:
		defer f.Close()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a file: %w", ignoreFile, errdefs.ErrInvalidArgument)
		}
		if patterns, err = ignorefile.ReadAll(io.LimitReader(f, maxDockerfile)); err != nil {
			return nil, fmt.Errorf("%s: %w", ignoreFile, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", ignoreFile, err)
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", ignoreFile, err, errdefs.ErrInvalidArgument)
	}
	return m, nil
}

// add writes one entry; all belongs to root, as with other tools.
func add(t *tar.Writer, root *os.Root, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = root.Readlink(name); err != nil {
			return err
		}
	default:
		return nil
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(t, f, h.Size)
	return err
}

// Find reads the Dockerfile out of a context's tar.
func Find(r io.Reader, dockerfile string) ([]byte, error) {
	dockerfile = path.Clean("/" + dockerfile)
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			return nil, bad("the build context has no file %s", dockerfile[1:])
		}
		if err != nil {
			return nil, bad("the build context is not a tar, or is damaged: %v", err)
		}
		if n >= maxEntries {
			return nil, bad("the build context has more than %d entries", maxEntries)
		}
		if path.Clean("/"+h.Name) != dockerfile {
			continue
		}
		if h.Typeflag != tar.TypeReg || h.Size > maxDockerfile {
			return nil, bad("%s is no file of at most %d bytes", dockerfile[1:], maxDockerfile)
		}
		return io.ReadAll(io.LimitReader(t, maxDockerfile))
	}
}

// Rewrite copies a context's tar with another content of its Dockerfile.
func Rewrite(r io.Reader, w io.Writer, dockerfile string, content []byte) error {
	dockerfile = path.Clean("/" + dockerfile)
	in, out := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return bad("the build context is not a tar, or is damaged: %v", err)
		}
		if path.Clean("/"+h.Name) == dockerfile {
			own := &tar.Header{Typeflag: tar.TypeReg, Name: h.Name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
			if err := out.WriteHeader(own); err != nil {
				return err
			}
			if _, err := out.Write(content); err != nil {
				return err
			}
			continue
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
