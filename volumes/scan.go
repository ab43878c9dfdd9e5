package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// maxDeltas is how many changes of an overlay are looked at. One with more can
// only be discarded.
const maxDeltas = 200_000

// maxDeltaBytes is how many octets the paths of an overlay's changes have
// together. A command makes a path of 4 KiB with a name of one octet, without a
// new inode: the number of changes alone bounds no memory.
const maxDeltaBytes = 16 << 20

// Kind is what became of a path.
type Kind string

// The kinds.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
	// unchanged is a folder that is there only for what is in it.
	unchanged Kind = "same"
)

// ident tells one state of a path from another. Of a folder only its
// description counts: what is in it has states of its own.
type ident struct {
	Mode  uint32 `json:"mode,omitempty"` // with the type; 0 is of what is not there
	Inode uint64 `json:"inode,omitempty"`
	Size  int64  `json:"size,omitempty"`
	MTime int64  `json:"mtime,omitempty"` // in nanoseconds
}

func identOf(st *unix.Stat_t) ident {
	if isDir(st) {
		return ident{Mode: st.Mode}
	}
	return ident{Mode: st.Mode, Inode: st.Ino, Size: st.Size, MTime: st.Mtim.Nano()}
}

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// delta is a path that differs between a generation and an overlay on it.
type delta struct {
	path string
	kind Kind
	// upper is what it is in the overlay, unless it is removed; base what it is in
	// the generation, unless it is added.
	upper, base unix.Stat_t
}

func (d *delta) baseIdent() ident {
	if d.kind == Added {
		return ident{}
	}
	return identOf(&d.base)
}

// committable says whether what the overlay has can be in a workspace.
func (d *delta) committable() bool {
	switch d.upper.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
		return true
	}
	return d.kind == Removed
}

// base is what was below a change when the lease of its overlay ended.
type base struct {
	Path []byte `json:"path"`
	Kind Kind   `json:"kind"`
	Was  ident  `json:"was"`
}

func basesOf(deltas []delta) []base {
	out := make([]base, 0, len(deltas))
	for i := range deltas {
		out = append(out, base{Path: []byte(deltas[i].path), Kind: deltas[i].kind, Was: deltas[i].baseIdent()})
	}
	return out
}

func countChanges(deltas []delta) (n int) {
	for i := range deltas {
		if deltas[i].kind != unchanged {
			n++
		}
	}
	return n
}

// How a folder of an upper layer lies over the generation.
type layering int

const (
	merging   layering = iota // what is in both is seen
	opaque                    // only what is in the upper one is seen
	upperOnly                 // the generation has no folder there
)

// scanner compares an upper layer with a generation.
type scanner struct {
	upper, base *tree
	found       []delta
	pathBytes   int // octets of the paths found
	todo        []pending
}

type pending struct {
	rel    string
	layers layering
}

// scanOverlay finds what the overlay id changes of a generation, sorted by path. The
// overlay may be written to meanwhile: then each part of the answer is of some
// moment. ResourceExhausted: there is too much of it.
func (ws *mountedWorkspace) scanOverlay(ctx context.Context, id, generation string) ([]delta, error) {
	upper, err := openTree(filepath.Join(ws.upperPath(id), upperDir))
	if errors.Is(err, os.ErrNotExist) { // its making was interrupted
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer upper.close()
	base, err := openTree(generation)
	if err != nil {
		return nil, err
	}
	defer base.close()
	s := &scanner{upper: upper, base: base, todo: []pending{{layers: merging}}}
	for len(s.todo) > 0 {
		next := s.todo[len(s.todo)-1]
		s.todo = s.todo[:len(s.todo)-1]
		if err := s.scanDir(ctx, next); err != nil {
			return nil, fmt.Errorf("changes of overlay %s: %w", id, err)
		}
	}
	sort.Slice(s.found, func(i, j int) bool { return s.found[i].path < s.found[j].path })
	return s.found, nil
}

func (s *scanner) add(d delta) error {
	if len(s.found) >= maxDeltas {
		return fmt.Errorf("there are more than %d: %w", maxDeltas, errdefs.ErrResourceExhausted)
	}
	if s.pathBytes += len(d.path); s.pathBytes > maxDeltaBytes {
		return fmt.Errorf("their paths have more than %d octets: %w", maxDeltaBytes, errdefs.ErrResourceExhausted)
	}
	s.found = append(s.found, d)
	return nil
}

func (s *scanner) scanDir(ctx context.Context, p pending) error {
	up, err := s.upper.openDir(p.rel)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer up.Close()
	if p.layers == merging && p.rel != "" && isOpaque(up) {
		p.layers = opaque
	}
	var base *os.File
	if p.layers != upperOnly {
		if base, err = s.base.openDir(p.rel); isMissing(err) {
			p.layers = upperOnly
		} else if err != nil {
			return err
		} else {
			defer base.Close()
		}
	}
	seen := map[string]bool{}
	err = eachName(ctx, up, func(name string) error {
		st, err := statAt(up, name)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return err
		}
		if isWhiteout(&st) {
			if p.layers != merging {
				return nil
			}
			return s.addRemoved(ctx, base, p.rel, name)
		}
		if p.layers == opaque {
			seen[name] = true
		}
		return s.scanEntry(ctx, p, base, name, st)
	})
	if err != nil || p.layers != opaque {
		return err
	}
	return eachName(ctx, base, func(name string) error {
		if seen[name] {
			return nil
		}
		return s.addRemoved(ctx, base, p.rel, name)
	})
}

// scanEntry notes what an upper folder has.
func (s *scanner) scanEntry(ctx context.Context, p pending, base *os.File, name string, st unix.Stat_t) error {
	d := delta{path: joinName(p.rel, name), kind: Added, upper: st}
	if p.layers != upperOnly {
		b, err := statAt(base, name)
		if err != nil && err != unix.ENOENT {
			return err
		}
		if err == nil {
			d.kind, d.base = Changed, b
		}
	}
	dir, was := isDir(&st), d.kind == Changed && isDir(&d.base)
	if dir && was && st.Mode == d.base.Mode {
		d.kind = unchanged
	}
	if !dir && d.kind == Changed && st.Ino == d.base.Ino {
		return nil // it was committed, and the step after that was not reached
	}
	if err := s.add(d); err != nil {
		return err
	}
	switch {
	case dir && was && p.layers == opaque:
		s.todo = append(s.todo, pending{d.path, opaque})
	case dir && was:
		s.todo = append(s.todo, pending{d.path, merging})
	case dir:
		s.todo = append(s.todo, pending{d.path, upperOnly})
	case was:
		return s.addRemovedTree(ctx, d.path)
	}
	return nil
}

// addRemoved notes that a name of the generation is not seen any more.
func (s *scanner) addRemoved(ctx context.Context, base *os.File, rel, name string) error {
	st, err := statAt(base, name)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	d := delta{path: joinName(rel, name), kind: Removed, base: st}
	if err := s.add(d); err != nil || !isDir(&st) {
		return err
	}
	return s.addRemovedTree(ctx, d.path)
}

func (s *scanner) addRemovedTree(ctx context.Context, rel string) error {
	return s.base.walk(ctx, rel, func(rel string, _ *os.File, _ string, st *unix.Stat_t) (bool, error) {
		return isDir(st), s.add(delta{path: rel, kind: Removed, base: *st})
	})
}

// isWhiteout says whether a file of an upper layer stands for none.
func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// isOpaque says whether an upper folder hides what is below it.
func isOpaque(dir *os.File) bool {
	b := make([]byte, 1)
	n, err := unix.Fgetxattr(fdOf(dir), "trusted.overlay.opaque", b)
	return err == nil && n == 1 && b[0] == 'y'
}
