package safefile

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// The types of a file.
const (
	TypeFile    = "file"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
	TypeOther   = "other"
)

// Info describes a file. In Name, Path and Target, bytes that are not UTF-8 are replaced by U+FFFD.
// Such a file is listed, but cannot be opened by its name.
type Info struct {
	Name    string
	Path    string // relative to the root; "." is the root
	Type    string
	Size    int64
	Mode    uint32 // permission bits with setuid, setgid and sticky
	UID     uint32
	GID     uint32
	ModTime time.Time
	Target  string // of a symbolic link
}

// statAt describes base in the directory dir. name is its path from the root.
func statAt(dir int, base, name string) (Info, error) {
	var st unix.Stat_t
	if err := retryEINTR(func() error { return unix.Fstatat(dir, base, &st, noFollow) }); err != nil {
		return Info{}, err
	}
	info := newInfo(&st, name)
	if info.Type == TypeSymlink {
		buf := make([]byte, MaxPath)
		// A link that was replaced since has no target.
		if n, err := unix.Readlinkat(dir, base, buf); err == nil {
			info.Target = clip.Valid(string(buf[:n]))
		}
	}
	return info, nil
}

func statFile(f *os.File, name string) (Info, error) {
	var st unix.Stat_t
	if err := retryEINTR(func() error { return unix.Fstat(fd(f), &st) }); err != nil {
		return Info{}, err
	}
	return newInfo(&st, name), nil
}

func newInfo(st *unix.Stat_t, name string) Info {
	return Info{
		Name: clip.Valid(path.Base(name)), Path: clip.Valid(name), Type: typeOf(st.Mode),
		Size: st.Size, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
}

func typeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return TypeFile
	case unix.S_IFDIR:
		return TypeDir
	case unix.S_IFLNK:
		return TypeSymlink
	}
	return TypeOther
}

// List describes the entries of the directory p, sorted by name. It stops after limit entries, or
// at the first one for which fits returns false. In that case it returns true, and the entries are
// an arbitrary subset.
func (r *Root) List(ctx context.Context, p string, limit int, fits func(Info) bool) ([]Info, bool, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return nil, false, err
	}
	dir, err := r.open("path", name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, false, newError("open", "path", name, err)
	}
	defer dir.Close()
	items := []Info{}
	more := false
	err = eachName(ctx, dir, func(base string) (bool, error) {
		info, err := statAt(fd(dir), base, path.Join(name, base))
		if os.IsNotExist(err) {
			return true, nil // It was removed since.
		}
		if err != nil {
			return false, err
		}
		if more = len(items) >= limit || fits != nil && !fits(info); more {
			return false, nil
		}
		items = append(items, info)
		return true, nil
	})
	if err != nil {
		return nil, false, newError("list", "path", name, err)
	}
	slices.SortFunc(items, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return items, more, nil
}

// eachName calls f for every name in dir until f returns false.
func eachName(ctx context.Context, dir *os.File, f func(base string) (bool, error)) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if more, err := f(name); err != nil || !more {
				return err
			}
		}
		if len(names) == 0 || err != nil {
			return ignoreEOF(err)
		}
	}
}
