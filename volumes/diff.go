package volumes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"golang.org/x/sys/unix"
)

// Bounds of a Diff.
const (
	MaxChanges     = 5000
	maxCompared    = 1 << 20   // of a file's text
	maxFileText    = 64 << 10  // of a file's differences
	maxDiffText    = 1 << 20   // of all
	maxDiffRead    = 16 << 20  // of texts that are read for it, whatever comes out
	maxSameFile    = 64 << 20  // of files that are compared to see whether they differ at all
	maxSameTotal   = 512 << 20 // and of all of them
	binaryEvidence = 8000      // octets in which a NUL makes a file binary
)

// Change is one path that an overlay changed.
type Change struct {
	// Path is relative to the workspace; it can hold any octets but NUL.
	Path string
	Kind Kind
	// Type is "file", "dir", "symlink" or "other"; Before are what was there.
	Type, TypeBefore string
	Size, SizeBefore int64
	Mode, ModeBefore uint32
	// Text is the difference of text files and links as a unified diff; Binary
	// says that it is none, Cut that it is not all of it.
	Text   string
	Binary bool
	Cut    bool
	// Dropped: it cannot be committed.
	Dropped bool
	// Conflict tells who else changed it.
	Conflict *Conflict
}

// DiffOptions of Diff.
type DiffOptions struct {
	// Paths bound it to those and what is below them.
	Paths []string
	// Text asks for texts.
	Text bool
}

// Diff is what an overlay changed.
type Diff struct {
	Overlay Overlay
	// Changes are sorted by path. Truncated: there are more than these; the
	// numbers count all.
	Changes                 []Change
	Added, Changed, Removed int
	Truncated               bool
}

// Diff compares an overlay with its workspace as it is now; one whose lease
// lives with what it began with, and each part of the answer is of some moment.
func (m *Manager) Diff(ctx context.Context, id string, opt DiffOptions) (Diff, error) {
	found, err := m.FindOverlay(id)
	if err != nil {
		return Diff{}, err
	}
	var out Diff
	err = m.withMounted(ctx, found.Workspace, func(ws *mountedWorkspace) (err error) {
		out, err = ws.diffOverlay(ctx, id, opt)
		return err
	})
	return out, err
}

func (ws *mountedWorkspace) diffOverlay(ctx context.Context, id string, opt DiffOptions) (Diff, error) {
	v, err := ws.viewOverlay(ctx, id)
	if err != nil {
		return Diff{}, err
	}
	if len(opt.Paths) > 0 {
		if err := v.keepOnly(opt.Paths); err != nil {
			return Diff{}, err
		}
	}
	base, err := openTree(v.dir)
	if err != nil {
		return Diff{}, err
	}
	defer base.close()
	upper, err := openTree(filepath.Join(ws.upperPath(id), upperDir))
	if err != nil {
		return Diff{}, err
	}
	defer upper.close()
	c := &comparison{base: base, upper: upper, textLeft: maxDiffText, readLeft: maxDiffRead, sameLeft: maxSameTotal}
	ws.m.mu.Lock()
	out := Diff{Overlay: ws.m.overlayInfo(ws.e, &v.overlay), Changes: []Change{}}
	ws.m.mu.Unlock()
	for i := range v.deltas {
		if ctx.Err() != nil {
			return Diff{}, context.Cause(ctx)
		}
		d := &v.deltas[i]
		if c.isUnchanged(d) {
			continue
		}
		switch d.kind {
		case Added:
			out.Added++
		case Changed:
			out.Changed++
		default:
			out.Removed++
		}
		if len(out.Changes) == MaxChanges {
			out.Truncated = true
			continue
		}
		change := newChange(d)
		if conflict, ok := v.conflicts[d.path]; ok {
			change.Conflict = &conflict
		}
		if opt.Text {
			c.addText(d, &change)
		}
		out.Changes = append(out.Changes, change)
	}
	return out, nil
}

// keepOnly leaves the changes that paths name.
func (v *overlayView) keepOnly(paths []string) error {
	named, _, err := v.matchPaths(paths)
	if err != nil {
		return err
	}
	left := v.deltas[:0]
	for i := range v.deltas {
		if named[i] {
			left = append(left, v.deltas[i])
		}
	}
	v.deltas = left
	return nil
}

func newChange(d *delta) Change {
	c := Change{Path: d.path, Kind: d.kind, Dropped: !d.committable()}
	if d.kind != Removed {
		c.Type, c.Size, c.Mode = typeOf(d.upper.Mode), sizeOf(&d.upper), d.upper.Mode&0o7777
	}
	if d.kind != Added {
		c.TypeBefore, c.SizeBefore, c.ModeBefore = typeOf(d.base.Mode), sizeOf(&d.base), d.base.Mode&0o7777
	}
	return c
}

func typeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "dir"
	case unix.S_IFLNK:
		return "symlink"
	}
	return "other"
}

func sizeOf(st *unix.Stat_t) int64 {
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		return st.Size
	}
	return 0
}

// comparison reads both sides of changes, as much as it has left.
type comparison struct {
	base, upper                  *tree
	textLeft, readLeft, sameLeft int64
}

// isUnchanged says whether a path differs in nothing but its times: it was opened for
// writing, or written anew. What would take too long to know differs.
func (c *comparison) isUnchanged(d *delta) bool {
	if d.kind != Changed || d.upper.Mode != d.base.Mode || d.upper.Size != d.base.Size || d.upper.Uid != d.base.Uid {
		return false
	}
	switch d.upper.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		a, errA := c.upper.readLink(d.path)
		b, errB := c.base.readLink(d.path)
		return errA == nil && errB == nil && a == b
	case unix.S_IFREG:
	default:
		return false
	}
	size := d.upper.Size
	if size > maxSameFile || size > c.sameLeft {
		return false
	}
	c.sameLeft -= size
	a, _, err := c.upper.openRegular(d.path)
	if err != nil {
		return false
	}
	defer a.Close()
	b, _, err := c.base.openRegular(d.path)
	if err != nil {
		return false
	}
	defer b.Close()
	return sameContent(io.LimitReader(a, size), io.LimitReader(b, size))
}

func sameContent(a, b io.Reader) bool {
	x, y := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, errA := io.ReadFull(a, x)
		k, errB := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:k]) {
			return false
		}
		if errA != nil || errB != nil {
			return isEOF(errA) && isEOF(errB)
		}
	}
}

func isEOF(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }

// addText writes the difference of a path out.
func (c *comparison) addText(d *delta, out *Change) {
	if c.readLeft <= 0 {
		out.Cut = true
		return
	}
	before, cutBefore, okBefore := "", false, true
	after, cutAfter, okAfter := "", false, true
	if d.kind != Added {
		before, cutBefore, okBefore = readText(c.base, d.path, d.base.Mode)
	}
	if d.kind != Removed {
		after, cutAfter, okAfter = readText(c.upper, d.path, d.upper.Mode)
	}
	c.readLeft -= int64(len(before) + len(after))
	if out.Binary = !okBefore || !okAfter; out.Binary {
		return
	}
	if cutBefore || cutAfter {
		out.Cut = true
		return
	}
	if c.textLeft <= 0 {
		out.Cut = before != after
		return
	}
	from, to := quotedPath("a/", d.path), quotedPath("b/", d.path)
	if d.kind == Added {
		from = "/dev/null"
	}
	if d.kind == Removed {
		to = "/dev/null"
	}
	text := udiff.Unified(from, to, before, after)
	if most := min(maxFileText, c.textLeft); int64(len(text)) > most {
		out.Cut = true
		text = wholeLines(text[:most])
	}
	c.textLeft -= int64(len(text))
	out.Text = text
}

// wholeLines cuts a text after its last line.
func wholeLines(text string) string {
	return text[:strings.LastIndexByte(text, '\n')+1]
}

// quotedPath is a path in the head of a difference: on one line, whatever is in it.
func quotedPath(prefix, rel string) string {
	if quoted := strconv.Quote(rel); quoted != `"`+rel+`"` {
		return strconv.Quote(prefix + rel)
	}
	return prefix + rel
}

// readText is the text of a file, or of a link where it leads. text is false for
// what is binary.
func readText(t *tree, rel string, mode uint32) (s string, cut, text bool) {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := t.readLink(rel)
		return fmt.Sprintf("%s\n", strings.ToValidUTF8(target, "\uFFFD")), false, err == nil
	case unix.S_IFREG:
	default:
		return "", false, true
	}
	f, _, err := t.openRegular(rel)
	if err != nil {
		return "", true, true // it went away meanwhile
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCompared+1))
	if err != nil {
		return "", true, true
	}
	if bytes.IndexByte(b[:min(len(b), binaryEvidence)], 0) >= 0 {
		return "", false, false
	}
	if len(b) > maxCompared {
		return "", true, true
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), false, true
}
