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

// Edit describes a replacement of Old by New. With All every Old is replaced. Otherwise Old must
// occur exactly once.
type Edit struct {
	Old, New string
	All      bool
	// MaxBytes limits the file's size, before and after the edit.
	MaxBytes int64
}

// Edited is the result of an edit.
type Edited struct {
	Count int
	Line  int // of the first match, from 1
	Info  Info
}

// editChunk is the number of bytes that are read at a time.
const editChunk = 64 << 10

// Edit replaces text in the file p atomically, and keeps its mode. The file must be UTF-8 without
// NUL bytes. Edit reads it twice, so that memory is bounded by the length of Old. If the file
// changes during the edit, it is left unchanged and the error is FailedPrecondition.
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
		return Edited{}, precondition("path", "%q has %d bytes: the maximum for an edit is %d",
			p, rd.info.Size, e.MaxBytes)
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

// validate checks that Old and New are different texts.
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

// precondition returns a FailedPrecondition error.
func precondition(field, format string, args ...any) *Error {
	return &Error{Class: errdefs.ErrFailedPrecondition, Field: field, Message: fmt.Sprintf(format, args...)}
}

// matches counts the occurrences of the old text.
type matches struct {
	count int
	line  int
}

// size returns the file's size after the edit.
func (f matches) size(e *Edit, was int64) int64 {
	return was + int64(f.count)*int64(len(e.New)-len(e.Old))
}

// checkFound checks the number of matches and the resulting size.
func (e *Edit) checkFound(p string, f matches, size int64) error {
	switch {
	case f.count == 0:
		return &Error{Class: errdefs.ErrNotFound, Field: "old", Message: fmt.Sprintf("is not in %q", p)}
	case f.count > 1 && !e.All:
		return precondition("old", "occurs %d times in %q: give more of the surrounding text, or replace all",
			f.count, p)
	case f.size(e, size) > e.MaxBytes:
		return precondition("new", "makes %q %d bytes long: the maximum is %d", p, f.size(e, size), e.MaxBytes)
	}
	return nil
}

// findMatches counts the old text in rd, and checks that rd is text.
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

// rewrite copies rd from its start to w with the new text.
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

// eachPiece calls do for the parts of rd in order: the occurrences of the old text, found from the
// left, and the text between them. seen gets all bytes first.
func (e *Edit) eachPiece(ctx context.Context, rd io.Reader, seen func([]byte) error,
	do func(piece []byte, match bool) error,
) error {
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

// splitMatches passes the decided parts of b to do, and returns the rest, in which the old text may
// begin.
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

// textCheck checks that a sequence of chunks is UTF-8 without NUL.
type textCheck struct {
	part [utf8.UTFMax]byte // start of a rune that was split between chunks
	n    int
}

var (
	errNUL  = precondition("path", "is not a text file: it contains a NUL byte")
	errUTF8 = precondition("path", "is not a text file: it is not valid UTF-8")
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

// fileStamp identifies one version of a file.
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

// checkUnchanged returns FailedPrecondition unless the file is the one that was opened, still has
// its name, and was the same in both reads.
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
		return precondition("path", "%q was changed during the edit: read it again", p)
	}
	return nil
}
