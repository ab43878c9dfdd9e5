package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// List lists a workspace's overlays, oldest first.
func (s Overlays) List(ctx context.Context, workspace string) ([]v1.Overlay, error) {
	l, err := callJSON[v1.List[v1.Overlay]](ctx, s.c, newCall(http.MethodGet, "workspaces", workspace, "overlays"))
	return l.Items, err
}

// Get returns one overlay. Its id is the id of its sandbox.
func (s Overlays) Get(ctx context.Context, id string) (v1.Overlay, error) {
	return callJSON[v1.Overlay](ctx, s.c, newCall(http.MethodGet, "overlays", id))
}

// Diff returns the changes in an overlay. paths selects files and directories with their
// content; without paths, all changes are returned. If text is set, the changes include unified
// diffs of text files.
func (s Overlays) Diff(ctx context.Context, id string, text bool, paths ...string) (v1.Diff, error) {
	return callJSONWithBody[v1.Diff](
		ctx,
		s.c,
		newCall(http.MethodPost, "overlays", id, "diff"),
		v1.DiffRequest{Paths: paths, Text: text},
		nil,
	)
}

// Commit applies changes of an overlay to its workspace. It applies everything that r
// selects or, on error, nothing.
func (s Overlays) Commit(ctx context.Context, id string, r v1.CommitRequest) (v1.Commit, error) {
	return callJSONWithBody[v1.Commit](ctx, s.c, newCall(http.MethodPost, "overlays", id, "commit"), r, nil)
}

// Discard deletes an overlay. If end is set, it first destroys the overlay's sandbox.
func (s Overlays) Discard(ctx context.Context, id string, end bool) error {
	return s.c.doJSON(ctx, newCall(http.MethodDelete, "overlays", id).flag("end", end), nil)
}

// Create copies the files of a workspace. No sandbox may be using the workspace. label may be
// empty.
func (s Snapshots) Create(ctx context.Context, workspace, label string) (v1.Snapshot, error) {
	return callJSONWithBody[v1.Snapshot](
		ctx,
		s.c,
		newCall(http.MethodPost, "workspaces", workspace, "snapshots"),
		v1.SnapshotRequest{Label: label},
		nil,
	)
}

// List lists a workspace's snapshots, oldest first.
func (s Snapshots) List(ctx context.Context, workspace string) ([]v1.Snapshot, error) {
	l, err := callJSON[v1.List[v1.Snapshot]](ctx, s.c, newCall(http.MethodGet, "workspaces", workspace, "snapshots"))
	return l.Items, err
}

// Remove deletes a snapshot by its id or label.
func (s Snapshots) Remove(ctx context.Context, workspace, snapshot string) error {
	return s.c.doJSON(ctx, newCall(http.MethodDelete, "workspaces", workspace, "snapshots", snapshot), nil)
}

// Restore replaces a workspace's files by those of a snapshot, given by id or label. No sandbox may
// be using the workspace.
func (s Snapshots) Restore(ctx context.Context, workspace, snapshot string) (v1.Snapshot, error) {
	return callJSONWithBody[v1.Snapshot](
		ctx,
		s.c,
		newCall(http.MethodPost, "workspaces", workspace, "restore"),
		v1.RestoreRequest{Snapshot: snapshot},
		nil,
	)
}
