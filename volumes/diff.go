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

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// Limits of a Diff.
const (
	MaxChanges     = 5000
	maxCompared    = 1 << 20   // bytes of one file's text
	maxFileText    = 64 << 10  // bytes of one file's diff
	maxDiffText    = 1 << 20   // bytes of all diffs
	maxDiffRead    = 16 << 20  // bytes of text that are read, whatever the diffs' size
	maxSameFile    = 64 << 20  // bytes of a file that is compared for equality
	maxSameTotal   = 512 << 20 // bytes of all files that are compared for equality
	binaryEvidence = 8000      // a NUL byte in this many first bytes marks a file as binary
)

// Change is one path that an overlay changed.
type Change struct {
	// Path is relative to the workspace. It can contain any byte but NUL.
	Path string
	Kind Kind
	// Type is "file", "dir", "symlink" or "other". The fields with Before describe the workspace's
	// version.
	Type, TypeBefore string
	Size, SizeBefore int64
	Mode, ModeBefore uint32
	// Text is a unified diff of text files and link targets. Binary reports a file that is not
	// text. Cut reports that Text is incomplete.
	Text   string
	Binary bool
	Cut    bool
	// Dropped reports that the path cannot be committed.
	Dropped bool
	// Conflict is set if others changed the path too.
	Conflict *Conflict
}

// DiffOptions are the options of Diff.
type DiffOptions struct {
	// Paths limit the diff to these paths and everything below them.
	Paths []string
	// Text asks for the text of each change.
	Text bool
}

// Diff lists what an overlay changed.
type Diff struct {
	Overlay Overlay
	// Changes are sorted by path. Truncated reports that the list is incomplete; the counts include
	// all changes.
	Changes                 []Change
	Added, Changed, Removed int
	Truncated               bool
}

// Diff compares an overlay with its workspace's current files. An overlay whose lease is live is
// compared with the files that it started from; its paths are not read at one single moment.
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

// keepOnly drops the changes that paths do not select.
func (v *overlayView) keepOnly(paths []string) error {
	selected, _, err := v.matchPaths(paths)
	if err != nil {
		return err
	}
	left := v.deltas[:0]
	for i := range v.deltas {
		if selected[i] {
			left = append(left, v.deltas[i])
		}
	}
	v.deltas = left
	return nil
}

// newChange returns the public description of a delta.
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

// comparison reads both versions of changed paths within a budget.
type comparison struct {
	base, upper                  *tree
	textLeft, readLeft, sameLeft int64
}

// isUnchanged reports whether only the times of a path differ, because it was opened for writing or
// rewritten. It returns false if the comparison would cost too much.
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

// addText sets the text of a change.
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

// wholeLines cuts a text after its last newline.
func wholeLines(text string) string {
	return text[:strings.LastIndexByte(text, '\n')+1]
}

// quotedPath returns a path for a diff's header, always on one line.
func quotedPath(prefix, rel string) string {
	if quoted := strconv.Quote(rel); quoted != `"`+rel+`"` {
		return strconv.Quote(prefix + rel)
	}
	return prefix + rel
}

// readText returns a file's content, or a link's target. text is false for binary files.
func readText(t *tree, rel string, mode uint32) (s string, cut, text bool) {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := t.readLink(rel)
		return fmt.Sprintf("%s\n", clip.Valid(target)), false, err == nil
	case unix.S_IFREG:
	default:
		return "", false, true
	}
	f, _, err := t.openRegular(rel)
	if err != nil {
		return "", true, true // It was removed since.
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
	return clip.Valid(string(b)), false, true
}
