package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CreateWorkspace creates an empty workspace with the server's default quota.
func (c *Client) CreateWorkspace(ctx context.Context, name string, opts ...Option) (v1.Workspace, error) {
	return callJSONWithBody[v1.Workspace](ctx, c, newCall(http.MethodPost, "workspaces"), v1.WorkspaceRequest{Name: name}, opts)
}

// Workspaces lists all workspaces by name.
func (c *Client) Workspaces(ctx context.Context) ([]v1.Workspace, error) {
	l, err := callJSON[v1.List[v1.Workspace]](ctx, c, newCall(http.MethodGet, "workspaces"))
	return l.Items, err
}

// Workspace returns one workspace.
func (c *Client) Workspace(ctx context.Context, name string) (v1.Workspace, error) {
	return callJSON[v1.Workspace](ctx, c, newCall(http.MethodGet, "workspaces", name))
}

// DeleteWorkspace deletes a workspace with all its files. It fails while a sandbox uses the
// workspace.
func (c *Client) DeleteWorkspace(ctx context.Context, name string) error {
	return c.doJSON(ctx, newCall(http.MethodDelete, "workspaces", name), nil)
}
