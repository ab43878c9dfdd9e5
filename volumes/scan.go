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

// maxDeltas limits the changes of an overlay. One with more can only be discarded.
const maxDeltas = 200_000

// maxDeltaBytes limits the total length of the changed paths. A command needs only a one-byte name
// and no new inode to make a path of 4 KiB, so the number of changes alone does not bound memory.
const maxDeltaBytes = 16 << 20

// Kind is what happened to a path.
type Kind string

// The kinds of change.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
	// unchanged is a directory that the overlay only has for its content.
	unchanged Kind = "same"
)

// ident identifies one version of a path. For a directory only the mode counts, because its content
// has separate idents.
type ident struct {
	Mode  uint32 `json:"mode,omitempty"` // with the file type; 0 means missing
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

// delta is a path that differs between an overlay and a generation.
type delta struct {
	path string
	kind Kind
	// upper is the overlay's version, unless the path was removed. base is the generation's
	// version, unless the path was added.
	upper, base unix.Stat_t
}

// baseIdent identifies the generation's version.
func (d *delta) baseIdent() ident {
	if d.kind == Added {
		return ident{}
	}
	return identOf(&d.base)
}

// committable reports whether a workspace can contain the overlay's version.
func (d *delta) committable() bool {
	switch d.upper.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
		return true
	}
	return d.kind == Removed
}

// baseState is the lower layer's version of a changed path when the overlay's lease ended.
type baseState struct {
	Path []byte `json:"path"`
	Kind Kind   `json:"kind"`
	Was  ident  `json:"was"`
}

func baseStatesOf(deltas []delta) []baseState {
	out := make([]baseState, 0, len(deltas))
	for i := range deltas {
		out = append(out, baseState{Path: []byte(deltas[i].path), Kind: deltas[i].kind, Was: deltas[i].baseIdent()})
	}
	return out
}

// countChanges counts the deltas that are changes.
func countChanges(deltas []delta) (n int) {
	for i := range deltas {
		if deltas[i].kind != unchanged {
			n++
		}
	}
	return n
}

// layering is how an upper directory combines with the generation.
type layering int

const (
	merging   layering = iota // the content of both is visible
	opaque                    // only the upper content is visible
	upperOnly                 // the generation has no such directory
)

// scanner compares an upper layer with a generation.
type scanner struct {
	upper, base *tree
	found       []delta
	pathBytes   int // total length of the paths found
	todo        []pendingDir
}

type pendingDir struct {
	rel    string
	layers layering
}

// scanOverlay returns what the overlay changes in a generation, sorted by path. If the overlay is
// being written to, paths are not read at one single moment. ResourceExhausted if the overlay
// exceeds a limit.
func (ws *mountedWorkspace) scanOverlay(ctx context.Context, id, generation string) ([]delta, error) {
	upper, err := openTree(filepath.Join(ws.upperPath(id), upperDir))
	if errors.Is(err, os.ErrNotExist) { // Its creation was interrupted.
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
	s := &scanner{upper: upper, base: base, todo: []pendingDir{{layers: merging}}}
	for len(s.todo) > 0 {
		next := s.todo[len(s.todo)-1]
		s.todo = s.todo[:len(s.todo)-1]
		if err := s.scanDir(ctx, next); err != nil {
			return nil, fmt.Errorf("read changes of overlay %s: %w", id, err)
		}
	}
	sort.Slice(s.found, func(i, j int) bool { return s.found[i].path < s.found[j].path })
	return s.found, nil
}

// add records a delta. ResourceExhausted over the limits.
func (s *scanner) add(d delta) error {
	if len(s.found) >= maxDeltas {
		return fmt.Errorf("more than %d changes: %w", maxDeltas, errdefs.ErrResourceExhausted)
	}
	if s.pathBytes += len(d.path); s.pathBytes > maxDeltaBytes {
		return fmt.Errorf("changed paths have more than %d bytes in total: %w",
			maxDeltaBytes, errdefs.ErrResourceExhausted)
	}
	s.found = append(s.found, d)
	return nil
}

// scanDir compares one upper directory with the generation.
func (s *scanner) scanDir(ctx context.Context, p pendingDir) error {
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

// scanEntry records one entry of an upper directory.
func (s *scanner) scanEntry(ctx context.Context, p pendingDir, base *os.File, name string, st unix.Stat_t) error {
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
	isNowDir, wasDir := isDir(&st), d.kind == Changed && isDir(&d.base)
	if isNowDir && wasDir && st.Mode == d.base.Mode {
		d.kind = unchanged
	}
	if !isNowDir && d.kind == Changed && st.Ino == d.base.Ino {
		return nil // It was committed, but the overlay was not updated.
	}
	if err := s.add(d); err != nil {
		return err
	}
	switch {
	case isNowDir && wasDir && p.layers == opaque:
		s.todo = append(s.todo, pendingDir{d.path, opaque})
	case isNowDir && wasDir:
		s.todo = append(s.todo, pendingDir{d.path, merging})
	case isNowDir:
		s.todo = append(s.todo, pendingDir{d.path, upperOnly})
	case wasDir:
		return s.addRemovedTree(ctx, d.path)
	}
	return nil
}

// addRemoved records that a name of the generation is hidden.
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

// addRemovedTree records everything below rel as removed.
func (s *scanner) addRemovedTree(ctx context.Context, rel string) error {
	return s.base.walk(ctx, rel, func(rel string, _ *os.File, _ string, st *unix.Stat_t) (bool, error) {
		return isDir(st), s.add(delta{path: rel, kind: Removed, base: *st})
	})
}

// isWhiteout reports whether an upper layer's file marks a removed name.
func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// isOpaque reports whether an upper directory hides the lower one's content.
func isOpaque(dir *os.File) bool {
	b := make([]byte, 1)
	n, err := unix.Fgetxattr(fdOf(dir), "trusted.overlay.opaque", b)
	return err == nil && n == 1 && b[0] == 'y'
}
