package client

import (
	"context"
	"io"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Files are the files of one sandbox's or one workspace's /workspace. Paths
// are relative to it. Those of a sandbox are its live ones, those of a
// workspace are read from the host. Files is a value that holds nothing open.
type Files struct {
	client *Client
	path   []string
}

// SandboxFiles are the files that a leased sandbox has.
func (c *Client) SandboxFiles(id string) Files { return Files{c, []string{"sandboxes", id, "files"}} }

// WorkspaceFiles are the files of a workspace.
func (c *Client) WorkspaceFiles(name string) Files {
	return Files{c, []string{"workspaces", name, "files"}}
}

func (f Files) call(method, path string) *call { return newCall(method, f.path...).set("path", path) }

// Range is the part of a file to read; the zero value is all of it.
type Range struct{ Offset, Limit int64 }

// Read opens a file. The caller closes it. A Read of it that fails with
// ErrLost has not seen the file's end.
func (f Files) Read(ctx context.Context, path string, r Range) (io.ReadCloser, error) {
	k := f.call(http.MethodGet, path).number("offset", r.Offset).number("limit", r.Limit)
	k.accept = "application/octet-stream"
	resp, err := f.client.send(ctx, k) //nolint:bodyclose // the caller closes it, with what is returned
	if err != nil {
		return nil, err
	}
	return &body{ReadCloser: resp.Body, ctx: ctx, client: f.client}, nil
}

// body tells a cut stream from one that has ended.
type body struct {
	io.ReadCloser
	ctx    context.Context //nolint:containedctx // of the call that made it
	client *Client
}

// Read gives io.EOF only at the whole answer's end.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.client.lost(b.ctx, err)
	}
	return n, err
}

// WriteOptions of a file; the zero value is good.
type WriteOptions struct {
	// Mode is octal, such as "0755"; "" means "0644".
	Mode string
	// Size is the content's length if Sized is set: less or more is refused.
	Size  int64
	Sized bool
}

// Write writes a file whole, or leaves what was there.
func (f Files) Write(ctx context.Context, path string, content io.Reader, o WriteOptions) (v1.File, error) {
	size := int64(-1)
	if o.Sized {
		size = o.Size
	}
	return ask[v1.File](ctx, f.client, f.call(http.MethodPut, path).set("mode", o.Mode).octets(content, size))
}

// List lists a folder; "" is the topmost. truncated says that it has more
// entries than a server lists.
func (f Files) List(ctx context.Context, path string) (items []v1.File, truncated bool, err error) {
	type listing struct {
		v1.List[v1.File]
		Truncated bool `json:"truncated"`
	}
	l, err := ask[listing](ctx, f.client, f.call(http.MethodGet, path).flag("list", true))
	return l.Items, l.Truncated, err
}

// Stat describes a file.
func (f Files) Stat(ctx context.Context, path string) (v1.File, error) {
	return ask[v1.File](ctx, f.client, f.call(http.MethodGet, path).flag("stat", true))
}

// MakeDir makes a folder with its parents.
func (f Files) MakeDir(ctx context.Context, path string) (v1.File, error) {
	return ask[v1.File](ctx, f.client, f.call(http.MethodPut, path).flag("dir", true))
}

// Move renames a file or folder. Only sandboxes have it.
func (f Files) Move(ctx context.Context, path, to string) (v1.File, error) {
	return ask[v1.File](ctx, f.client, f.call(http.MethodPost, path).set("to", to))
}

// Remove removes a file, or with recursive a folder.
func (f Files) Remove(ctx context.Context, path string, recursive bool) error {
	return f.client.answer(ctx, f.call(http.MethodDelete, path).flag("recursive", recursive), nil)
}
