package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Overlays lists what overlay leases changed of a workspace, the oldest first.
func (c *Client) Overlays(ctx context.Context, workspace string) ([]v1.Overlay, error) {
	l, err := ask[v1.List[v1.Overlay]](ctx, c, newCall(http.MethodGet, "workspaces", workspace, "overlays"))
	return l.Items, err
}

// Overlay describes one, by the id of its sandbox.
func (c *Client) Overlay(ctx context.Context, id string) (v1.Overlay, error) {
	return ask[v1.Overlay](ctx, c, newCall(http.MethodGet, "overlays", id))
}

// DiffOverlay tells what an overlay changed, of the paths that are named with
// what is below them, or of all; with text, as differences of text too.
func (c *Client) DiffOverlay(ctx context.Context, id string, text bool, paths ...string) (v1.Diff, error) {
	return post[v1.Diff](ctx, c, newCall(http.MethodPost, "overlays", id, "diff"), v1.DiffRequest{Paths: paths, Text: text}, nil)
}

// CommitOverlay puts what an overlay changed into its workspace, all that is
// asked for or nothing.
func (c *Client) CommitOverlay(ctx context.Context, id string, r v1.CommitRequest) (v1.Commit, error) {
	return post[v1.Commit](ctx, c, newCall(http.MethodPost, "overlays", id, "commit"), r, nil)
}

// DiscardOverlay removes what an overlay changed; with end its sandbox is ended
// first.
func (c *Client) DiscardOverlay(ctx context.Context, id string, end bool) error {
	return c.answer(ctx, newCall(http.MethodDelete, "overlays", id).flag("end", end), nil)
}

// Snapshot copies the files of a workspace that nothing uses.
func (c *Client) Snapshot(ctx context.Context, workspace, label string) (v1.Snapshot, error) {
	return post[v1.Snapshot](ctx, c, newCall(http.MethodPost, "workspaces", workspace, "snapshots"), v1.SnapshotRequest{Label: label}, nil)
}

// Snapshots lists those of a workspace, the oldest first.
func (c *Client) Snapshots(ctx context.Context, workspace string) ([]v1.Snapshot, error) {
	l, err := ask[v1.List[v1.Snapshot]](ctx, c, newCall(http.MethodGet, "workspaces", workspace, "snapshots"))
	return l.Items, err
}

// RemoveSnapshot removes a snapshot, named by its id or label.
func (c *Client) RemoveSnapshot(ctx context.Context, workspace, snapshot string) error {
	return c.answer(ctx, newCall(http.MethodDelete, "workspaces", workspace, "snapshots", snapshot), nil)
}

// Restore puts a workspace that nothing uses back to a snapshot, named by its id
// or label.
func (c *Client) Restore(ctx context.Context, workspace, snapshot string) (v1.Snapshot, error) {
	return post[v1.Snapshot](ctx, c, newCall(http.MethodPost, "workspaces", workspace, "restore"), v1.RestoreRequest{Snapshot: snapshot}, nil)
}
