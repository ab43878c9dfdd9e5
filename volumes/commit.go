package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// CommitOptions of Commit.
type CommitOptions struct {
	// Paths are what is committed, with what is below them; none is everything.
	Paths []string
	// Force commits also what others changed since the overlay was made: theirs
	// is lost.
	Force bool
}

// Committed says what a commit did.
type Committed struct {
	// Paths are those that were committed, sorted.
	Paths []string
	// Dropped are those that can be in no workspace: devices, FIFOs, sockets.
	Dropped []string
	// Left is how many changes stay in the overlay. With none it is gone.
	Left int
}

// ConflictError says that a commit would lose what others did. Nothing was
// committed. It is of class Conflict.
type ConflictError struct {
	Overlay   string
	Conflicts []Conflict // sorted by path
}

// maxListedConflicts is how many conflicts the error's text names.
const maxListedConflicts = 10

// Error names the paths.
func (e *ConflictError) Error() string {
	var told []string
	for _, c := range e.Conflicts[:min(len(e.Conflicts), maxListedConflicts)] {
		told = append(told, c.String())
	}
	more := ""
	if n := len(e.Conflicts) - maxListedConflicts; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("overlay %s conflicts with what others changed: %s%s. Nothing is committed: choose other paths, or force it, which loses theirs",
		e.Overlay, strings.Join(told, "; "), more)
}

// Unwrap gives the class.
func (e *ConflictError) Unwrap() error { return errdefs.ErrConflict }

// PathError says that a path was chosen that an overlay does not change. It is of
// class InvalidArgument.
type PathError struct{ Overlay, Path string }

// Error is a whole sentence.
func (e *PathError) Error() string {
	return fmt.Sprintf("%s is not among the changes of overlay %s", shorten(e.Path), e.Overlay)
}

// Unwrap gives the class.
func (e *PathError) Unwrap() error { return errdefs.ErrInvalidArgument }

// Commit puts what an overlay changed into its workspace, all of it or nothing,
// whenever the process dies. Its lease has to be over (*LiveError), and no other
// may be writing (*BusyError); other overlays do not notice. What is committed
// belongs to the commands' user, and has no setuid or setgid bit and no attribute but
// the user's own. What was not chosen stays in the overlay. See *ConflictError.
func (m *Manager) Commit(ctx context.Context, id string, opt CommitOptions) (Committed, error) {
	found, err := m.FindOverlay(id)
	if err != nil {
		return Committed{}, err
	}
	var out Committed
	err = m.withMounted(ctx, found.Workspace, func(ws *mountedWorkspace) (err error) {
		out, err = ws.commitOverlay(ctx, id, opt)
		return err
	})
	return out, err
}

func (ws *mountedWorkspace) commitOverlay(ctx context.Context, id string, opt CommitOptions) (Committed, error) {
	if o, err := ws.findOverlay(id); err != nil {
		return Committed{}, err
	} else if o.Live {
		return Committed{}, &LiveError{ID: id}
	}
	if err := errors.Join(ws.checkNoWriter(), ws.endWriting(ctx)); err != nil {
		return Committed{}, err
	}
	v, err := ws.viewOverlay(ctx, id)
	if err != nil {
		return Committed{}, err
	}
	chosen, err := v.selectDeltas(opt.Paths)
	if err != nil {
		return Committed{}, err
	}
	if !opt.Force {
		if err := ws.checkConflicts(v, chosen); err != nil {
			return Committed{}, err
		}
	}
	var out Committed
	var takes []*delta
	for _, d := range chosen {
		if !d.committable() {
			out.Dropped = append(out.Dropped, d.path)
			continue
		}
		takes = append(takes, d)
		out.Paths = append(out.Paths, d.path)
	}
	if len(takes) > 0 {
		if err := ws.buildCommit(ctx, v, takes); err != nil {
			return Committed{}, fmt.Errorf("commit overlay %s: %w", id, err)
		}
	}
	// It is committed from here on, and what follows can be done again.
	out.Left = len(v.deltas) - len(chosen)
	after := context.WithoutCancel(ctx)
	if out.Left == 0 {
		err = ws.removeOverlay(after, id)
	} else {
		for _, d := range chosen {
			v.overlay.Committed = append(v.overlay.Committed, []byte(d.path))
		}
		err = ws.saveOverlay(v.overlay)
	}
	hitFailpoint("volumes.commit.done")
	if err = errors.Join(err, ws.removeOldGenerations(after)); err != nil {
		ws.m.log.Warn("overlay is committed, but not put away yet", "workspace", ws.e.meta.Name, "overlay", id, "error", err)
	}
	return out, nil
}

// checkNoWriter says who writes to the workspace itself now.
func (ws *mountedWorkspace) checkNoWriter() error {
	ws.m.mu.Lock()
	defer ws.m.mu.Unlock()
	if ws.e.writers > 0 {
		return &BusyError{Workspace: ws.e.meta.Name}
	}
	for _, h := range ws.e.holds {
		if h.mode == ReadWrite {
			return &BusyError{Workspace: ws.e.meta.Name, Lease: h.lease}
		}
	}
	return nil
}

// checkConflicts are those of the chosen changes, and of folders they are in.
func (ws *mountedWorkspace) checkConflicts(v *overlayView, chosen []*delta) error {
	base, err := openTree(v.dir)
	if err != nil {
		return err
	}
	defer base.close()
	made := map[string]bool{}
	for _, d := range chosen {
		made[d.path] = d.kind != Removed && isDir(&d.upper)
	}
	found := map[string]Conflict{}
	for _, d := range chosen {
		if c, ok := v.conflicts[d.path]; ok {
			found[d.path] = c
		}
		if d.kind == Removed {
			continue
		}
		for _, up := range parents(d.path) {
			if made[up] {
				continue
			}
			st, there, err := base.stat(up)
			if err != nil {
				return err
			}
			if there && isDir(&st) {
				break // so are those above
			}
			c := Conflict{Path: up}
			if by, ok := v.lastChange(up); ok {
				c.By, c.At = by.By, by.At
			}
			found[up] = c
		}
	}
	if len(found) == 0 {
		return nil
	}
	e := &ConflictError{Overlay: v.overlay.ID}
	for _, c := range found {
		e.Conflicts = append(e.Conflicts, c)
	}
	slices.SortFunc(e.Conflicts, func(a, b Conflict) int { return strings.Compare(a.Path, b.Path) })
	return e
}

// buildCommit makes the next generation with the chosen changes, which are sorted by
// path.
func (ws *mountedWorkspace) buildCommit(ctx context.Context, v *overlayView, chosen []*delta) error {
	upper, err := openTree(filepath.Join(ws.upperPath(v.overlay.ID), upperDir))
	if err != nil {
		return err
	}
	defer upper.close()
	gone := map[string]bool{} // what the next generation does not take from this one
	c := change{By: "overlay " + v.overlay.ID, At: time.Now().UTC()}
	for _, d := range chosen {
		c.Paths = append(c.Paths, []byte(d.path))
		if d.kind == Removed || !isDir(&d.upper) || d.kind == Changed && !isDir(&d.base) {
			gone[d.path] = true
		}
	}
	// A folder that is removed stays as long as something in it does.
	stay := ws.partlyRemovedDirs(v, chosen)
	links := v.sharedInodes(chosen)
	skip := func(rel string) bool { return gone[rel] && !stay[rel] }
	alter := func(dst *tree) error {
		for _, d := range chosen {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if d.kind == Removed {
				continue
			}
			if err := commitPath(upper, dst, d, links[d.upper.Ino]); err != nil {
				return fmt.Errorf("%s: %w", shorten(d.path), err)
			}
		}
		hitFailpoint("volumes.commit.built")
		return nil
	}
	return ws.forkGeneration(ctx, skip, alter, c)
}

// partlyRemovedDirs are folders whose removal was chosen without that of all they have.
// Everything that a removed folder has is a removed path too, so it is enough to
// look at those.
func (ws *mountedWorkspace) partlyRemovedDirs(v *overlayView, chosen []*delta) map[string]bool {
	taken, out := map[string]bool{}, map[string]bool{}
	for _, d := range chosen {
		taken[d.path] = true
	}
	for i := range v.deltas {
		if d := &v.deltas[i]; d.kind == Removed && !taken[d.path] {
			for _, up := range parents(d.path) {
				out[up] = true
			}
		}
	}
	return out
}

// sharedInodes are files that stay in the overlay under another name. Who writes to the
// workspace afterwards must not write to those.
func (v *overlayView) sharedInodes(chosen []*delta) map[uint64]bool {
	taken, out := map[string]bool{}, map[uint64]bool{}
	for _, d := range chosen {
		taken[d.path] = true
	}
	for i := range v.deltas {
		d := &v.deltas[i]
		if d.kind != Removed && !taken[d.path] && d.upper.Mode&unix.S_IFMT == unix.S_IFREG && d.upper.Nlink > 1 {
			out[d.upper.Ino] = true
		}
	}
	return out
}

// commitPath puts what an overlay has at a path into a generation that is being made:
// the same file, or a copy.
func commitPath(upper, dst *tree, d *delta, copied bool) error {
	if err := makeParents(dst, d.path); err != nil {
		return err
	}
	to, err := dst.openDir(parentDir(d.path))
	if err != nil {
		return err
	}
	defer to.Close()
	name := path.Base(d.path)
	if isDir(&d.upper) {
		err := makeDir(to, name, d.upper.Mode)
		if err == unix.EEXIST {
			err = setDir(to, name, d.upper.Mode)
		}
		if err != nil {
			return err
		}
		return withDirs(upper, dst, d.path, func(from, to *os.File) error { return copyAttributes(from, to, isUserAttribute) })
	}
	from, err := upper.openDir(parentDir(d.path))
	if err != nil {
		return err
	}
	defer from.Close()
	if copied {
		if err := copyFile(from, to, name, &d.upper, func() error { return nil }); err != nil {
			return err
		}
		return sanitizeFile(dst, d)
	}
	if err := sanitizeFile(upper, d); err != nil {
		return err
	}
	return linkFile(from, to, name, &d.upper)
}

// makeParents makes the folders above a path that are not there: with force, what
// others removed comes back for what is in it.
func makeParents(dst *tree, rel string) error {
	ups := parents(rel)
	for i := len(ups) - 1; i >= 0; i-- {
		st, found, err := dst.stat(ups[i])
		if err != nil {
			return err
		}
		if found && isDir(&st) {
			continue
		}
		to, err := dst.openDir(parentDir(ups[i]))
		if err != nil {
			return err
		}
		if found {
			err = unix.Unlinkat(fdOf(to), path.Base(ups[i]), 0)
		}
		if err == nil {
			err = makeDir(to, path.Base(ups[i]), 0o755)
		}
		if err := errors.Join(err, to.Close()); err != nil {
			return err
		}
	}
	return nil
}

// sanitizeFile takes from a file of an overlay, or its copy, what may not be in a
// workspace. Nothing writes to it any more.
func sanitizeFile(in *tree, d *delta) error {
	if d.upper.Mode&unix.S_IFMT != unix.S_IFREG {
		dir, err := in.openDir(parentDir(d.path))
		if err != nil {
			return err
		}
		defer dir.Close()
		return unix.Fchownat(fdOf(dir), path.Base(d.path), runtime.CommandUID, runtime.CommandGID, unix.AT_SYMLINK_NOFOLLOW)
	}
	f, st, err := in.openRegular(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := removeAttributes(f); err != nil {
		return err
	}
	if err := unix.Fchown(fdOf(f), runtime.CommandUID, runtime.CommandGID); err != nil {
		return err
	}
	return unix.Fchmod(fdOf(f), st.Mode&0o777)
}

func removeAttributes(f *os.File) error {
	names, err := listAttributes(f)
	if err != nil {
		return err
	}
	for _, name := range names {
		if isUserAttribute(name) {
			continue
		}
		if err := unix.Fremovexattr(fdOf(f), name); err != nil && err != unix.ENODATA {
			return fmt.Errorf("attribute %q: %w", shorten(name), err)
		}
	}
	return nil
}
