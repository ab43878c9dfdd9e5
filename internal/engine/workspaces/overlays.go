package workspaces

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	disks "github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Overlays lists the overlays of the caller's workspace, oldest first.
func (s *Service) Overlays(_ context.Context, p caller.Principal, name string) ([]v1.Overlay, error) {
	if _, err := s.Find(p, name); err != nil {
		return nil, err
	}
	list, err := s.opts.Volumes.Overlays(DiskName(p.Caller, name))
	out := make([]v1.Overlay, 0, len(list))
	for _, o := range list {
		out = append(out, PresentOverlay(o, name))
	}
	return out, Error(err, DiskName(p.Caller, name), name)
}

// overlayOf returns an overlay of the caller and the caller's name of its workspace. An overlay
// of another caller is NotFound.
func (s *Service) overlayOf(ctx context.Context, p caller.Principal, id string) (volumes.Overlay, string, error) {
	none := usererror.Errorf(
		errdefs.ErrNotFound,
		"overlay %q not found: not an overlay lease, no changes, or committed, discarded or expired",
		id,
	)
	o, err := s.opts.Volumes.FindOverlay(id)
	if errdefs.IsNotFound(err) {
		return o, "", none
	}
	if err != nil {
		return o, "", err
	}
	if p.Caller == caller.LocalCaller {
		if isOwnedDiskName(o.Workspace) {
			return o, "", none
		}
		return o, o.Workspace, nil
	}
	names, err := s.opts.Store.WorkspaceNames(ctx, p.Caller)
	if err != nil {
		return o, "", err
	}
	name, ok := names[o.Workspace]
	if !ok {
		return o, "", none
	}
	return o, name, nil
}

// FindOverlay describes an overlay.
func (s *Service) FindOverlay(ctx context.Context, p caller.Principal, id string) (v1.Overlay, error) {
	o, name, err := s.overlayOf(ctx, p, id)
	return PresentOverlay(o, name), err
}

// DiffOverlay returns the changes of an overlay. paths limits them; text adds text differences.
func (s *Service) DiffOverlay(
	ctx context.Context,
	p caller.Principal,
	id string,
	paths []string,
	text bool,
) (v1.Diff, error) {
	o, name, err := s.overlayOf(ctx, p, id)
	if err != nil {
		return v1.Diff{}, err
	}
	d, err := s.opts.Volumes.Diff(ctx, id, volumes.DiffOptions{Paths: paths, Text: text})
	return PresentDiff(d, name), overlayError(err, o.Workspace, name)
}

// CommitOverlay applies the changes of an overlay to its workspace, completely or not at all. If
// r.End is set, it ends the lease first.
func (s *Service) CommitOverlay(
	ctx context.Context,
	p caller.Principal,
	id string,
	r v1.CommitRequest,
) (v1.Commit, error) {
	o, name, err := s.overlayOf(ctx, p, id)
	if err != nil {
		return v1.Commit{}, err
	}
	if r.End {
		if err := s.endOverlay(ctx, p, o); err != nil {
			return v1.Commit{}, err
		}
		if _, err := s.opts.Volumes.FindOverlay(id); errdefs.IsNotFound(err) {
			return v1.Commit{ID: id, Paths: []string{}, Dropped: []string{}}, nil // the overlay had no changes
		}
	}
	c, err := s.opts.Volumes.Commit(ctx, id, volumes.CommitOptions{Paths: r.Paths, Force: r.Force})
	return PresentCommit(id, c), overlayError(err, o.Workspace, name)
}

// DiscardOverlay removes the changes of an overlay. If end is set, it ends the lease first.
func (s *Service) DiscardOverlay(ctx context.Context, p caller.Principal, id string, end bool) error {
	o, name, err := s.overlayOf(ctx, p, id)
	if err != nil {
		return err
	}
	if end {
		if err := s.endOverlay(ctx, p, o); err != nil {
			return err
		}
	}
	err = s.opts.Volumes.Discard(ctx, id)
	if end && errdefs.IsNotFound(err) { // the overlay had no changes
		return nil
	}
	return overlayError(err, o.Workspace, name)
}

// endOverlay ends the lease of an overlay.
func (s *Service) endOverlay(ctx context.Context, p caller.Principal, o volumes.Overlay) error {
	if !o.Live {
		return nil
	}
	if _, err := s.opts.Scheduler.Row(ctx, p.Caller, o.ID); err != nil {
		return err
	}
	if l := s.opts.Scheduler.Live(o.ID); l != nil {
		return s.opts.Scheduler.End(ctx, l, scheduler.Removed, true)
	}
	return nil
}

// Snapshot copies the files of a workspace. The copy counts toward the caller's disk quota.
func (s *Service) Snapshot(ctx context.Context, p caller.Principal, name, label string) (v1.Snapshot, error) {
	w, err := s.Find(p, name)
	if err != nil {
		return v1.Snapshot{}, err
	}
	if p.Caller != caller.LocalCaller {
		leave, err := s.opts.Keys.LockKey(ctx, SpaceKey(p))
		if err != nil {
			return v1.Snapshot{}, err
		}
		defer leave()
		if err := s.checkSpace(ctx, p, w.UsedBytes); err != nil {
			return v1.Snapshot{}, err
		}
	}
	return withWorkspace(s, p, name, func(disk string) (v1.Snapshot, error) {
		snap, err := s.opts.Volumes.Snapshot(ctx, disk, label)
		return PresentSnapshot(snap, name), err
	})
}

// Snapshots lists the snapshots of a workspace, oldest first.
func (s *Service) Snapshots(_ context.Context, p caller.Principal, name string) ([]v1.Snapshot, error) {
	return withWorkspace(s, p, name, func(disk string) ([]v1.Snapshot, error) {
		list, err := s.opts.Volumes.Snapshots(disk)
		out := make([]v1.Snapshot, 0, len(list))
		for _, snap := range list {
			out = append(out, PresentSnapshot(snap, name))
		}
		return out, err
	})
}

// Restore resets a workspace to a snapshot, which is named by its id or label.
func (s *Service) Restore(ctx context.Context, p caller.Principal, name, snapshot string) (v1.Snapshot, error) {
	return withWorkspace(s, p, name, func(disk string) (v1.Snapshot, error) {
		snap, err := s.opts.Volumes.Restore(ctx, disk, snapshot)
		return PresentSnapshot(snap, name), err
	})
}

// RemoveSnapshot removes a snapshot, which is named by its id or label.
func (s *Service) RemoveSnapshot(ctx context.Context, p caller.Principal, name, snapshot string) error {
	_, err := withWorkspace(s, p, name, func(disk string) (struct{}, error) {
		return struct{}{}, s.opts.Volumes.RemoveSnapshot(ctx, disk, snapshot)
	})
	return err
}

func withWorkspace[T any](svc *Service, p caller.Principal, name string, do func(disk string) (T, error)) (T, error) {
	if _, err := svc.Find(p, name); err != nil {
		var none T
		return none, err
	}
	disk := DiskName(p.Caller, name)
	out, err := do(disk)
	return out, overlayError(err, disk, name)
}

// callerSafeClasses lists the error classes of package volumes whose texts contain only the
// caller's names, ids and paths.
var callerSafeClasses = []error{
	errdefs.ErrNotFound,
	errdefs.ErrAlreadyExists,
	errdefs.ErrFailedPrecondition,
	errdefs.ErrResourceExhausted,
	errdefs.ErrInvalidArgument,
}

// overlayError converts an error about overlays or snapshots for the caller. It replaces the name
// on disk by the caller's name.
func overlayError(err error, disk, name string) error {
	if err == nil {
		return nil
	}
	words := func(text string) string { return strings.ReplaceAll(text, disk, name) }
	if live, ok := errors.AsType[*volumes.LiveError](err); ok {
		return usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"sandbox %s is still running and writes to the overlay: end it first, with `orchestrator sandbox rm %s` or by asking with end",
			live.ID,
			live.ID,
		)
	}
	if c, ok := errors.AsType[*volumes.ConflictError](err); ok {
		return usererror.Errorf(errdefs.ErrConflict, "%s", c.Error())
	}
	if p, ok := errors.AsType[*volumes.PathError](err); ok {
		return usererror.Invalid("paths", "names %q, which is not among the changes: see the diff for those", p.Path)
	}
	if _, ok := errors.AsType[*volumes.BusyError](err); ok {
		return Error(err, disk, name)
	}
	if errors.As(err, new(*volumes.FullError)) || errors.As(err, new(*volumes.ClaimError)) {
		return Error(err, disk, name)
	}
	if small, ok := errors.AsType[*disks.NoRoomError](err); ok {
		return usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"the snapshot's files take %d bytes, and workspace %q holds %d: resize it first",
			small.Used,
			name,
			small.Bytes,
		)
	}
	if errors.Is(err, unix.ENOSPC) {
		return spaceError(err)
	}
	for _, class := range callerSafeClasses {
		if errors.Is(err, class) {
			return usererror.Errorf(class, "%s", words(strings.TrimSuffix(err.Error(), ": "+class.Error())))
		}
	}
	return Error(err, disk, name)
}

// PresentOverlay converts an overlay to its API form. name is the caller's name of the workspace.
func PresentOverlay(o volumes.Overlay, name string) v1.Overlay {
	out := v1.Overlay{ID: o.ID, Workspace: name, CreatedAt: o.CreatedAt, Live: o.Live, Changes: o.Changes}
	out.EndedAt, out.ExpiresAt = timeOrNone(o.EndedAt), timeOrNone(o.ExpiresAt)
	return out
}

func timeOrNone(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// PresentDiff converts a diff to its API form. name is the caller's name of the workspace.
func PresentDiff(d volumes.Diff, name string) v1.Diff {
	out := v1.Diff{
		Overlay: PresentOverlay(d.Overlay, name), Changes: make([]v1.Change, 0, len(d.Changes)),
		Added: d.Added, Changed: d.Changed, Removed: d.Removed, Truncated: d.Truncated,
	}
	for _, c := range d.Changes {
		change := v1.Change{
			Kind: string(c.Kind), Type: c.Type, TypeBefore: c.TypeBefore, Size: c.Size, SizeBefore: c.SizeBefore,
			Diff: c.Text, Binary: c.Binary, Truncated: c.Cut, Dropped: c.Dropped,
		}
		change.Path, change.PathBase64 = presentPath(c.Path)
		if c.Kind != volumes.Removed {
			change.Mode = fmt.Sprintf("%04o", c.Mode)
		}
		if c.Kind != volumes.Added {
			change.ModeBefore = fmt.Sprintf("%04o", c.ModeBefore)
		}
		if c.Conflict != nil {
			change.Conflict = &v1.Conflict{By: c.Conflict.By, At: timeOrNone(c.Conflict.At)}
		}
		out.Changes = append(out.Changes, change)
	}
	return out
}

// presentPath returns a path as valid UTF-8, and in base64 if it is not valid UTF-8 itself.
func presentPath(p string) (text, exact string) {
	if utf8.ValidString(p) {
		return p, ""
	}
	return clip.Valid(p), base64.StdEncoding.EncodeToString([]byte(p))
}

// PresentCommit converts the outcome of a commit to its API form.
func PresentCommit(id string, c volumes.Committed) v1.Commit {
	return v1.Commit{ID: id, Paths: presentPaths(c.Paths), Dropped: presentPaths(c.Dropped), Left: c.Left}
}

func presentPaths(paths []string) []string {
	out := make([]string, 0, len(paths))
	for _, p := range paths {
		text, _ := presentPath(p)
		out = append(out, text)
	}
	return out
}

// PresentSnapshot converts a snapshot to its API form. name is the caller's name of the workspace.
func PresentSnapshot(s volumes.Snapshot, name string) v1.Snapshot {
	return v1.Snapshot{ID: s.ID, Workspace: name, Label: s.Label, CreatedAt: s.CreatedAt, SizeBytes: s.Bytes}
}
