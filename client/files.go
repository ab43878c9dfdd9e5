package client

import (
	"context"
	"io"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Files accesses /workspace in a sandbox or in a stored workspace. Paths are relative to it. For a
// sandbox it uses the running sandbox's files, for a workspace the files on the host. Files is a
// plain value that need not be closed, and is safe for concurrent use.
type Files struct {
	client *Client
	path   []string
}

// SandboxFiles returns access to the files of a leased sandbox. It sends no request.
func (c *Client) SandboxFiles(id string) Files { return Files{c, []string{"sandboxes", id, "files"}} }

// Files returns access to the files of a workspace. It sends no request.
func (s Workspaces) Files(name string) Files {
	return Files{s.c, []string{"workspaces", name, "files"}}
}

func (f Files) call(method, path string) *call { return newCall(method, f.path...).set("path", path) }

// Range selects part of a file, in bytes. A Limit of 0 reads to the end of the file.
type Range struct{ Offset, Limit int64 }

// Read opens a file for reading. The caller must close it, and ctx must stay valid until then. If a
// read fails with ErrLost, the data is incomplete.
func (f Files) Read(ctx context.Context, path string, r Range) (io.ReadCloser, error) {
	k := f.call(http.MethodGet, path).number("offset", r.Offset).number("limit", r.Limit)
	k.accept = "application/octet-stream"
	resp, err := f.client.send(ctx, k) //nolint:bodyclose // the caller closes it, with what is returned
	if err != nil {
		return nil, err
	}
	return &body{ReadCloser: resp.Body, ctx: ctx, client: f.client}, nil
}

// body is a response body that reports a broken connection as ErrLost.
type body struct {
	io.ReadCloser
	ctx    context.Context // of the call that made it
	client *Client
}

// Read returns io.EOF only at the end of a complete answer.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = b.client.connectionError(b.ctx, err)
	}
	return n, err
}

// WriteOptions configure Files.Write. The zero value is valid.
type WriteOptions struct {
	// Mode holds the permission bits in octal, such as "0755". "" means "0644".
	Mode string
	// Size is the exact length of the content in bytes, if Sized is set. Content of another length
	// is refused.
	Size  int64
	Sized bool
}

// Write replaces a file atomically with content: if it fails, the old file is unchanged. It does
// not close content.
func (f Files) Write(ctx context.Context, path string, content io.Reader, o WriteOptions) (v1.File, error) {
	size := int64(-1)
	if o.Sized {
		size = o.Size
	}
	return callJSON[v1.File](ctx, f.client, f.call(http.MethodPut, path).set("mode", o.Mode).streamBody(content, size))
}

// List lists a directory; "" is the root of the workspace. truncated reports that the directory has
// more entries than the server lists.
func (f Files) List(ctx context.Context, path string) (items []v1.File, truncated bool, err error) {
	type listing struct {
		v1.List[v1.File]
		Truncated bool `json:"truncated"`
	}
	l, err := callJSON[listing](ctx, f.client, f.call(http.MethodGet, path).flag("list", true))
	return l.Items, l.Truncated, err
}

// Stat describes a file or directory.
func (f Files) Stat(ctx context.Context, path string) (v1.File, error) {
	return callJSON[v1.File](ctx, f.client, f.call(http.MethodGet, path).flag("stat", true))
}

// MakeDir creates a directory and its missing parents.
func (f Files) MakeDir(ctx context.Context, path string) (v1.File, error) {
	return callJSON[v1.File](ctx, f.client, f.call(http.MethodPut, path).flag("dir", true))
}

// Move renames a file or directory. It works for sandboxes only.
func (f Files) Move(ctx context.Context, path, to string) (v1.File, error) {
	return callJSON[v1.File](ctx, f.client, f.call(http.MethodPost, path).set("to", to))
}

// Remove removes a file or, if recursive is set, a directory with its content.
func (f Files) Remove(ctx context.Context, path string, recursive bool) error {
	return f.client.doJSON(ctx, f.call(http.MethodDelete, path).flag("recursive", recursive), nil)
}
