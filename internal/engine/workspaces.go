package engine

import (
	"context"
	"errors"
	"io"

	"github.com/containerd/errdefs"

	v1 "orchestrator/client/v1"
	"orchestrator/internal/guest/wire"
	"orchestrator/internal/safefile"
	"orchestrator/volumes"
)

// CreateWorkspace makes an empty workspace.
func (e *Engine) CreateWorkspace(ctx context.Context, call Call, r v1.WorkspaceRequest) (v1.Workspace, error) {
	return once(ctx, e, call, opWorkspace, r.Name, r, func(ctx context.Context) (v1.Workspace, error) {
		w, err := e.opts.Volumes.Create(ctx, r.Name, volumes.CreateOptions{})
		if errdefs.IsInvalidArgument(err) {
			return v1.Workspace{}, &InvalidError{Field: "name", Message: "cannot be used: " + err.Error(), Class: err}
		}
		return presentWorkspace(w), err
	}, same)
}

// Workspaces lists all workspaces by name.
func (e *Engine) Workspaces(context.Context, Call) ([]v1.Workspace, error) {
	list := e.opts.Volumes.List()
	out := make([]v1.Workspace, 0, len(list))
	for _, w := range list {
		out = append(out, presentWorkspace(w))
	}
	return out, nil
}

// Workspace describes one.
func (e *Engine) Workspace(_ context.Context, _ Call, name string) (v1.Workspace, error) {
	w, err := e.opts.Volumes.Get(name)
	return presentWorkspace(w), err
}

// DeleteWorkspace removes a workspace with all its files; not while a sandbox
// has it.
func (e *Engine) DeleteWorkspace(ctx context.Context, _ Call, name string) error {
	return e.opts.Volumes.Delete(ctx, name)
}

func presentWorkspace(w volumes.Workspace) v1.Workspace {
	out := v1.Workspace{Name: w.Name, CreatedAt: w.CreatedAt, Sandboxes: make([]string, 0, len(w.Leases))}
	for _, l := range w.Leases {
		out.Sandboxes = append(out.Sandboxes, l.ID)
	}
	return out
}

// ReadWorkspaceFile opens a file of a workspace from the host. The caller
// closes it.
func (e *Engine) ReadWorkspaceFile(_ context.Context, _ Call, name string, r wire.FileRequest) (io.ReadCloser, v1.File, error) {
	files, err := e.opts.Volumes.Files(name)
	if err != nil {
		return nil, v1.File{}, err
	}
	body, err := files.Read(r.Path, r.Offset, r.Limit)
	if err != nil {
		return nil, v1.File{}, errors.Join(err, files.Close())
	}
	return &closeBoth{Reader: body, first: body, then: files}, presentInfo(body.Info()), nil
}

// closeBoth closes a file and then the workspace it is of.
type closeBoth struct {
	io.Reader
	first, then io.Closer
}

// Close closes both.
func (c *closeBoth) Close() error { return errors.Join(c.first.Close(), c.then.Close()) }

// WriteWorkspaceFile writes a file of a workspace from the host, whole or not
// at all.
func (e *Engine) WriteWorkspaceFile(_ context.Context, _ Call, name string, r wire.FileRequest, body io.Reader) (f v1.File, err error) {
	files, err := e.opts.Volumes.Files(name)
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
func (e *Engine) ListWorkspaceFiles(ctx context.Context, _ Call, name string, r wire.FileRequest) (list []v1.File, truncated bool, err error) {
	files, err := e.opts.Volumes.Files(name)
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
func (e *Engine) StatWorkspaceFile(_ context.Context, _ Call, name string, r wire.FileRequest) (f v1.File, err error) {
	files, err := e.opts.Volumes.Files(name)
	if err != nil {
		return v1.File{}, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	info, err := files.Stat(r.Path)
	return presentInfo(info), err
}

// RemoveWorkspaceFile removes a file or, with r.Recursive, a folder of a
// workspace.
func (e *Engine) RemoveWorkspaceFile(ctx context.Context, _ Call, name string, r wire.FileRequest) (err error) {
	files, err := e.opts.Volumes.Files(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	return files.Remove(ctx, r.Path, r.Recursive)
}
