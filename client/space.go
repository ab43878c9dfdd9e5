package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CreateWorkspaceOf makes an empty workspace that holds at most quota bytes; zero
// takes the server's default.
func (c *Client) CreateWorkspaceOf(ctx context.Context, name string, quota int64, opts ...Option) (v1.Workspace, error) {
	return post[v1.Workspace](ctx, c, newCall(http.MethodPost, "workspaces"), v1.WorkspaceRequest{Name: name, QuotaBytes: quota}, opts)
}

// ResizeWorkspace changes what a workspace holds at most. It shrinks only while
// no sandbox has it, and not below what is in it.
func (c *Client) ResizeWorkspace(ctx context.Context, name string, quota int64) (v1.Workspace, error) {
	return post[v1.Workspace](ctx, c, newCall(http.MethodPatch, "workspaces", name), v1.WorkspaceResize{QuotaBytes: quota}, nil)
}
