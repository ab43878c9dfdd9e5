package safefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Edit is a replacement of Old by New, of every Old there is with All. Without
// it Old has to be there exactly once.
type Edit struct {
	Old, New string
	All      bool
	// MaxBytes bounds the file, before and afterwards.
	MaxBytes int64
}

// Edited says what was replaced.
type Edited struct {
	Count int
	Line  int // of the first one, from 1
	Info  Info
}

// editChunk is how much of a file is looked at at a time.
const editChunk = 64 << 10

// Edit replaces text in the file p, which keeps its mode, whole or not at all.
// The file has to be text: UTF-8 without a NUL byte. It is read twice, so that
// memory is bounded by the text that is replaced; one that is changed meanwhile
// is left as it is, FailedPrecondition.
func (r *Root) Edit(ctx context.Context, p string, e Edit) (Edited, error) {
	if err := e.validate(); err != nil {
		return Edited{}, err
	}
	rd, err := r.Read(p, 0, 0)
	if err != nil {
		return Edited{}, err
	}
	defer rd.Close()
	before, err := stampFile(rd)
	if err != nil {
		return Edited{}, newError("stat", "path", p, err)
	}
	if rd.info.Size > e.MaxBytes {
		return Edited{}, precondition("path", "%q has %d bytes, at most %d can be edited", p, rd.info.Size, e.MaxBytes)
	}
	found, err := e.findMatches(ctx, p, rd)
	if err != nil {
		return Edited{}, err
	}
	if err := e.checkFound(p, found, rd.info.Size); err != nil {
		return Edited{}, err
	}
	w, err := r.Write(p, WriteOptions{})
	if err != nil {
		return Edited{}, err
	}
	defer w.Close()
	if err := e.rewrite(ctx, rd, w); err != nil {
		return Edited{}, newError("edit", "path", p, err)
	}
	if err := before.checkUnchanged(p, rd, w, found.size(&e, rd.info.Size)); err != nil {
		return Edited{}, err
	}
	info, err := w.Commit()
	return Edited{Count: found.count, Line: found.line, Info: info}, err
}

func (e *Edit) validate() error {
	switch {
	case e.Old == "":
		return invalid("old", "is empty: name the text to replace, or write the file whole")
	case e.Old == e.New:
		return invalid("new", "is the same as old")
	case strings.IndexByte(e.Old, 0) >= 0:
		return invalid("old", "contains a NUL byte, and only text can be edited")
	case strings.IndexByte(e.New, 0) >= 0:
		return invalid("new", "contains a NUL byte, and only text can be edited")
	case !utf8.ValidString(e.Old):
		return invalid("old", "is not valid UTF-8")
	case !utf8.ValidString(e.New):
		return invalid("new", "is not valid UTF-8")
	}
	return nil
}

func precondition(field, format string, args ...any) *Error {
	return &Error{Class: errdefs.ErrFailedPrecondition, Field: field, Message: fmt.Sprintf(format, args...)}
}

// matches is where the old text is.
type matches struct {
	count int
	line  int
}

// size is that of the file afterwards.
func (f matches) size(e *Edit, was int64) int64 {
	return was + int64(f.count)*int64(len(e.New)-len(e.Old))
}

func (e *Edit) checkFound(p string, f matches, size int64) error {
	switch {
	case f.count == 0:
		return &Error{Class: errdefs.ErrNotFound, Field: "old", Message: fmt.Sprintf("is not in %q", p)}
	case f.count > 1 && !e.All:
		return precondition("old", "is %d times in %q: give more of the text around it, or ask for all", f.count, p)
	case f.size(e, size) > e.MaxBytes:
		return precondition("new", "makes %q %d bytes long, at most %d are allowed", p, f.size(e, size), e.MaxBytes)
	}
	return nil
}

// findMatches counts the old text in what rd gives, and sees that it is text.
func (e *Edit) findMatches(ctx context.Context, p string, rd io.Reader) (matches, error) {
	var f matches
	text, line := textCheck{}, 1
	err := e.eachPiece(ctx, rd, text.add, func(piece []byte, match bool) error {
		if match {
			if f.count++; f.count == 1 {
				f.line = line
			}
		}
		if f.count == 0 {
			line += bytes.Count(piece, []byte("\n"))
		}
		return nil
	})
	if err == nil {
		err = text.end()
	}
	if err != nil {
		return matches{}, newError("edit", "path", p, err)
	}
	return f, nil
}

// rewrite writes what rd gives from its beginning with the new text.
func (e *Edit) rewrite(ctx context.Context, rd *Reader, w io.Writer) error {
	if _, err := rd.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	rd.left = rd.info.Size
	fresh := []byte(e.New)
	return e.eachPiece(ctx, rd, nil, func(piece []byte, match bool) error {
		if match {
			piece = fresh
		}
		_, err := w.Write(piece)
		return err
	})
}

// eachPiece calls do for the parts of what rd gives, in order: those that are the
// old text, found from the left, and those between them. seen gets all of it
// first.
func (e *Edit) eachPiece(ctx context.Context, rd io.Reader, seen func([]byte) error, do func(piece []byte, match bool) error) error {
	old := []byte(e.Old)
	buf := make([]byte, len(old)+editChunk)
	have := 0
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, rerr := rd.Read(buf[have:])
		if rerr != nil && rerr != io.EOF {
			return rerr
		}
		if seen != nil && n > 0 {
			if err := seen(buf[have : have+n]); err != nil {
				return err
			}
		}
		have += n
		rest, err := e.splitMatches(buf[:have], old, rerr == io.EOF, do)
		if err != nil || rerr == io.EOF {
			return err
		}
		have = copy(buf, rest)
	}
}

// splitMatches hands on what is decided, and returns the rest: the old text may begin
// in it.
func (e *Edit) splitMatches(b, old []byte, last bool, do func([]byte, bool) error) ([]byte, error) {
	for {
		i := bytes.Index(b, old)
		if i < 0 {
			break
		}
		if i > 0 {
			if err := do(b[:i], false); err != nil {
				return nil, err
			}
		}
		if err := do(b[i:i+len(old)], true); err != nil {
			return nil, err
		}
		b = b[i+len(old):]
	}
	keep := min(len(b), len(old)-1)
	if last {
		keep = 0
	}
	if n := len(b) - keep; n > 0 {
		if err := do(b[:n], false); err != nil {
			return nil, err
		}
	}
	return b[len(b)-keep:], nil
}

// textCheck sees whether bytes are UTF-8 without NUL, however they are cut.
type textCheck struct {
	part [utf8.UTFMax]byte // of a rune that was cut
	n    int
}

var (
	errNUL  = &Error{Class: errdefs.ErrFailedPrecondition, Field: "path", Message: "is not a text file: it contains a NUL byte"}
	errUTF8 = &Error{Class: errdefs.ErrFailedPrecondition, Field: "path", Message: "is not a text file: it is not valid UTF-8"}
)

func (t *textCheck) add(b []byte) error {
	if bytes.IndexByte(b, 0) >= 0 {
		return errNUL
	}
	for t.n > 0 && len(b) > 0 && !utf8.FullRune(t.part[:t.n]) {
		t.part[t.n] = b[0]
		t.n, b = t.n+1, b[1:]
	}
	if t.n > 0 && utf8.FullRune(t.part[:t.n]) {
		if !utf8.Valid(t.part[:t.n]) {
			return errUTF8
		}
		t.n = 0
	}
	for i := max(0, len(b)-utf8.UTFMax+1); i < len(b); i++ {
		if utf8.RuneStart(b[i]) && !utf8.FullRune(b[i:]) {
			t.n = copy(t.part[:], b[i:])
			b = b[:i]
		}
	}
	if !utf8.Valid(b) {
		return errUTF8
	}
	return nil
}

func (t *textCheck) end() error {
	if t.n > 0 {
		return errUTF8
	}
	return nil
}

// fileStamp tells one state of a file from another.
type fileStamp struct {
	dev, ino uint64
	size     int64
	mtime    unix.Timespec
	ctime    unix.Timespec
}

func newStamp(st *unix.Stat_t) fileStamp {
	return fileStamp{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

func stampFile(rd *Reader) (fileStamp, error) {
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Fstat(fd(rd.f), &st) })
	return newStamp(&st), err
}

// checkUnchanged says whether the file is still what it was when it was opened, still
// has its name, and was read the same both times.
func (s fileStamp) checkUnchanged(p string, rd *Reader, w *Writer, size int64) error {
	now, err := stampFile(rd)
	if err != nil {
		return newError("stat", "path", p, err)
	}
	var st unix.Stat_t
	err = retryEINTR(func() error { return unix.Fstatat(fd(w.dir), w.base, &st, noFollow) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return newError("stat", "path", p, err)
	}
	if err != nil || now != s || newStamp(&st) != s || s.size != rd.info.Size || w.written != size {
		return precondition("path", "%q was changed by somebody else meanwhile: read it again", p)
	}
	return nil
}
