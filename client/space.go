package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CreateWorkspaceWithQuota creates an empty workspace with a quota in bytes. Zero takes the
// server's default.
func (c *Client) CreateWorkspaceWithQuota(ctx context.Context, name string, quota int64, opts ...Option) (v1.Workspace, error) {
	return callJSONWithBody[v1.Workspace](ctx, c, newCall(http.MethodPost, "workspaces"), v1.WorkspaceRequest{Name: name, QuotaBytes: quota}, opts)
}

// ResizeWorkspace changes a workspace's quota, in bytes. A workspace can shrink only while no
// sandbox uses it, and not below the size of its files.
func (c *Client) ResizeWorkspace(ctx context.Context, name string, quota int64) (v1.Workspace, error) {
	return callJSONWithBody[v1.Workspace](ctx, c, newCall(http.MethodPatch, "workspaces", name), v1.WorkspaceResize{QuotaBytes: quota}, nil)
}
