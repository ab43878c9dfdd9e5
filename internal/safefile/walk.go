package safefile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

const (
	// walkBatch is how many names of a directory are read and sorted at a time.
	walkBatch = 4096
	// walkMemory limits the memory in bytes for directories that a walk has not entered yet. It
	// skips those that do not fit.
	walkMemory = 2 << 20
)

// WalkOptions limit a walk. The zero value visits everything.
type WalkOptions struct {
	// Max is the maximum number of entries; 0 means all.
	Max int
	// Enter reports whether to enter the directory rel. Nil enters all.
	Enter func(rel string) bool
}

// Entry is a visited file. It is valid until visit returns.
type Entry struct {
	// Rel is the path relative to the walk's start. It can contain any byte but NUL. If the walk
	// starts at a file, it is the file's name.
	Rel string
	// Type is one of the types of Info.
	Type string

	dir  int
	base string
	path string  // from the root
	file *Reader // set if the walk started at a file
}

// Info describes the entry.
func (e *Entry) Info() (Info, error) {
	if e.file != nil {
		return e.file.Info(), nil
	}
	return statAt(e.dir, e.base, e.path)
}

// Open opens the entry if it is a regular file. Call it at most once. It does not follow a link.
func (e *Entry) Open() (*Reader, error) {
	if e.file != nil {
		return e.file, nil
	}
	n, err := openAt(e.dir, e.base, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, newError("open", "path", clip.Valid(e.path), err)
	}
	return newReader(os.NewFile(uintptr(n), e.base), e.path)
}

// Walk calls visit for the file p, or for everything below the directory p. Entries of one
// directory come before those of its subdirectories, sorted by name unless there are very many.
// Links below p are not followed.
//
// It returns whether the walk was complete: false if Max was reached, or if a directory was too
// large or could not be read. visit can end the walk with fs.SkipAll without making it incomplete.
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
	name       string // of the start, from the root
	todo       []string
	memoryLeft int
	visited    int
	complete   bool
}

// visitFile visits the file where the walk started, which may be behind a link.
func (w *walk) visitFile(name string) error {
	rd, err := w.root.Read(name, 0, 0)
	if err != nil {
		return err
	}
	defer rd.Close()
	return w.visit(&Entry{Rel: path.Base(name), Type: TypeFile, path: name, file: rd})
}

// visitTree visits everything below top. Directories wait in todo as paths, so that only two are
// open at a time, however deep the tree is.
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

// removedDuringWalk reports whether a directory was removed or replaced before the walk reached it.
func removedDuringWalk(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || ok && e.cause == nil
}

// visitDir visits the entries of one directory, and queues its subdirectories.
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

// visitEntry visits one entry, and reports whether it is a directory to enter.
func (w *walk) visitEntry(dir *os.File, base, rel string) (bool, error) {
	var st unix.Stat_t
	if retryEINTR(func() error { return unix.Fstatat(fd(dir), base, &st, noFollow) }) != nil {
		return false, nil //nolint:nilerr // The entry was removed since; the walk goes on without it.
	}
	e := &Entry{Rel: rel, Type: typeOf(st.Mode), dir: fd(dir), base: base, path: path.Join(w.name, rel)}
	if err := w.visit(e); err != nil {
		return false, err
	}
	return e.Type == TypeDir && (w.opt.Enter == nil || w.opt.Enter(rel)), nil
}

// push queues directories so that the first is entered next.
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

// memoryCost estimates the memory of a queued path in bytes.
func memoryCost(rel string) int { return len(rel) + 24 }
