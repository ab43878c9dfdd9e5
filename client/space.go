package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CreateWithQuota creates an empty workspace with a quota in bytes. Zero takes the
// server's default.
func (s Workspaces) CreateWithQuota(
	ctx context.Context,
	name string,
	quota int64,
	opts ...Option,
) (v1.Workspace, error) {
	return callJSONWithBody[v1.Workspace](
		ctx,
		s.c,
		newCall(http.MethodPost, "workspaces"),
		v1.WorkspaceRequest{Name: name, QuotaBytes: quota},
		opts,
	)
}

// Resize changes a workspace's quota, in bytes. A workspace can shrink only while no
// sandbox uses it, and not below the size of its files.
func (s Workspaces) Resize(ctx context.Context, name string, quota int64) (v1.Workspace, error) {
	return callJSONWithBody[v1.Workspace](
		ctx,
		s.c,
		newCall(http.MethodPatch, "workspaces", name),
		v1.WorkspaceResize{QuotaBytes: quota},
		nil,
	)
}
