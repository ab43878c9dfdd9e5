package images

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// kind is what becomes of an entry.
type kind int

const (
	kindFile kind = iota
	kindDir
	kindSymlink
	kindLink
	kindNone     // device, FIFO: what was there goes, nothing comes
	kindWhiteout // takes away what a lower layer has
	kindOpaque   // takes away all that lower layers have in the folder
	kindIgnore
)

// entry is one checked entry of a layer: base in the folder dir, both relative
// to the root, "." for the root itself.
type entry struct {
	kind      kind
	dir, base string
	link      string // target of a symlink as it is, of a hard link cleaned
	header    *tar.Header
}

// Bounds on one entry, as Linux has them, and on depth, so that walking a
// tree never needs many open folders.
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

// budget is what the layers of an image may still hold, and how much it may
// still cost to put them in place.
type budget struct {
	bytes   int64
	entries int   // folders that nothing but a longer name makes are some as well
	steps   int64 // from one folder to another, and names looked at
}

// stepsEach is how many steps an entry may take on average: links that lead
// through links make a way of millions out of a name of a few bytes.
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
		return fmt.Errorf("image takes more steps to unpack than allowed, by names of many parts, links and whiteouts: %w", errdefs.ErrResourceExhausted)
	}
	return nil
}

// walk reads a layer and calls visit with each entry and its content. With
// no visit it only checks.
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
			return invalid("not a tar, or damaged: %v", err)
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
			return fmt.Errorf("entry %q: %w", clip(header.Name), err)
		}
	}
}

// check says what an entry means, or why it is refused.
func check(h *tar.Header) (entry, error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return entry{kind: kindIgnore}, nil
	}
	name, err := clean(h.Name)
	if err != nil {
		return entry{}, fmt.Errorf("entry %q: %w", clip(h.Name), err)
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > maxOwner || int64(h.Gid) > maxOwner {
		return entry{}, invalid("entry %q: owner %d:%d", clip(h.Name), h.Uid, h.Gid)
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
			return entry{}, invalid("entry %q: symbolic link to %q", clip(h.Name), clip(e.link))
		}
	case tar.TypeLink:
		e.kind = kindLink
		if e.link, err = clean(h.Linkname); err != nil {
			return entry{}, fmt.Errorf("entry %q: hard link to %q: %w", clip(h.Name), clip(h.Linkname), err)
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		e.kind = kindNone
	default:
		return entry{}, invalid("entry %q: type %q is unknown", clip(h.Name), h.Typeflag)
	}
	if name == "." && e.kind != kindDir {
		return entry{}, invalid("entry %q: the root is not a folder", clip(h.Name))
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
		return entry{}, invalid("entry %q: takes away nothing", clip(e.header.Name))
	default:
		e.kind, e.base = kindWhiteout, hidden
	}
	return e, nil
}

// clean makes a name relative to the root. A name with .. in it is refused,
// never bent: no tool writes one into an image with good intent.
func clean(name string) (string, error) {
	if name == "" || len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", invalid("name is empty or longer than %d", maxPath)
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", invalid("name has .. in it")
		case len(part) > maxName:
			return "", invalid("part of the name is longer than %d", maxName)
		case part != "" && part != ".":
			depth++
		}
	}
	if depth > maxDepth {
		return "", invalid("deeper than %d folders", maxDepth)
	}
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return ".", nil
	}
	return name, nil
}
