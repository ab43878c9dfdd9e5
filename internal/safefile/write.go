package safefile

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteOptions are the options of Write.
type WriteOptions struct {
	// Mode is the permission bits. 0 keeps those of the replaced file, or means 0644 for a new
	// file.
	Mode uint32
	// Size is the expected number of bytes, if not 0.
	Size int64
	// Parents makes missing directories above p, with mode 0755.
	Parents bool
}

// Writer receives a file's new content. The content becomes visible atomically with Commit. It is
// not synced to disk. A Writer is for one goroutine.
type Writer struct {
	root    *Root
	dir     *os.File
	base    string
	path    string
	temp    string // removed by Close; empty without a name or after Commit
	f       *os.File
	perm    uint32
	size    int64
	written int64
}

// Write starts to write the regular file p. An existing file is replaced, so that its hard links
// keep the old content. Links at the end of p are followed within the root.
func (r *Root) Write(p string, opt WriteOptions) (*Writer, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return nil, err
	}
	if opt.Size < 0 {
		return nil, invalid("size", "must not be negative")
	}
	if _, err := checkMode(opt.Mode, 0); err != nil {
		return nil, err
	}
	if name == "." {
		return nil, notRegular(name)
	}
	if dir := path.Dir(name); opt.Parents && dir != "." {
		if err := r.mkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	w, err := r.newWriter(name)
	if err != nil {
		return nil, err
	}
	w.size = opt.Size
	if opt.Mode != 0 {
		w.perm = opt.Mode & permMask
	}
	if err := w.create(); err != nil {
		_ = w.Close()
		return nil, newError("create", "path", name, err)
	}
	return w, nil
}

// create opens the file to write. If the file system supports it, the file has no name, so that
// nothing remains if the process is killed.
func (w *Writer) create() error {
	err := w.open(".", unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC)
	switch err {
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL, unix.ENOSYS:
	default:
		return err
	}
	temp := tempName()
	if err = w.open(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC); err == nil {
		w.temp = temp
	}
	return err
}

func (w *Writer) open(name string, flags int) error {
	var n int
	err := retryEINTR(func() (err error) { n, err = unix.Openat(fd(w.dir), name, flags, 0o600); return })
	if err == nil {
		w.f = os.NewFile(uintptr(n), name)
	}
	return err
}

// linkTemp gives an unnamed file a temporary name.
func (w *Writer) linkTemp() error {
	if w.temp != "" {
		return nil
	}
	temp := tempName()
	from := fmt.Sprintf("/proc/self/fd/%d", fd(w.f))
	err := retryEINTR(func() error { return unix.Linkat(unix.AT_FDCWD, from, fd(w.dir), temp, unix.AT_SYMLINK_FOLLOW) })
	if err == nil {
		w.temp = temp
	}
	return err
}

func tempName() string { return ".orchestrator-" + strings.ToLower(rand.Text()[:16]) }

// newWriter finds the directory and the name of the file to write.
func (r *Root) newWriter(name string) (*Writer, error) {
	p := name
	for range maxLinks {
		dir, base, err := r.openParent("path", p)
		if err != nil {
			return nil, err
		}
		info, err := statAt(fd(dir), base, p)
		switch {
		case os.IsNotExist(err):
			return &Writer{root: r, dir: dir, base: base, path: name, perm: 0o644}, nil
		case err == nil && info.Type == TypeFile:
			return &Writer{root: r, dir: dir, base: base, path: name, perm: info.Mode & permMask}, nil
		case err == nil && info.Type != TypeSymlink:
			err = notRegular(name)
		case err == nil && r.opt.NoFollow:
			err = linkRefused("path", p)
		case err == nil:
			p, err = linkTarget(dir, base, p)
		}
		_ = dir.Close()
		if err != nil {
			return nil, newError("open", "path", name, err)
		}
	}
	return nil, newError("open", "path", name, unix.ELOOP)
}

// linkTarget returns the target of the link base in dir. It does not clean the path: os.Root must
// resolve a ".." after a link.
func linkTarget(dir *os.File, base, p string) (string, error) {
	buf := make([]byte, MaxPath)
	n, err := unix.Readlinkat(fd(dir), base, buf)
	if err != nil {
		return "", err
	}
	to := string(buf[:n])
	if strings.HasPrefix(to, "/") {
		return "", outsideRoot("path", p)
	}
	if last := path.Base(to); strings.HasSuffix(to, "/") || last == "." || last == ".." {
		return "", notRegular(p)
	}
	to = path.Dir(p) + "/" + to
	if len(to) > MaxPath {
		return "", unix.ENAMETOOLONG
	}
	return to, nil
}

// Write implements io.Writer. It fails if there are more bytes than expected.
func (w *Writer) Write(b []byte) (int, error) {
	if w.size > 0 && w.written+int64(len(b)) > w.size {
		return 0, invalid("size", "is %d, but more bytes arrived", w.size)
	}
	n, err := w.f.Write(b)
	w.written += int64(n)
	if err != nil {
		return n, newError("write", "path", w.path, err)
	}
	return n, nil
}

// Commit makes the content visible. After it, only Close may be called.
func (w *Writer) Commit() (Info, error) {
	if w.size > 0 && w.written != w.size {
		return Info{}, invalid("size", "is %d, but %d bytes arrived", w.size, w.written)
	}
	if err := w.root.setOwnerMode(w.f, w.perm); err != nil {
		return Info{}, newError("write", "path", w.path, err)
	}
	info, err := statFile(w.f, w.path)
	if err != nil {
		return Info{}, newError("stat", "path", w.path, err)
	}
	if err = w.linkTemp(); err == nil {
		err = retryEINTR(func() error { return unix.Renameat(fd(w.dir), w.temp, fd(w.dir), w.base) })
	}
	if err != nil {
		return Info{}, newError("write", "path", w.path, err)
	}
	w.temp = ""
	return info, nil
}

// Close discards content that was not committed. It may be called more than once.
func (w *Writer) Close() error {
	if w.temp != "" {
		_ = unix.Unlinkat(fd(w.dir), w.temp, 0)
		w.temp = ""
	}
	if w.f != nil {
		_ = w.f.Close()
		w.f = nil
	}
	if w.dir != nil {
		_ = w.dir.Close()
		w.dir = nil
	}
	return nil
}

// checkMode rejects a mode with other than permission bits. Mode 0 becomes def.
func checkMode(mode, def uint32) (uint32, error) {
	if mode&^0o7777 != 0 {
		return 0, invalid("mode", "is %#o: only permission bits can be set", mode)
	}
	if mode == 0 {
		return def, nil
	}
	return mode & permMask, nil
}

// retryEINTR calls f until it returns an error other than EINTR.
func retryEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
