package safefile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// walkBatch is how many names of a folder are read and sorted at a time.
	walkBatch = 4096
	// walkMemory is about how many bytes of memory the folders take that a walk
	// has still to look into. Those for which there is none are left out.
	walkMemory = 2 << 20
)

// WalkOptions bound a walk. The zero value goes everywhere.
type WalkOptions struct {
	// Max is how many entries are looked at. Zero: all.
	Max int
	// Enter says whether to look into the folder rel. Nil: yes.
	Enter func(rel string) bool
}

// Entry is what a walk came by. It is valid until visit returns.
type Entry struct {
	// Rel is its path from where the walk began, of any bytes but NUL. If the walk
	// began at a file it is the file's name.
	Rel string
	// Type is one of the types of Info.
	Type string

	dir  int
	base string
	path string  // from the root
	file *Reader // where the walk began at a file
}

// Info describes it.
func (e *Entry) Info() (Info, error) {
	if e.file != nil {
		return e.file.Info(), nil
	}
	return statAt(e.dir, e.base, e.path)
}

// Open opens it, once, if it is a regular file. A link is not followed.
func (e *Entry) Open() (*Reader, error) {
	if e.file != nil {
		return e.file, nil
	}
	n, err := openAt(e.dir, e.base, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, newError("open", "path", validUTF8(e.path), err)
	}
	return newReader(os.NewFile(uintptr(n), e.base), e.path)
}

// Walk calls visit for p, if it is a file, or for all that is below the folder
// p: those of one folder in the order of their names, unless they are very many,
// before those of the folders in it. Below p no link is followed. It answers
// whether that was all: false once Max was reached, or where a folder was too
// large or could not be looked into. visit may end it with fs.SkipAll; then
// the answer is true.
func (r *Root) Walk(ctx context.Context, p string, opt WalkOptions, visit func(*Entry) error) (bool, error) {
	name, err := r.cleanPath("path", p)
	if err != nil {
		return false, err
	}
	w := &walk{root: r, opt: opt, visit: visit, name: name, memoryLeft: walkMemory, complete: true}
	top, err := r.open("path", name, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) {
		err = w.visitFile(name)
	} else if err == nil {
		defer top.Close()
		err = w.visitTree(ctx, top)
	}
	if err != nil && err != fs.SkipAll {
		return false, newError("walk", "path", name, err)
	}
	return w.complete, nil
}

type walk struct {
	root       *Root
	opt        WalkOptions
	visit      func(*Entry) error
	name       string // where it began, from the root
	todo       []string
	memoryLeft int
	visited    int
	complete   bool
}

// visitFile visits the file that the walk began at; it may be behind a link.
func (w *walk) visitFile(name string) error {
	rd, err := w.root.Read(name, 0, 0)
	if err != nil {
		return err
	}
	defer rd.Close()
	return w.visit(&Entry{Rel: path.Base(name), Type: TypeFile, path: name, file: rd})
}

// visitTree visits what is below top. Folders wait in todo as paths, so that two are
// open at a time however deep the tree is.
func (w *walk) visitTree(ctx context.Context, top *os.File) error {
	w.todo = []string{""}
	for len(w.todo) > 0 {
		rel := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.memoryLeft += memoryCost(rel)
		at := rel
		if rel == "" {
			at = "."
		}
		dir, err := w.root.openBelow("path", top, at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
		if err != nil && rel == "" {
			return err
		}
		if err != nil {
			w.complete = w.complete && removedDuringWalk(err)
			continue
		}
		err = w.visitDir(ctx, dir, rel)
		_ = dir.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// removedDuringWalk says whether a folder was removed or replaced while the walk was on
// its way there.
func removedDuringWalk(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || ok && e.cause == nil
}

// visitDir visits what is in one folder, and notes the folders in it.
func (w *walk) visitDir(ctx context.Context, dir *os.File, rel string) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		names, err := dir.Readdirnames(walkBatch)
		if len(names) == 0 {
			return ignoreEOF(err)
		}
		slices.Sort(names)
		var below []string
		for i, base := range names {
			if i%64 == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if w.visited++; w.opt.Max > 0 && w.visited > w.opt.Max {
				w.complete = false
				return fs.SkipAll
			}
			sub, err := w.visitEntry(dir, base, path.Join(rel, base))
			if err != nil {
				return err
			}
			if sub {
				below = append(below, path.Join(rel, base))
			}
		}
		w.push(below)
	}
}

// visitEntry visits one, and says whether it is a folder to look into.
func (w *walk) visitEntry(dir *os.File, base, rel string) (bool, error) {
	var st unix.Stat_t
	if retryEINTR(func() error { return unix.Fstatat(fd(dir), base, &st, noFollow) }) != nil {
		return false, nil // removed since
	}
	e := &Entry{Rel: rel, Type: typeOf(st.Mode), dir: fd(dir), base: base, path: path.Join(w.name, rel)}
	if err := w.visit(e); err != nil {
		return false, err
	}
	return e.Type == TypeDir && (w.opt.Enter == nil || w.opt.Enter(rel)), nil
}

// push notes folders so that the first is looked into next.
func (w *walk) push(below []string) {
	for _, rel := range slices.Backward(below) {
		if len(rel) > MaxPath || memoryCost(rel) > w.memoryLeft {
			w.complete = false
			continue
		}
		w.memoryLeft -= memoryCost(rel)
		w.todo = append(w.todo, rel)
	}
}

// memoryCost is about what a path takes in memory.
func memoryCost(rel string) int { return len(rel) + 24 }
