package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Workspaces belong to their callers. Those of the local caller have their own
// names on disk. Those of others are called ownedPrefix and a digest of caller
// and name there, so that nobody's name meets another's; which name is whose
// stands in the store.

// ownedPrefix begins the names on disk of all but the local caller's
// workspaces, and ownedLength is how long they are.
const (
	ownedPrefix = "caller."
	ownedLength = len(ownedPrefix) + 2*28
)

// diskName is the name on disk of a caller's workspace, "" for none. A name that
// is no name of a workspace stays so.
func diskName(caller, name string) string {
	if caller == LocalCaller {
		if isOwnedDiskName(name) {
			return "?" + name // no name: it is another's
		}
		return name
	}
	if !callerPattern.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(caller + "\x00" + name))
	return ownedPrefix + hex.EncodeToString(sum[:28])
}

// isOwnedDiskName says whether a name on disk is of a workspace of another caller than
// the local one.
func isOwnedDiskName(disk string) bool {
	return len(disk) == ownedLength && strings.HasPrefix(disk, ownedPrefix)
}

// workspaceError says an error about a workspace in the words of its caller.
func workspaceError(err error, disk, name string) error {
	if err == nil {
		return nil
	}
	if busy, ok := errors.AsType[*volumes.BusyError](err); ok {
		return &InvalidError{Field: "workspace", Class: errdefs.ErrUnavailable, Message: busyText(busy, name)}
	}
	if full, ok := errors.AsType[*volumes.FullError](err); ok {
		return &InvalidError{Field: "workspace", Class: errdefs.ErrFailedPrecondition,
			Message: fmt.Sprintf("%q has no room for %s: remove files, discard overlays, or resize it", name, full.For)}
	}
	if disk == name || disk == "" {
		return err
	}
	return &renamedError{err: err, disk: disk, name: name}
}

// busyText says who has a workspace, and what can be done about it.
func busyText(b *volumes.BusyError, name string) string {
	switch {
	case b.Lease == "":
		return fmt.Sprintf("%q is being written to from the host: try again", name)
	case b.Overlay:
		return fmt.Sprintf("%q has an overlay of sandbox %s, below which nobody may write: wait for its end, remove it, or ask with read_only or mode overlay", name, b.Lease)
	}
	return fmt.Sprintf("%q is written to by sandbox %s: wait for its end, remove it, or ask with read_only", name, b.Lease)
}

// renamedError hides a name on disk.
type renamedError struct {
	err        error
	disk, name string
}

// Error has the caller's name instead.
func (r *renamedError) Error() string { return strings.ReplaceAll(r.err.Error(), r.disk, r.name) }

// Unwrap gives the error as it is.
func (r *renamedError) Unwrap() error { return r.err }

// findWorkspace finds a workspace of the caller. That of another and one that is
// not there are NotFound alike.
func (e *Engine) findWorkspace(call Call, name string) (volumes.Workspace, error) {
	w, err := e.opts.Volumes.Get(diskName(call.Caller, name))
	if errdefs.IsNotFound(err) {
		return w, usererror.Errorf(errdefs.ErrNotFound, "there is no workspace %q", name)
	}
	w.Name = name
	return w, err
}

// CreateWorkspace makes an empty workspace.
func (e *Engine) CreateWorkspace(ctx context.Context, call Call, r v1.WorkspaceRequest) (v1.Workspace, error) {
	return idempotent(ctx, e, call, opWorkspace, r.Name, r, func(ctx context.Context) (v1.Workspace, error) {
		disk := diskName(call.Caller, r.Name)
		if err := e.recordOwner(ctx, call, disk, r.Name); err != nil {
			return v1.Workspace{}, err
		}
		w, err := e.createWithinQuota(ctx, call, disk, volumes.CreateOptions{QuotaBytes: r.QuotaBytes})
		switch {
		case As[*InvalidError](err) != nil:
			return v1.Workspace{}, err
		case errdefs.IsInvalidArgument(err):
			return v1.Workspace{}, invalid("name", "is %q: use lower-case letters, digits, '.', '_' or '-', at most 63 of them, begin with a letter or a digit, and not as %s<56 digits>", r.Name, ownedPrefix)
		case errdefs.IsAlreadyExists(err):
			return v1.Workspace{}, usererror.Errorf(errdefs.ErrAlreadyExists, "workspace %q is there already", r.Name)
		}
		if err == nil { // again: one of that name may have been deleted meanwhile
			err = e.recordOwner(ctx, call, disk, r.Name)
		}
		if w.Name = r.Name; err == nil {
			e.events.publish(v1.ServiceEvent{Type: "workspace.created", Caller: call.Caller, Workspace: r.Name})
		}
		return presentWorkspace(w), workspaceError(err, disk, r.Name)
	}, identity)
}

// recordOwner notes whose a name on disk is, where it does not say.
func (e *Engine) recordOwner(ctx context.Context, call Call, disk, name string) error {
	if call.Caller == LocalCaller || !isOwnedDiskName(disk) {
		return nil
	}
	return e.opts.Store.NameWorkspace(ctx, disk, call.Caller, name)
}

// Workspaces lists the caller's workspaces by name.
func (e *Engine) Workspaces(ctx context.Context, call Call) ([]v1.Workspace, error) {
	out := []v1.Workspace{}
	if call.Caller == LocalCaller {
		for _, w := range e.opts.Volumes.List() {
			if !isOwnedDiskName(w.Name) {
				out = append(out, presentWorkspace(w))
			}
		}
		return out, nil
	}
	names, err := e.opts.Store.WorkspaceNames(ctx, call.Caller)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Values(names)) {
		if w, err := e.findWorkspace(call, name); err == nil { // one whose making was cut short is not
			out = append(out, presentWorkspace(w))
		}
	}
	return out, nil
}

// Workspace describes one.
func (e *Engine) Workspace(_ context.Context, call Call, name string) (v1.Workspace, error) {
	w, err := e.findWorkspace(call, name)
	return presentWorkspace(w), err
}

// DeleteWorkspace removes a workspace with all its files; not while a sandbox
// has it.
func (e *Engine) DeleteWorkspace(ctx context.Context, call Call, name string) error {
	if _, err := e.findWorkspace(call, name); err != nil {
		return err
	}
	disk := diskName(call.Caller, name)
	// Its name goes first: after it, one that is made anew could lose its own.
	if err := e.opts.Store.UnnameWorkspace(ctx, disk); err != nil {
		return err
	}
	err := e.opts.Volumes.Delete(ctx, disk)
	if err == nil || errdefs.IsNotFound(err) {
		e.events.publish(v1.ServiceEvent{Type: "workspace.removed", Caller: call.Caller, Workspace: name})
		return workspaceError(err, disk, name)
	}
	again, cancel := detach(ctx, 10*time.Second)
	defer cancel()
	if _, find := e.findWorkspace(call, name); find == nil {
		err = errors.Join(err, e.recordOwner(again, call, disk, name))
	}
	if errdefs.IsFailedPrecondition(err) {
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "workspace %q is in use: remove the sandboxes that have it first", name)
	}
	return workspaceError(err, disk, name)
}

func presentWorkspace(w volumes.Workspace) v1.Workspace {
	out := v1.Workspace{
		Name: w.Name, CreatedAt: w.CreatedAt, Sandboxes: make([]string, 0, len(w.Leases)),
		QuotaBytes: w.QuotaBytes, UsedBytes: w.UsedBytes, Overlays: w.Overlays, Snapshots: w.Snapshots,
	}
	for _, l := range w.Leases {
		out.Sandboxes = append(out.Sandboxes, l.ID)
	}
	return out
}

// workspaceFiles opens the files of a workspace of the caller, and to be written
// to if write is set.
func (e *Engine) workspaceFiles(ctx context.Context, call Call, name string, write bool) (*volumes.Files, error) {
	if _, err := e.findWorkspace(call, name); err != nil {
		return nil, err
	}
	disk := diskName(call.Caller, name)
	open := e.opts.Volumes.Files
	if write {
		open = e.opts.Volumes.Edit
	}
	files, err := open(ctx, disk)
	return files, workspaceError(err, disk, name)
}

// ReadWorkspaceFile opens a file of a workspace from the host. The caller
// closes it.
func (e *Engine) ReadWorkspaceFile(ctx context.Context, call Call, name string, r wire.FileRequest) (io.ReadCloser, v1.File, error) {
	files, err := e.workspaceFiles(ctx, call, name, false)
	if err != nil {
		return nil, v1.File{}, err
	}
	body, err := files.Read(r.Path, r.Offset, r.Limit)
	if err != nil {
		return nil, v1.File{}, errors.Join(err, files.Close())
	}
	return &fileAndWorkspace{Reader: body, first: body, then: files}, presentInfo(body.Info()), nil
}

// fileAndWorkspace closes a file and then the workspace it is of.
type fileAndWorkspace struct {
	io.Reader
	first, then io.Closer
}

// Close closes both.
func (c *fileAndWorkspace) Close() error { return errors.Join(c.first.Close(), c.then.Close()) }

// MakeWorkspaceDir makes a folder of a workspace at rest, with its parents.
func (e *Engine) MakeWorkspaceDir(ctx context.Context, call Call, name string, r wire.FileRequest) (f v1.File, err error) {
	files, err := e.workspaceFiles(ctx, call, name, true)
	if err != nil {
		return v1.File{}, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	info, err := files.Mkdir(r.Path, r.Mode)
	return presentInfo(info), err
}

// WriteWorkspaceFile writes a file of a workspace from the host, whole or not
// at all.
func (e *Engine) WriteWorkspaceFile(ctx context.Context, call Call, name string, r wire.FileRequest, body io.Reader) (f v1.File, err error) {
	e.guardSpace()
	files, err := e.workspaceFiles(ctx, call, name, true)
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

// ListWorkspaceFiles lists a folder of a workspace.
func (e *Engine) ListWorkspaceFiles(ctx context.Context, call Call, name string, r wire.FileRequest) (list []v1.File, truncated bool, err error) {
	files, err := e.workspaceFiles(ctx, call, name, false)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	items, truncated, err := files.List(ctx, r.Path, maxEntries, nil)
	list = make([]v1.File, 0, len(items))
	for _, i := range items {
		list = append(list, presentInfo(i))
	}
	return list, truncated, err
}

// StatWorkspaceFile describes a file of a workspace.
func (e *Engine) StatWorkspaceFile(ctx context.Context, call Call, name string, r wire.FileRequest) (f v1.File, err error) {
	files, err := e.workspaceFiles(ctx, call, name, false)
	if err != nil {
		return v1.File{}, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	info, err := files.Stat(r.Path)
	return presentInfo(info), err
}

// RemoveWorkspaceFile removes a file or, with r.Recursive, a folder of a
// workspace.
func (e *Engine) RemoveWorkspaceFile(ctx context.Context, call Call, name string, r wire.FileRequest) (err error) {
	files, err := e.workspaceFiles(ctx, call, name, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	return files.Remove(ctx, r.Path, r.Recursive)
}
