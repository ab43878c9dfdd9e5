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

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// CommitOptions are the options of Commit.
type CommitOptions struct {
	// Paths select what to commit, including everything below them. None selects everything.
	Paths []string
	// Force also commits conflicting paths. The changes of others to them are lost.
	Force bool
}

// Committed is the result of a commit.
type Committed struct {
	// Paths are the committed paths, sorted.
	Paths []string
	// Dropped are paths that a workspace cannot contain: devices, FIFOs and sockets.
	Dropped []string
	// Left is the number of changes that remain in the overlay. At 0 the overlay is removed.
	Left int
}

// ConflictError reports that a commit would lose changes of others. Nothing was committed. Its
// class is Conflict.
type ConflictError struct {
	Overlay   string
	Conflicts []Conflict // sorted by path
}

// maxListedConflicts is the number of conflicts that the error's text lists.
const maxListedConflicts = 10

// Error implements error and lists the first conflicting paths.
func (e *ConflictError) Error() string {
	listed := make([]string, 0, min(len(e.Conflicts), maxListedConflicts))
	for _, c := range e.Conflicts[:min(len(e.Conflicts), maxListedConflicts)] {
		listed = append(listed, c.String())
	}
	more := ""
	if n := len(e.Conflicts) - maxListedConflicts; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("overlay %s not committed: %s%s: select other paths, or force the commit and lose their changes",
		e.Overlay, strings.Join(listed, "; "), more)
}

// Unwrap returns the errdefs class.
func (e *ConflictError) Unwrap() error { return errdefs.ErrConflict }

// PathError reports a selected path that the overlay does not change. Its class is InvalidArgument.
type PathError struct{ Overlay, Path string }

// Error implements error.
func (e *PathError) Error() string {
	return fmt.Sprintf("path %q not found in the changes of overlay %s", clip.Message(e.Path), e.Overlay)
}

// Unwrap returns the errdefs class.
func (e *PathError) Unwrap() error { return errdefs.ErrInvalidArgument }

// Commit applies an overlay's changes to its workspace. It is atomic, even if the process is
// killed. Its lease must have ended (*LiveError), and no lease or host program may be writing
// (*BusyError). A conflict returns *ConflictError unless opt.Force is set. Other overlays do not
// see the change.
//
// Committed files belong to the commands' user. They have no setuid or setgid bit and only user
// attributes. Changes that were not selected stay in the overlay.
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
	var toApply []*delta
	for _, d := range chosen {
		if !d.committable() {
			out.Dropped = append(out.Dropped, d.path)
			continue
		}
		toApply = append(toApply, d)
		out.Paths = append(out.Paths, d.path)
	}
	if len(toApply) > 0 {
		if err := ws.buildCommit(ctx, v, toApply); err != nil {
			return Committed{}, fmt.Errorf("commit overlay %s: %w", id, err)
		}
	}
	// The commit is complete here. All that follows can be repeated.
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
		ws.m.log.Warn("overlay committed, but cleanup failed",
			"workspace", ws.e.meta.Name, "overlay", id, "error", err)
	}
	return out, nil
}

// checkNoWriter returns *BusyError if a lease or a host program may write to the workspace's files.
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

// checkConflicts returns *ConflictError if others changed a chosen path, or removed or replaced a
// directory above it.
func (ws *mountedWorkspace) checkConflicts(v *overlayView, chosen []*delta) error {
	base, err := openTree(v.dir)
	if err != nil {
		return err
	}
	defer base.close()
	createdDirs := map[string]bool{}
	for _, d := range chosen {
		createdDirs[d.path] = d.kind != Removed && isDir(&d.upper)
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
			if createdDirs[up] {
				continue
			}
			st, exists, err := base.stat(up)
			if err != nil {
				return err
			}
			if exists && isDir(&st) {
				break // The directories above it exist too.
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

// buildCommit creates the next generation with the chosen changes, which are sorted by path.
func (ws *mountedWorkspace) buildCommit(ctx context.Context, v *overlayView, chosen []*delta) error {
	upper, err := openTree(filepath.Join(ws.upperPath(v.overlay.ID), upperDir))
	if err != nil {
		return err
	}
	defer upper.close()
	replaced := map[string]bool{} // paths that are not linked from the current generation
	c := change{By: "overlay " + v.overlay.ID, At: time.Now().UTC()}
	for _, d := range chosen {
		c.Paths = append(c.Paths, []byte(d.path))
		if d.kind == Removed || !isDir(&d.upper) || d.kind == Changed && !isDir(&d.base) {
			replaced[d.path] = true
		}
	}
	// Keep a removed directory while something in it remains.
	keptDirs := ws.partlyRemovedDirs(v, chosen)
	shared := v.sharedInodes(chosen)
	skip := func(rel string) bool { return replaced[rel] && !keptDirs[rel] }
	alter := func(dst *tree) error {
		for _, d := range chosen {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if d.kind == Removed {
				continue
			}
			if err := commitPath(upper, dst, d, shared[d.upper.Ino]); err != nil {
				return fmt.Errorf("%s: %w", clip.Message(d.path), err)
			}
		}
		hitFailpoint("volumes.commit.built")
		return nil
	}
	return ws.forkGeneration(ctx, skip, alter, c)
}

// partlyRemovedDirs returns the directories whose content was not chosen completely for removal.
// Everything in a removed directory is itself a removed path, so it is enough to check those.
func (ws *mountedWorkspace) partlyRemovedDirs(v *overlayView, chosen []*delta) map[string]bool {
	isChosen, out := map[string]bool{}, map[string]bool{}
	for _, d := range chosen {
		isChosen[d.path] = true
	}
	for i := range v.deltas {
		if d := &v.deltas[i]; d.kind == Removed && !isChosen[d.path] {
			for _, up := range parents(d.path) {
				out[up] = true
			}
		}
	}
	return out
}

// sharedInodes returns the inodes that also stay in the overlay under another name. These are
// copied, so that later writes to the workspace do not change the overlay.
func (v *overlayView) sharedInodes(chosen []*delta) map[uint64]bool {
	isChosen, out := map[string]bool{}, map[uint64]bool{}
	for _, d := range chosen {
		isChosen[d.path] = true
	}
	for i := range v.deltas {
		d := &v.deltas[i]
		if d.kind != Removed && !isChosen[d.path] && d.upper.Mode&unix.S_IFMT == unix.S_IFREG && d.upper.Nlink > 1 {
			out[d.upper.Ino] = true
		}
	}
	return out
}

// commitPath adds one changed path of the overlay to a new generation, as a hard link or, if copied
// is set, as a copy.
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
		return withDirs(upper, dst, d.path, func(from, to *os.File) error {
			return copyAttributes(from, to, isUserAttribute)
		})
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

// makeParents creates the missing directories above a path. With Force it restores directories that
// others removed.
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

// sanitizeFile removes from an overlay's file, or its copy, what a workspace must not contain:
// other owners, special mode bits and unsafe attributes. Nothing writes to the file any more.
func sanitizeFile(in *tree, d *delta) error {
	if d.upper.Mode&unix.S_IFMT != unix.S_IFREG {
		dir, err := in.openDir(parentDir(d.path))
		if err != nil {
			return err
		}
		defer dir.Close()
		return unix.Fchownat(fdOf(dir), path.Base(d.path), runtime.CommandUID, runtime.CommandGID,
			unix.AT_SYMLINK_NOFOLLOW)
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

// removeAttributes removes all but user attributes.
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
			return fmt.Errorf("attribute %q: %w", clip.Message(name), err)
		}
	}
	return nil
}
