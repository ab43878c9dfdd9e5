package safefile

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// There are two ways to resolve a path. os.Root follows links that stay in the directory. With
// Options.NoFollow, each part is opened separately, and a link is an error. Names are clean and
// have no "..".

// linkRefused is the error for a symbolic link with NoFollow.
func linkRefused(field, p string) *Error {
	return &Error{
		Class: errdefs.ErrPermissionDenied, Field: field,
		Message: fmt.Sprintf("%q is a symbolic link: links are not followed here", p),
	}
}

// open opens name with the given flags, for reading or with O_PATH.
func (r *Root) open(field, name string, flags int) (*os.File, error) {
	if !r.opt.NoFollow {
		return r.dir.OpenFile(name, flags, 0)
	}
	top, err := r.openTop()
	if err != nil || name == "." && flags&unix.O_PATH != 0 {
		return top, err
	}
	defer top.Close()
	return r.openBelow(field, top, name, flags)
}

// openTop opens the root directory with O_PATH.
func (r *Root) openTop() (*os.File, error) {
	return r.dir.OpenFile(".", unix.O_PATH|unix.O_DIRECTORY, 0)
}

// openBelow opens name below a directory. A symbolic link in any part is an error.
func (r *Root) openBelow(field string, top *os.File, name string, flags int) (*os.File, error) {
	const handle = unix.O_PATH | unix.O_DIRECTORY
	at, own := fd(top), -1
	defer func() {
		if own >= 0 {
			unix.Close(own)
		}
	}()
	rest := name
	for {
		part, more, deeper := strings.Cut(rest, "/")
		how := flags
		if deeper {
			how = handle
		}
		n, err := openAt(at, part, how)
		if err == unix.ELOOP || err == unix.ENOTDIR && how&unix.O_DIRECTORY != 0 {
			if isLink(at, part) {
				return nil, linkRefused(field, strings.TrimSuffix(strings.TrimSuffix(name, more), "/"))
			}
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		if own >= 0 {
			unix.Close(own)
		}
		if !deeper {
			own = -1
			return os.NewFile(uintptr(n), name), nil
		}
		at, own, rest = n, n, more
	}
}

// openAt opens base in a directory without following a link.
func openAt(at int, base string, flags int) (n int, err error) {
	err = retryEINTR(func() (err error) {
		n, err = unix.Openat(at, base, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return n, err
}

func isLink(at int, base string) bool {
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Fstatat(at, base, &st, noFollow) })
	return err == nil && typeOf(st.Mode) == TypeSymlink
}

// refuseLink returns an error for a link with NoFollow.
func (r *Root) refuseLink(field string, info Info) error {
	if r.opt.NoFollow && info.Type == TypeSymlink {
		return linkRefused(field, info.Path)
	}
	return nil
}

// refuseLinkAt returns an error if base exists and is a link, with NoFollow.
func (r *Root) refuseLinkAt(field string, dir *os.File, base, name string) error {
	if r.opt.NoFollow && isLink(fd(dir), base) {
		return linkRefused(field, name)
	}
	return nil
}

// checkRegular returns an error if name exists and is not a regular file.
func (r *Root) checkRegular(name string) error {
	if !r.opt.NoFollow {
		if fi, err := r.dir.Stat(name); err == nil && !fi.Mode().IsRegular() {
			return notRegular(name)
		}
		return nil
	}
	info, err := r.Stat(name)
	if err == nil && info.Type != TypeFile {
		err = notRegular(name)
	}
	return err
}

// mkdirOne makes one directory.
func (r *Root) mkdirOne(name string) error {
	if !r.opt.NoFollow {
		return r.dir.Mkdir(name, 0o700)
	}
	if name == "." {
		return &fs.PathError{Op: "mkdir", Path: name, Err: unix.EEXIST}
	}
	dir, err := r.open("path", path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := retryEINTR(func() error { return unix.Mkdirat(fd(dir), path.Base(name), 0o700) }); err != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}

// isDir reports whether name resolves to a directory. If not, the error says why.
func (r *Root) isDir(name string) (bool, error) {
	f, err := r.open("path", name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	return true, f.Close()
}
