// Package workspaces serves requests about workspaces: their files, overlays, snapshots and space.
package workspaces

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// A workspace belongs to its caller. On disk, workspaces of the local caller have their own names.
// The name of another caller's workspace is ownedPrefix and a digest of caller and name, so that
// names of callers cannot collide. The store maps such names to callers.

// OwnedPrefix is the prefix of the names on disk of other callers' workspaces. ownedLength is their
// length.
const (
	OwnedPrefix = "caller."
	ownedLength = len(OwnedPrefix) + 2*28
)

// DiskName returns the name on disk of an owner's workspace, or "" for "". An invalid name stays
// invalid.
func DiskName(owner, name string) string {
	if owner == caller.LocalCaller {
		if isOwnedDiskName(name) {
			return "?" + name // invalid: it names another caller's workspace
		}
		return name
	}
	if !caller.NamePattern.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(owner + "\x00" + name))
	return OwnedPrefix + hex.EncodeToString(sum[:28])
}

// isOwnedDiskName reports whether a name on disk belongs to an owner other than the local one.
func isOwnedDiskName(disk string) bool {
	return len(disk) == ownedLength && strings.HasPrefix(disk, OwnedPrefix)
}

// Error converts an error about a workspace for its caller.
func Error(err error, disk, name string) error {
	if err == nil {
		return nil
	}
	if busy, ok := errors.AsType[*volumes.BusyError](err); ok {
		return &usererror.InvalidError{Field: "workspace", Class: errdefs.ErrUnavailable, Message: busyText(busy, name)}
	}
	if full, ok := errors.AsType[*volumes.FullError](err); ok {
		return &usererror.InvalidError{Field: "workspace", Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("%q has no room for %s: remove files, discard overlays, or resize it", name, full.For)}
	}
	if c, ok := errors.AsType[*volumes.ClaimError](err); ok {
		return &usererror.InvalidError{Field: "workspace", Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("%q %s", name, c.Message)}
	}
	if disk == name || disk == "" {
		return err
	}
	return &renamedError{err: err, disk: disk, name: name}
}

// busyText says which sandbox uses a workspace, and what to do.
func busyText(b *volumes.BusyError, name string) string {
	switch {
	case b.Lease == "":
		return fmt.Sprintf("%q is being written to from the host: try again", name)
	case b.Claim:
		return fmt.Sprintf("%q is a volume claim, which sandbox %s has: wait for its end, or remove it", name, b.Lease)
	case b.Overlay:
		return fmt.Sprintf(
			"%q has an overlay of sandbox %s and cannot be written to: wait for its end, remove it, or ask with read_only or mode overlay",
			name,
			b.Lease,
		)
	}
	return fmt.Sprintf("%q is written to by sandbox %s: wait for its end, remove it, or ask with read_only", name, b.Lease)
}

// renamedError replaces the name on disk in an error's text.
type renamedError struct {
	err        error
	disk, name string
}

// Error returns the text with the caller's name of the workspace.
func (r *renamedError) Error() string { return strings.ReplaceAll(r.err.Error(), r.disk, r.name) }

// Unwrap returns the original error.
func (r *renamedError) Unwrap() error { return r.err }

// Options configures a Service.
type Options struct {
	Store     *store.Store
	Volumes   *volumes.Manager
	Scheduler *scheduler.Scheduler
	Callers   *caller.Service
	Keys      *idempotency.Keys
	Events    *eventhub.Hub
	Log       *slog.Logger
}

// Service serves requests about workspaces, their overlays and snapshots. Its methods may be called
// concurrently.
type Service struct{ opts Options }

// New returns a Service. Run guards the host's disk.
func New(opts Options) *Service { return &Service{opts: opts} }

// Find returns a workspace of the caller. A workspace of another caller is NotFound.
func (s *Service) Find(p caller.Principal, name string) (volumes.Workspace, error) {
	w, err := s.opts.Volumes.Get(DiskName(p.Caller, name))
	if errdefs.IsNotFound(err) {
		return w, usererror.Errorf(errdefs.ErrNotFound, "workspace %q not found", name)
	}
	w.Name = name
	return w, err
}

// OpWorkspace is the stored name of the operation that creates a workspace.
const OpWorkspace = "workspace"

// Create creates an empty workspace.
func (s *Service) Create(ctx context.Context, p caller.Principal, r v1.WorkspaceRequest) (v1.Workspace, error) {
	return idempotency.Do(ctx, s.opts.Keys, p, OpWorkspace, r.Name, r, func(ctx context.Context) (v1.Workspace, error) {
		disk := DiskName(p.Caller, r.Name)
		if err := s.recordOwner(ctx, p, disk, r.Name); err != nil {
			return v1.Workspace{}, err
		}
		w, err := s.createWithinQuota(ctx, p, disk, volumes.CreateOptions{QuotaBytes: r.QuotaBytes})
		switch {
		case errors.As(err, new(*usererror.InvalidError)):
			return v1.Workspace{}, err
		case errdefs.IsInvalidArgument(err):
			return v1.Workspace{}, usererror.Invalid(
				"name",
				"is %q: use lower-case letters, digits, '.', '_' or '-', at most 63 of them, begin with a letter or a digit, and not as %s<56 digits>",
				r.Name,
				OwnedPrefix,
			)
		case errdefs.IsAlreadyExists(err):
			return v1.Workspace{}, usererror.Errorf(errdefs.ErrAlreadyExists, "workspace %q already exists", r.Name)
		}
		if err == nil { // record it again: a concurrent delete may have removed the owner
			err = s.recordOwner(ctx, p, disk, r.Name)
		}
		if w.Name = r.Name; err == nil {
			s.opts.Events.Publish(v1.ServiceEvent{Type: "workspace.created", Caller: p.Caller, Workspace: r.Name})
		}
		return PresentWorkspace(w), Error(err, disk, r.Name)
	}, func(w v1.Workspace) v1.Workspace { return w })
}

// recordOwner stores the owner of a name on disk that does not contain the caller's name.
func (s *Service) recordOwner(ctx context.Context, p caller.Principal, disk, name string) error {
	if p.Caller == caller.LocalCaller || !isOwnedDiskName(disk) {
		return nil
	}
	return s.opts.Store.NameWorkspace(ctx, disk, p.Caller, name)
}

// List lists the caller's workspaces by name.
func (s *Service) List(ctx context.Context, p caller.Principal) ([]v1.Workspace, error) {
	out := []v1.Workspace{}
	if p.Caller == caller.LocalCaller {
		for _, w := range s.opts.Volumes.List() {
			if !isOwnedDiskName(w.Name) {
				out = append(out, PresentWorkspace(w))
			}
		}
		return out, nil
	}
	names, err := s.opts.Store.WorkspaceNames(ctx, p.Caller)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Values(names)) {
		if w, err := s.Find(p, name); err == nil { // skip a workspace whose creation was interrupted
			out = append(out, PresentWorkspace(w))
		}
	}
	return out, nil
}

// Get describes a workspace.
func (s *Service) Get(_ context.Context, p caller.Principal, name string) (v1.Workspace, error) {
	w, err := s.Find(p, name)
	return PresentWorkspace(w), err
}

// Delete removes a workspace and all its files. It fails while a sandbox uses the
// workspace.
func (s *Service) Delete(ctx context.Context, p caller.Principal, name string) error {
	if _, err := s.Find(p, name); err != nil {
		return err
	}
	disk := DiskName(p.Caller, name)
	// Remove the owner first: removed later, it could be that of a new workspace with the same
	// name.
	if err := s.opts.Store.UnnameWorkspace(ctx, disk); err != nil {
		return err
	}
	err := s.opts.Volumes.Delete(ctx, disk)
	if err == nil || errdefs.IsNotFound(err) {
		s.opts.Events.Publish(v1.ServiceEvent{Type: "workspace.removed", Caller: p.Caller, Workspace: name})
		return Error(err, disk, name)
	}
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, find := s.Find(p, name); find == nil {
		err = errors.Join(err, s.recordOwner(again, p, disk, name))
	}
	if errdefs.IsFailedPrecondition(err) && !errors.As(err, new(*volumes.ClaimError)) {
		return usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"workspace %q is in use: remove the sandboxes that have it first",
			name,
		)
	}
	return Error(err, disk, name)
}

// PresentWorkspace converts a workspace to its API form.
func PresentWorkspace(w volumes.Workspace) v1.Workspace {
	out := v1.Workspace{
		Name: w.Name, CreatedAt: w.CreatedAt, Sandboxes: make([]string, 0, len(w.Leases)),
		QuotaBytes: w.QuotaBytes, UsedBytes: w.UsedBytes, Overlays: w.Overlays, Snapshots: w.Snapshots,
		Claim: w.Claim,
	}
	for _, l := range w.Leases {
		out.Sandboxes = append(out.Sandboxes, l.ID)
	}
	return out
}

// workspaceFiles opens the files of the caller's workspace, for writing if write is set.
func (s *Service) workspaceFiles(
	ctx context.Context,
	p caller.Principal,
	name string,
	write bool,
) (*volumes.Files, error) {
	if _, err := s.Find(p, name); err != nil {
		return nil, err
	}
	disk := DiskName(p.Caller, name)
	open := s.opts.Volumes.Files
	if write {
		open = s.opts.Volumes.Edit
	}
	files, err := open(ctx, disk)
	return files, Error(err, disk, name)
}

// ReadFile opens a file of a workspace on the host. The caller must close it.
func (s *Service) ReadFile(
	ctx context.Context,
	p caller.Principal,
	name string,
	r wire.FileRequest,
) (io.ReadCloser, v1.File, error) {
	files, err := s.workspaceFiles(ctx, p, name, false)
	if err != nil {
		return nil, v1.File{}, err
	}
	body, err := files.Read(r.Path, r.Offset, r.Limit)
	if err != nil {
		return nil, v1.File{}, errors.Join(err, files.Close())
	}
	return &fileAndWorkspace{Reader: body, first: body, then: files}, presentInfo(body.Info()), nil
}

// fileAndWorkspace is a file body that closes its workspace with it.
type fileAndWorkspace struct {
	io.Reader
	first, then io.Closer
}

// Close closes the file and then the workspace.
func (c *fileAndWorkspace) Close() error { return errors.Join(c.first.Close(), c.then.Close()) }

// MakeDir creates a directory and its parents in a workspace that is not in use.
func (s *Service) MakeDir(
	ctx context.Context,
	p caller.Principal,
	name string,
	r wire.FileRequest,
) (f v1.File, err error) {
	files, err := s.workspaceFiles(ctx, p, name, true)
	if err != nil {
		return v1.File{}, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	info, err := files.Mkdir(r.Path, r.Mode)
	return presentInfo(info), err
}

// WriteFile writes a file of a workspace on the host, atomically.
func (s *Service) WriteFile(
	ctx context.Context,
	p caller.Principal,
	name string,
	r wire.FileRequest,
	body io.Reader,
) (f v1.File, err error) {
	s.guardSpace(ctx)
	files, err := s.workspaceFiles(ctx, p, name, true)
	if err != nil {
		return v1.File{}, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	w, err := files.Write(r.Path, safefile.WriteOptions{Mode: r.Mode, Size: r.Size, Parents: true})
	if err != nil {
		return v1.File{}, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := io.Copy(w, body); err != nil {
		return v1.File{}, err
	}
	info, err := w.Commit()
	return presentInfo(info), err
}

// ListFiles lists a directory of a workspace and reports whether the list was truncated.
func (s *Service) ListFiles(
	ctx context.Context,
	p caller.Principal,
	name string,
	r wire.FileRequest,
) (list []v1.File, truncated bool, err error) {
	files, err := s.workspaceFiles(ctx, p, name, false)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	items, truncated, err := files.List(ctx, r.Path, wire.MaxEntries, nil)
	list = make([]v1.File, 0, len(items))
	for _, i := range items {
		list = append(list, presentInfo(i))
	}
	return list, truncated, err
}

// StatFile describes a file of a workspace.
func (s *Service) StatFile(
	ctx context.Context,
	p caller.Principal,
	name string,
	r wire.FileRequest,
) (f v1.File, err error) {
	files, err := s.workspaceFiles(ctx, p, name, false)
	if err != nil {
		return v1.File{}, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	info, err := files.Stat(r.Path)
	return presentInfo(info), err
}

// RemoveFile removes a file of a workspace, or a directory if r.Recursive is set.
func (s *Service) RemoveFile(ctx context.Context, p caller.Principal, name string, r wire.FileRequest) (err error) {
	files, err := s.workspaceFiles(ctx, p, name, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	return files.Remove(ctx, r.Path, r.Recursive)
}
