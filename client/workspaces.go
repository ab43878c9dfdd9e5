package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Create creates an empty workspace with the server's default quota.
func (s Workspaces) Create(ctx context.Context, name string, opts ...Option) (v1.Workspace, error) {
	return callJSONWithBody[v1.Workspace](
		ctx,
		s.c,
		newCall(http.MethodPost, "workspaces"),
		v1.WorkspaceRequest{Name: name},
		opts,
	)
}

// List lists all workspaces by name.
func (s Workspaces) List(ctx context.Context) ([]v1.Workspace, error) {
	l, err := callJSON[v1.List[v1.Workspace]](ctx, s.c, newCall(http.MethodGet, "workspaces"))
	return l.Items, err
}

// Get returns one workspace.
func (s Workspaces) Get(ctx context.Context, name string) (v1.Workspace, error) {
	return callJSON[v1.Workspace](ctx, s.c, newCall(http.MethodGet, "workspaces", name))
}

// Delete deletes a workspace with all its files. It fails while a sandbox uses the
// workspace.
func (s Workspaces) Delete(ctx context.Context, name string) error {
	return s.c.doJSON(ctx, newCall(http.MethodDelete, "workspaces", name), nil)
}
