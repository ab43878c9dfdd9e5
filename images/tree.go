package images

import (
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// tree is a root filesystem that layers are unpacked into. Names resolve as for a process with this
// root: absolute links start at the root, and .. stops there. Every access goes through os.Root, so
// that a bug here cannot leave the tree either.
type tree struct {
	root   *os.Root
	owners bool
	left   *budget
	room   spaceChecker

	// The directory used last: entries usually come in directory order.
	last     *os.Root
	lastName string // as in the archive
	lastReal string // with links resolved

	// layerPaths holds, for the current layer, every path it created and the directories above
	// them.
	layerPaths map[[sha256.Size]byte]struct{}
	buf        []byte
}

func openTree(dir string, owners bool, left *budget) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: root, owners: owners, left: left, layerPaths: map[[sha256.Size]byte]struct{}{},
		buf: make([]byte, 256<<10)}, nil
}

func (t *tree) close() error {
	t.forget()
	return t.root.Close()
}

// forget closes the cached directory: its path may have changed.
func (t *tree) forget() {
	if t.last != nil {
		_ = t.last.Close() // opened for reading only
		t.last = nil
	}
}

// nextLayer starts a layer: existing files now belong to lower layers.
func (t *tree) nextLayer() { clear(t.layerPaths) }

// apply unpacks one entry.
func (t *tree) apply(e entry, content io.Reader) error {
	if e.base == "." {
		return nil // the root keeps its mode and owner
	}
	takesAway := e.kind == kindWhiteout || e.kind == kindOpaque
	dir, real, err := t.directory(e.dir, !takesAway)
	if takesAway && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch e.kind {
	case kindOpaque:
		return t.hideIn(real)
	case kindWhiteout:
		return t.hide(path.Join(real, e.base))
	default:
	}
	isDir, err := t.clear(dir, e)
	if err != nil {
		return err
	}
	t.note(path.Join(real, e.base))
	return t.place(dir, real, e, content, isDir)
}

// clear removes an existing file at the path of an entry. It keeps a directory if the entry is one.
func (t *tree) clear(dir *os.Root, e entry) (isDir bool, err error) {
	was, err := dir.Lstat(e.base)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || was.IsDir() && e.kind == kindDir {
		return err == nil, err
	}
	if e.kind == kindLink && e.link == path.Join(e.dir, e.base) {
		return false, invalid("hard link to itself")
	}
	return false, dir.RemoveAll(e.base)
}

func (t *tree) place(dir *os.Root, real string, e entry, content io.Reader, isDir bool) error {
	switch e.kind {
	case kindDir:
		if !isDir {
			if err := dir.Mkdir(e.base, 0o700); err != nil {
				return err
			}
		}
		if err := t.own(dir, e); err != nil {
			return err
		}
		return dir.Chmod(e.base, modeOf(e))
	case kindFile:
		return t.file(dir, e, content)
	case kindSymlink:
		if err := dir.Symlink(e.link, e.base); err != nil {
			return err
		}
		return t.own(dir, e)
	case kindLink:
		return t.link(real, e)
	default:
		return nil
	}
}

func (t *tree) own(dir *os.Root, e entry) error {
	if !t.owners {
		return nil
	}
	return dir.Lchown(e.base, e.header.Uid, e.header.Gid)
}

// modeOf returns the permission bits without setuid and setgid. The sticky bit is kept for
// directories.
func modeOf(e entry) fs.FileMode {
	mode := fs.FileMode(e.header.Mode & 0o777) // nine bits
	if e.kind == kindDir && e.header.Mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

func (t *tree) file(dir *os.Root, e entry, content io.Reader) error {
	f, err := dir.OpenFile(e.base, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	type writer struct{ io.Writer } // hides ReadFrom, which would bypass the buffer
	type reader struct{ io.Reader }
	const least = 4096 // minimum disk use of a file
	if err = t.room.take(least); err == nil {
		_, err = io.CopyBuffer(writer{spaceCheckedFile{f, &t.room}}, reader{content}, t.buf)
	}
	if err == nil && t.owners {
		err = f.Chown(e.header.Uid, e.header.Gid)
	}
	if err == nil {
		err = f.Chmod(modeOf(e))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	// Python compares the modification time with the one recorded in compiled files.
	return dir.Chtimes(e.base, time.Time{}, e.header.ModTime)
}

// link creates a hard link. The directory of the target is resolved like any name; the target must
// exist.
func (t *tree) link(real string, e entry) error {
	from, fromReal, err := t.open(path.Dir(e.link), false)
	if err != nil {
		return err
	}
	defer from.Close()
	was, err := from.Lstat(path.Base(e.link))
	if errors.Is(err, fs.ErrNotExist) {
		return invalid("hard link to %q: target not found", clip.Message(e.link))
	}
	if err != nil {
		return err
	}
	if !was.Mode().IsRegular() && was.Mode().Type() != fs.ModeSymlink {
		return invalid("hard link to %q: target is not a file", clip.Message(e.link))
	}
	return t.root.Link(path.Join(fromReal, path.Base(e.link)), path.Join(real, e.base))
}

// directory is like open but caches the result for the next entry. The caller must not close it.
func (t *tree) directory(name string, create bool) (*os.Root, string, error) {
	if t.last != nil && t.lastName == name {
		return t.last, t.lastReal, nil
	}
	t.forget()
	dir, real, err := t.open(name, create)
	if err != nil {
		return nil, "", err
	}
	t.last, t.lastName, t.lastReal = dir, name, real
	return dir, real, nil
}

// maxHops is the kernel's limit on symbolic links in one path.
const maxHops = 40

// open opens a directory and returns its path with links resolved. If create is set, it creates
// missing directories.
func (t *tree) open(name string, create bool) (*os.Root, string, error) {
	w := walker{root: t.root, left: t.left}
	if err := w.top(); err != nil {
		return nil, "", err
	}
	if err := w.walk(name, create); err != nil {
		_ = w.at.Close() // the error of walk matters
		return nil, "", err
	}
	real := path.Join(w.real...)
	if len(real) > maxPath {
		return nil, "", errors.Join(invalid("resolved directory path is longer than %d bytes", maxPath), w.at.Close())
	}
	return w.at, real, nil
}

// walker resolves a path in a tree. real is the current directory with links resolved.
type walker struct {
	root, at *os.Root
	real     []string
	left     *budget
}

func (w *walker) walk(name string, create bool) error {
	todo := strings.Split(name, "/")
	for hops := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		var err error
		switch part {
		case "", ".":
		case "..":
			err = w.up()
		default:
			var link string
			if link, err = w.down(part, create); link != "" {
				if hops++; hops > maxHops {
					return invalid("more than %d symbolic links", maxHops)
				}
				if strings.HasPrefix(link, "/") {
					err = w.top()
				}
				todo = append(strings.Split(link, "/"), todo...)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// down enters a directory. If part is a symbolic link, it stays and returns the target.
func (w *walker) down(part string, create bool) (link string, err error) {
	if err := w.left.step(1); err != nil {
		return "", err
	}
	info, err := w.at.Lstat(part)
	if errors.Is(err, fs.ErrNotExist) && create {
		if err := w.left.entry(); err != nil {
			return "", err
		}
		info, err = makeDir(w.at, part)
	}
	switch {
	case err != nil:
		return "", err
	case info.Mode().Type() == fs.ModeSymlink:
		return w.at.Readlink(part)
	case !info.IsDir():
		return "", invalid("%q is not a directory", clip.Message(path.Join(path.Join(w.real...), part)))
	case len(w.real) >= maxDepth:
		return "", invalid("deeper than %d directories", maxDepth)
	}
	next, err := w.at.OpenRoot(part)
	if err != nil {
		return "", err
	}
	w.enter(next)
	w.real = append(w.real, part)
	return "", nil
}

// up enters the parent directory; at the root it stays.
func (w *walker) up() error {
	real := w.real[:max(0, len(w.real)-1)]
	if err := w.left.step(1 + len(real)); err != nil { // the parent is opened from the root
		return err
	}
	next, err := w.root.OpenRoot(path.Join(".", path.Join(real...)))
	if err != nil {
		return err
	}
	w.enter(next)
	w.real = real
	return nil
}

func (w *walker) top() error {
	w.real = nil
	return w.up()
}

func (w *walker) enter(next *os.Root) {
	if w.at != nil {
		_ = w.at.Close() // opened for reading only
	}
	w.at = next
}

// makeDir creates a directory that the archive has no entry for, with mode 0755 regardless of the
// umask.
func makeDir(at *os.Root, name string) (fs.FileInfo, error) {
	if err := at.Mkdir(name, 0o755); err != nil {
		return nil, err
	}
	if err := at.Chmod(name, 0o755); err != nil {
		return nil, err
	}
	return at.Lstat(name)
}
