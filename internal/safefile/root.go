// Package safefile works on files in a directory with hostile content. Symbolic links and ".."
// cannot lead out of it. FIFOs and devices cannot block an operation. Written files appear
// atomically. A tree of any depth or width is removed with bounded memory and descriptors.
//
// The guest uses it below /workspace as the commands' user, and the host on workspaces. It does not
// change credentials and starts no goroutine. Each operation is safe against concurrent writers,
// but a sequence of operations is not atomic.
//
// Every error is an [*Error] with a class of containerd/errdefs.
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

// MaxPath is the maximum length of a path in bytes.
const MaxPath = 4096

const (
	permMask = 0o777 // setuid, setgid and sticky are dropped
	maxLinks = 8     // links at the end of a path that Write follows
	noFollow = unix.AT_SYMLINK_NOFOLLOW
)

// Options configure a Root. The zero value accepts relative paths only and keeps the owner that the
// kernel sets.
type Options struct {
	// Prefix is the absolute path that callers use for the root, such as "/workspace". Other
	// absolute paths are refused.
	Prefix string
	// Owner owns created files. Nil means the process's user.
	Owner *Owner
	// NoFollow refuses symbolic links in every part of a path.
	NoFollow bool
}

// Owner is a user and a group.
type Owner struct{ UID, GID int }

// Root limits file operations to one directory. Its methods may be called concurrently. A path is
// UTF-8 without NUL, at most MaxPath bytes, and is first cleaned lexically: "a/../b" is "b". Links
// within the root are followed, but in the last part only by Read, Write, Edit, List, Mkdir and
// Walk.
type Root struct {
	dir *os.Root
	opt Options
}

// Open opens the directory dir. Its path must be trusted.
func Open(dir string, opt Options) (*Root, error) {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, newError("open", "", "the root", err)
	}
	return &Root{dir: r, opt: opt}, nil
}

// Close closes the directory. Open Readers and Writers stay valid.
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

// openParent opens the parent directory of p with O_PATH, and returns p's last part. Later
// operations use that name in the open directory and resolve no path again.
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

// openEntry is like openParent for a path that is going to be changed. It rejects the root. It also
// returns the cleaned path.
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

// Stat describes p. It does not follow a link in the last part.
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

// Mkdir makes the directory p and those above it. An existing directory is not an error and keeps
// its mode. Mode 0 means 0755.
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

// mkdirAll searches upwards for an existing directory, and then makes the missing ones. Only the
// last one gets the requested mode.
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
			err = serr // For a link, report why its target failed.
		}
		return newError("make directory", "path", name, err)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := r.mkdir(missing[i], permOf(missing[i])); err != nil && !os.IsExist(err) {
			return newError("make directory", "path", missing[i], err)
		}
	}
	return nil
}

// mkdir makes one directory and sets its owner and mode.
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

// setOwnerMode sets a new file's owner and mode by its descriptor.
func (r *Root) setOwnerMode(f *os.File, perm uint32) error {
	if o := r.opt.Owner; o != nil {
		if err := unix.Fchown(fd(f), o.UID, o.GID); err != nil {
			return os.NewSyscallError("fchown", err)
		}
	}
	// Chmod last: chown can clear mode bits, and the umask does not apply.
	return os.NewSyscallError("fchmod", unix.Fchmod(fd(f), perm))
}

// Move renames from to to. It replaces a file or an empty directory there. Links are moved
// themselves.
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

// Reader reads a regular file up to the size that it had when it was opened.
type Reader struct {
	f    *os.File
	left int64
	info Info
}

// Read opens the regular file p for reading from offset. A limit other than 0 is the maximum number
// of bytes.
func (r *Root) Read(p string, offset, limit int64) (*Reader, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return nil, err
	}
	if offset < 0 || limit < 0 {
		return nil, invalid("offset", "and limit must not be negative")
	}
	// Check the type before the open, because opening a device has effects. newReader checks the
	// opened file again.
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

// newReader takes ownership of f. It closes f if it is not a regular file.
func newReader(f *os.File, name string) (*Reader, error) {
	info, err := statFile(f, name)
	if err != nil {
		_ = f.Close()
		return nil, newError("stat", "path", name, err)
	}
	if info.Type != TypeFile {
		_ = f.Close()
		return nil, notRegular(name)
	}
	return &Reader{f: f, left: info.Size, info: info}, nil
}

// Info describes the file as it was opened.
func (rd *Reader) Info() Info { return rd.info }

// Stat describes the file now.
func (rd *Reader) Stat() (Info, error) {
	info, err := statFile(rd.f, rd.info.Path)
	if err != nil {
		return Info{}, newError("stat", "path", rd.info.Path, err)
	}
	return info, nil
}

// Read implements io.Reader.
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
