package images

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// kind is how an entry is unpacked.
type kind int

const (
	kindFile kind = iota
	kindDir
	kindSymlink
	kindLink
	kindNone     // device, FIFO: removes what exists, creates nothing
	kindWhiteout // removes a path of lower layers
	kindOpaque   // removes everything of lower layers in the directory
	kindIgnore
)

// entry is one checked entry of a layer: base in the directory dir. Both are relative to the root,
// "." for the root itself.
type entry struct {
	kind      kind
	dir, base string
	link      string // target: unchanged for a symlink, cleaned for a hard link
	header    *tar.Header
}

// Bounds of one entry, equal to those of Linux, and of the depth, which bounds open directories.
const (
	maxPath  = 4096
	maxName  = 255
	maxDepth = 256
	maxOwner = 1<<32 - 2
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	aufs     = ".wh..wh."
)

// budget is what remains of the limits of an image.
type budget struct {
	bytes   int64
	entries int   // includes directories that only longer names imply
	steps   int64 // directory changes and names looked up
}

// stepsEach is the average number of steps per entry. Without it, links through links could turn a
// short name into millions of steps.
const stepsEach = 32

func (l Limits) budget() *budget {
	const least = 64 << 10
	return &budget{bytes: l.Bytes, entries: l.Entries, steps: least + stepsEach*int64(l.Entries)}
}

func (b *budget) entry() error {
	if b.entries--; b.entries < 0 {
		return fmt.Errorf("image has more entries than allowed: %w", errdefs.ErrResourceExhausted)
	}
	return nil
}

func (b *budget) step(n int) error {
	if b.steps -= int64(n); b.steps < 0 {
		return fmt.Errorf("image needs more steps to unpack than allowed (long names, links, whiteouts): %w",
			errdefs.ErrResourceExhausted)
	}
	return nil
}

// walk reads a layer and calls visit with each entry and its content. If visit is nil, it only
// checks the entries.
func walk(ctx context.Context, r io.Reader, left *budget, visit func(entry, io.Reader) error) error {
	for t := tar.NewReader(r); ; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		header, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return invalid("invalid or damaged tar: %v", err)
		}
		if err := left.entry(); err != nil {
			return err
		}
		if left.bytes -= header.Size; left.bytes < 0 {
			return fmt.Errorf("image is larger than allowed: %w", errdefs.ErrResourceExhausted)
		}
		e, err := check(header)
		if err != nil {
			return err
		}
		if visit == nil || e.kind == kindIgnore {
			continue
		}
		if err := visit(e, t); err != nil {
			return fmt.Errorf("entry %q: %w", clip.Message(header.Name), err)
		}
	}
}

// check converts a tar header to an entry, or returns why it is refused.
func check(h *tar.Header) (entry, error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return entry{kind: kindIgnore}, nil
	}
	name, err := clean(h.Name)
	if err != nil {
		return entry{}, fmt.Errorf("entry %q: %w", clip.Message(h.Name), err)
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > maxOwner || int64(h.Gid) > maxOwner {
		return entry{}, invalid("entry %q: invalid owner %d:%d", clip.Message(h.Name), h.Uid, h.Gid)
	}
	e := entry{dir: path.Dir(name), base: path.Base(name), header: h}
	if strings.HasPrefix(e.base, whiteout) {
		return checkWhiteout(e)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		e.kind = kindFile
	case tar.TypeDir:
		e.kind = kindDir
	case tar.TypeSymlink:
		e.kind, e.link = kindSymlink, h.Linkname
		if e.link == "" || len(e.link) >= maxPath || strings.ContainsRune(e.link, 0) {
			return entry{}, invalid("entry %q: invalid symbolic link to %q", clip.Message(h.Name), clip.Message(e.link))
		}
	case tar.TypeLink:
		e.kind = kindLink
		if e.link, err = clean(h.Linkname); err != nil {
			return entry{}, fmt.Errorf("entry %q: hard link to %q: %w", clip.Message(h.Name), clip.Message(h.Linkname), err)
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.kind = kindNone
	default:
		return entry{}, invalid("entry %q: unknown type %q", clip.Message(h.Name), h.Typeflag)
	}
	if name == "." && e.kind != kindDir {
		return entry{}, invalid("entry %q: the root must be a directory", clip.Message(h.Name))
	}
	return e, nil
}

func checkWhiteout(e entry) (entry, error) {
	switch hidden := strings.TrimPrefix(e.base, whiteout); {
	case e.base == opaque:
		e.kind = kindOpaque
	case strings.HasPrefix(e.base, aufs):
		e.kind = kindIgnore
	case hidden == "" || hidden == "." || hidden == "..":
		return entry{}, invalid("entry %q: empty whiteout", clip.Message(e.header.Name))
	default:
		e.kind, e.base = kindWhiteout, hidden
	}
	return e, nil
}

// clean returns a name relative to the root. A name with .. is refused: no tool writes one into an
// image.
func clean(name string) (string, error) {
	if name == "" || len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", invalid("name is empty, has a NUL or is longer than %d bytes", maxPath)
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", invalid("name contains ..")
		case len(part) > maxName:
			return "", invalid("part of the name is longer than %d bytes", maxName)
		case part != "" && part != ".":
			depth++
		}
	}
	if depth > maxDepth {
		return "", invalid("deeper than %d directories", maxDepth)
	}
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return ".", nil
	}
	return name, nil
}
