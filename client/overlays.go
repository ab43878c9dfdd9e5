package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Overlays lists a workspace's overlays, oldest first.
func (c *Client) Overlays(ctx context.Context, workspace string) ([]v1.Overlay, error) {
	l, err := callJSON[v1.List[v1.Overlay]](ctx, c, newCall(http.MethodGet, "workspaces", workspace, "overlays"))
	return l.Items, err
}

// Overlay returns one overlay. Its id is the id of its sandbox.
func (c *Client) Overlay(ctx context.Context, id string) (v1.Overlay, error) {
	return callJSON[v1.Overlay](ctx, c, newCall(http.MethodGet, "overlays", id))
}

// DiffOverlay returns the changes in an overlay. paths selects files and directories with their
// content; without paths, all changes are returned. If text is set, the changes include unified
// diffs of text files.
func (c *Client) DiffOverlay(ctx context.Context, id string, text bool, paths ...string) (v1.Diff, error) {
	return callJSONWithBody[v1.Diff](ctx, c, newCall(http.MethodPost, "overlays", id, "diff"), v1.DiffRequest{Paths: paths, Text: text}, nil)
}

// CommitOverlay applies changes of an overlay to its workspace. It applies everything that r
// selects or, on error, nothing.
func (c *Client) CommitOverlay(ctx context.Context, id string, r v1.CommitRequest) (v1.Commit, error) {
	return callJSONWithBody[v1.Commit](ctx, c, newCall(http.MethodPost, "overlays", id, "commit"), r, nil)
}

// DiscardOverlay deletes an overlay. If end is set, it first destroys the overlay's sandbox.
func (c *Client) DiscardOverlay(ctx context.Context, id string, end bool) error {
	return c.doJSON(ctx, newCall(http.MethodDelete, "overlays", id).flag("end", end), nil)
}

// Snapshot copies the files of a workspace. No sandbox may be using the workspace. label may be
// empty.
func (c *Client) Snapshot(ctx context.Context, workspace, label string) (v1.Snapshot, error) {
	return callJSONWithBody[v1.Snapshot](ctx, c, newCall(http.MethodPost, "workspaces", workspace, "snapshots"), v1.SnapshotRequest{Label: label}, nil)
}

// Snapshots lists a workspace's snapshots, oldest first.
func (c *Client) Snapshots(ctx context.Context, workspace string) ([]v1.Snapshot, error) {
	l, err := callJSON[v1.List[v1.Snapshot]](ctx, c, newCall(http.MethodGet, "workspaces", workspace, "snapshots"))
	return l.Items, err
}

// RemoveSnapshot deletes a snapshot by its id or label.
func (c *Client) RemoveSnapshot(ctx context.Context, workspace, snapshot string) error {
	return c.doJSON(ctx, newCall(http.MethodDelete, "workspaces", workspace, "snapshots", snapshot), nil)
}

// Restore replaces a workspace's files by those of a snapshot, given by id or label. No sandbox may
// be using the workspace.
func (c *Client) Restore(ctx context.Context, workspace, snapshot string) (v1.Snapshot, error) {
	return callJSONWithBody[v1.Snapshot](ctx, c, newCall(http.MethodPost, "workspaces", workspace, "restore"), v1.RestoreRequest{Snapshot: snapshot}, nil)
}
