package engine

import (
	"context"
	"fmt"
	"io"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

// use enters a lease of the caller. The caller must call Leave on the result.
func (e *Engine) use(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
) (*scheduler.Lease, *scheduler.Use, error) {
	l, err := e.findLease(ctx, p, sandbox)
	if err != nil {
		return nil, nil, err
	}
	u, err := l.Enter(ctx)
	return l, u, err
}

// ReadFile opens a file of the sandbox. The caller must close it.
func (e *Engine) ReadFile(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	r wire.FileRequest,
) (io.ReadCloser, v1.File, error) {
	l, u, err := e.use(ctx, p, sandbox)
	if err != nil {
		return nil, v1.File{}, err
	}
	body, info, err := u.ReadFile(u.Ctx, r)
	if err != nil {
		u.Leave()
		return nil, v1.File{}, l.Explain(err)
	}
	return &leaseBody{ReadCloser: body, use: u}, presentFile(info), nil
}

// leaseBody is a file body that leaves its lease when it is closed.
type leaseBody struct {
	io.ReadCloser
	use *scheduler.Use
}

// Close closes the body and leaves the lease.
func (b *leaseBody) Close() error {
	defer b.use.Leave()
	return b.ReadCloser.Close()
}

// WriteFile writes a file atomically.
func (e *Engine) WriteFile(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	r wire.FileRequest,
	body io.Reader,
) (v1.File, error) {
	return e.file(ctx, p, sandbox, func(u *scheduler.Use) (wire.FileInfo, error) { return u.WriteFile(u.Ctx, r, body) })
}

// StatFile describes a file.
func (e *Engine) StatFile(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	r wire.FileRequest,
) (v1.File, error) {
	return e.file(ctx, p, sandbox, func(u *scheduler.Use) (wire.FileInfo, error) { return u.Stat(u.Ctx, r) })
}

// MakeDir creates a directory and its parents.
func (e *Engine) MakeDir(ctx context.Context, p caller.Principal, sandbox string, r wire.FileRequest) (v1.File, error) {
	return e.file(ctx, p, sandbox, func(u *scheduler.Use) (wire.FileInfo, error) { return u.Mkdir(u.Ctx, r) })
}

// MoveFile moves a file or directory to r.To.
func (e *Engine) MoveFile(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	r wire.FileRequest,
) (v1.File, error) {
	return e.file(ctx, p, sandbox, func(u *scheduler.Use) (wire.FileInfo, error) { return u.Move(u.Ctx, r) })
}

// RemoveFile removes a file, or a directory if r.Recursive is set.
func (e *Engine) RemoveFile(ctx context.Context, p caller.Principal, sandbox string, r wire.FileRequest) error {
	_, err := e.file(
		ctx,
		p,
		sandbox,
		func(u *scheduler.Use) (wire.FileInfo, error) { return wire.FileInfo{}, u.Remove(u.Ctx, r) },
	)
	return err
}

func (e *Engine) file(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	do func(*scheduler.Use) (wire.FileInfo, error),
) (v1.File, error) {
	l, u, err := e.use(ctx, p, sandbox)
	if err != nil {
		return v1.File{}, err
	}
	defer u.Leave()
	info, err := do(u)
	return presentFile(info), l.Explain(err)
}

// ListFiles lists a directory and reports whether the list was truncated.
func (e *Engine) ListFiles(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	r wire.FileRequest,
) ([]v1.File, bool, error) {
	l, u, err := e.use(ctx, p, sandbox)
	if err != nil {
		return nil, false, err
	}
	defer u.Leave()
	list, err := u.List(u.Ctx, r)
	if err != nil {
		return nil, false, l.Explain(err)
	}
	out := make([]v1.File, 0, len(list.Items))
	for _, i := range list.Items {
		out = append(out, presentFile(i))
	}
	return out, list.Truncated, nil
}

func presentFile(i wire.FileInfo) v1.File {
	return v1.File{
		Name: i.Name, Path: i.Path, Type: i.Type, Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode), UID: i.UID, GID: i.GID,
		ModTime: i.ModTime, Target: i.Target,
	}
}
