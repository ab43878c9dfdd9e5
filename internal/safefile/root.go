// Package safefile works on files in a folder whose content is hostile: no
// symbolic link and no ".." leads out of it, nothing blocks on a FIFO or a
// device, what is written appears whole or not at all, and a tree of any depth
// or width is removed with bounded memory and descriptors.
//
// The guest uses it below /workspace as the commands' user, the host on
// workspaces at rest. It changes nobody's credentials, knows nothing of
// leases, starts no goroutine and does not watch for other writers: each
// operation is safe against them, but two operations are not one.
//
// Every error is an [*Error] whose class is one of containerd/errdefs.
package safefile

import (
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// MaxPath is the longest path in bytes that is looked at.
const MaxPath = 4096

const (
	permMask = 0o777 // setuid, setgid and sticky are never given
	maxLinks = 8     // links at the end of a path that Write goes along
	noFollow = unix.AT_SYMLINK_NOFOLLOW
)

// Options say how a Root names and owns things. The zero value takes relative
// paths only and leaves owners alone.
type Options struct {
	// Prefix is the absolute path that callers use for the root itself, such
	// as "/workspace". Other absolute paths are refused.
	Prefix string
	// Owner is given to what is created. Without it that belongs to whoever
	// creates it.
	Owner *Owner
	// NoFollow refuses symbolic links in any part of a path, the last one too.
	NoFollow bool
}

// Owner is a user and a group.
type Owner struct{ UID, GID int }

// Root is a folder outside of which nothing is touched. Methods may be called
// concurrently. A path is at most MaxPath bytes of UTF-8 without NUL, and is
// cleaned lexically first: "a/../b" is "b". Links within the root are
// followed, but in the last part only by Read, Write, Edit, List, Mkdir and Walk.
type Root struct {
	dir *os.Root
	opt Options
}

// Open opens the folder dir, which the caller vouches for.
func Open(dir string, opt Options) (*Root, error) {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, newError("open", "", "the root", err)
	}
	return &Root{dir: r, opt: opt}, nil
}

// Close lets go of the folder; Readers and Writers live on.
func (r *Root) Close() error { return r.dir.Close() }

// cleanPath checks a caller's path and makes it relative to the root.
func (r *Root) cleanPath(field, p string) (string, error) {
	switch {
	case len(p) > MaxPath:
		return "", invalid(field, "is longer than %d bytes", MaxPath)
	case !utf8.ValidString(p):
		return "", invalid(field, "is not valid UTF-8")
	case strings.IndexByte(p, 0) >= 0:
		return "", invalid(field, "contains a NUL byte")
	}
	if strings.HasPrefix(p, "/") {
		rest, ok := strings.CutPrefix(p, r.opt.Prefix)
		if r.opt.Prefix == "" || !ok || rest != "" && rest[0] != '/' {
			return "", outsideRoot(field, p)
		}
		p = strings.TrimLeft(rest, "/")
	}
	p = path.Clean(p)
	if !filepath.IsLocal(p) {
		return "", outsideRoot(field, p)
	}
	return p, nil
}

// openParent opens the folder that p is in, as a mere handle, and returns p's last
// part: from there on that one name is used, and no path is walked again.
func (r *Root) openParent(field, p string) (*os.File, string, error) {
	dir, base := path.Split(p)
	if dir = strings.TrimRight(dir, "/"); dir == "" {
		dir = "."
	}
	f, err := r.open(field, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, "", newError("open", field, dir, err)
	}
	return f, base, nil
}

// openEntry is at for what is going to be changed: not the root itself.
func (r *Root) openEntry(field, p string) (*os.File, string, string, error) {
	name, err := r.cleanPath(field, p)
	if err != nil {
		return nil, "", "", err
	}
	if name == "." {
		return nil, "", "", invalid(field, "is the workspace itself")
	}
	dir, base, err := r.openParent(field, name)
	if err != nil {
		return nil, "", "", err
	}
	if err := r.refuseLinkAt(field, dir, base, name); err != nil {
		_ = dir.Close()
		return nil, "", "", err
	}
	return dir, base, name, nil
}

// Stat describes p; a link in its last part is described itself.
func (r *Root) Stat(p string) (Info, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return Info{}, err
	}
	dir, base, err := r.openParent("path", name)
	if err != nil {
		return Info{}, err
	}
	defer dir.Close()
	info, err := statAt(fd(dir), base, name)
	if err != nil {
		return Info{}, newError("stat", "path", name, err)
	}
	return info, r.refuseLink("path", info)
}

// Mkdir makes the folder p and those above it. That it is there already is no
// error, and then mode does nothing; mode 0 is 0755.
func (r *Root) Mkdir(p string, mode uint32) (Info, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return Info{}, err
	}
	perm, err := checkMode(mode, 0o755)
	if err != nil {
		return Info{}, err
	}
	if err := r.mkdirAll(name, perm); err != nil {
		return Info{}, err
	}
	return r.Stat(name)
}

// mkdirAll goes up to the first folder that is there, then down again. Only
// the last folder has the mode that was asked for.
func (r *Root) mkdirAll(leaf string, perm uint32) error {
	permOf := func(name string) uint32 {
		if name == leaf {
			return perm
		}
		return 0o755
	}
	var missing []string
	name := leaf
	for {
		err := r.mkdir(name, permOf(name))
		if err == nil {
			break
		}
		if os.IsNotExist(err) && name != "." {
			missing = append(missing, name)
			name = path.Dir(name)
			continue
		}
		is, serr := r.isDir(name)
		if is {
			break
		}
		if serr != nil && !os.IsNotExist(serr) && !errors.Is(serr, unix.ENOTDIR) {
			err = serr // of a link, where it leads
		}
		return newError("make folder", "path", name, err)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := r.mkdir(missing[i], permOf(missing[i])); err != nil && !os.IsExist(err) {
			return newError("make folder", "path", missing[i], err)
		}
	}
	return nil
}

func (r *Root) mkdir(name string, perm uint32) error {
	if err := r.mkdirOne(name); err != nil {
		return err
	}
	f, err := r.open("path", name, unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer f.Close()
	return r.setOwnerMode(f, perm)
}

// setOwnerMode gives a new file its owner and mode, by its descriptor.
func (r *Root) setOwnerMode(f *os.File, perm uint32) error {
	if o := r.opt.Owner; o != nil {
		if err := unix.Fchown(fd(f), o.UID, o.GID); err != nil {
			return os.NewSyscallError("fchown", err)
		}
	}
	// After chown, which may clear bits, and regardless of the umask.
	return os.NewSyscallError("fchmod", unix.Fchmod(fd(f), perm))
}

// Move renames from to to, replacing a file or an empty folder there. Links
// are moved themselves.
func (r *Root) Move(from, to string) (Info, error) {
	fromDir, fromBase, _, err := r.openEntry("path", from)
	if err != nil {
		return Info{}, err
	}
	defer fromDir.Close()
	toDir, toBase, name, err := r.openEntry("to", to)
	if err != nil {
		return Info{}, err
	}
	defer toDir.Close()
	if err := unix.Renameat(fd(fromDir), fromBase, fd(toDir), toBase); err != nil {
		return Info{}, newError("move", "path", from, err)
	}
	info, err := statAt(fd(toDir), toBase, name)
	if err != nil {
		return Info{}, newError("stat", "to", name, err)
	}
	return info, nil
}

// Reader reads a regular file as long as it was when it was opened.
type Reader struct {
	f    *os.File
	left int64
	info Info
}

// Read opens the regular file p from offset; limit bytes at most unless it is
// zero.
func (r *Root) Read(p string, offset, limit int64) (*Reader, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return nil, err
	}
	if offset < 0 || limit < 0 {
		return nil, invalid("offset", "and limit must not be negative")
	}
	// Looked at before it is opened, so that opening a device does nothing;
	// and again afterwards by what was opened.
	if err := r.checkRegular(name); err != nil {
		return nil, err
	}
	f, err := r.open("path", name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, newError("open", "path", name, err)
	}
	rd, err := newReader(f, name)
	if err != nil {
		return nil, err
	}
	rd.left = max(rd.info.Size-offset, 0)
	if limit > 0 {
		rd.left = min(rd.left, limit)
	}
	if rd.left > 0 && offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			_ = f.Close()
			return nil, newError("seek", "path", name, err)
		}
	}
	return rd, nil
}

// newReader takes over what was opened, if it is a regular file.
func newReader(f *os.File, name string) (*Reader, error) {
	info, err := statFile(f, name)
	if err != nil {
		_ = f.Close()
		return nil, newError("stat", "path", name, err)
	}
	if info.Type != TypeFile {
		_ = f.Close()
		return nil, notRegular("path", name)
	}
	return &Reader{f: f, left: info.Size, info: info}, nil
}

// Info is the file when it was opened.
func (rd *Reader) Info() Info { return rd.info }

// Stat is the file now.
func (rd *Reader) Stat() (Info, error) {
	info, err := statFile(rd.f, rd.info.Path)
	if err != nil {
		return Info{}, newError("stat", "path", rd.info.Path, err)
	}
	return info, nil
}

// Read is that of io.Reader.
func (rd *Reader) Read(b []byte) (int, error) {
	if rd.left <= 0 {
		return 0, io.EOF
	}
	n, err := rd.f.Read(b[:min(int64(len(b)), rd.left)])
	rd.left -= int64(n)
	if err != nil && err != io.EOF {
		err = newError("read", "path", rd.info.Path, err)
	}
	return n, err
}

// Close closes the file.
func (rd *Reader) Close() error { return rd.f.Close() }

func fd(f *os.File) int { return int(f.Fd()) }
