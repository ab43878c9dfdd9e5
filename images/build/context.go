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

// Bounds of a build context.
const (
	MaxContext    = 4 << 30 // bytes of the tar
	maxDockerfile = 1 << 20
	maxEntries    = 200_000
	ignoreFile    = ".dockerignore"
)

// Pack writes a directory as a tar, without the files that its .dockerignore excludes. The
// Dockerfile, a path in the directory, and .dockerignore are always included; the engine excludes
// them from copies. Sockets, devices and FIFOs are skipped.
func Pack(ctx context.Context, dir, dockerfile string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("build context: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer root.Close()
	dockerfile = path.Clean(filepath.ToSlash(dockerfile))
	if info, err := root.Stat(dockerfile); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("build context %s: file %s not found: %w", dir, dockerfile, errdefs.ErrInvalidArgument)
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
			// An exception or the Dockerfile may be below the directory.
			if d.IsDir() && !ignored.Exclusions() && !strings.HasPrefix(dockerfile, name+"/") {
				return fs.SkipDir
			}
			return nil
		}
		return add(t, root, name, d)
	})
	if err != nil {
		return fmt.Errorf("pack build context: %w", err)
	}
	return t.Close()
}

func ignores(root *os.Root) (*patternmatcher.PatternMatcher, error) {
	var patterns []string
	// O_NONBLOCK: opening a FIFO must not wait for a writer.
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

// add writes one entry, owned by root as in contexts of other tools.
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

// ReadDockerfile returns the Dockerfile of a context in a tar.
func ReadDockerfile(r io.Reader, dockerfile string) ([]byte, error) {
	dockerfile = path.Clean("/" + dockerfile)
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			return nil, bad("file %s not found in the build context", dockerfile[1:])
		}
		if err != nil {
			return nil, bad("build context is an invalid or damaged tar: %v", err)
		}
		if n >= maxEntries {
			return nil, bad("build context has more than %d entries", maxEntries)
		}
		if path.Clean("/"+h.Name) != dockerfile {
			continue
		}
		if h.Typeflag != tar.TypeReg || h.Size > maxDockerfile {
			return nil, bad("%s must be a file of at most %d bytes", dockerfile[1:], maxDockerfile)
		}
		return io.ReadAll(io.LimitReader(t, maxDockerfile))
	}
}

// Rewrite copies a context in a tar and replaces the content of its Dockerfile.
func Rewrite(r io.Reader, w io.Writer, dockerfile string, content []byte) error {
	dockerfile = path.Clean("/" + dockerfile)
	in, out := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return bad("build context is an invalid or damaged tar: %v", err)
		}
		if path.Clean("/"+h.Name) == dockerfile {
			own := &tar.Header{Typeflag: tar.TypeReg, Name: h.Name, Mode: 0o644, Size: int64(len(content)),
				ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
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
