package workspace

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
)

// workspaces is a server's workspaces, or those of the state directory if no server runs. Then
// sandboxes of a stopped server may still run, which only the next server knows. So without a
// server, the methods below refuse to change a workspace that such a sandbox has.
type workspaces struct {
	*client.Client
	stateDir string // "" with a server
}

// checkUnheld returns an error if a sandbox of a stopped server has the workspace.
func (w workspaces) checkUnheld(ctx context.Context, name string) error {
	if w.stateDir == "" {
		return nil
	}
	return standalone.CheckUnheld(ctx, w.stateDir, name)
}

// checkOverlayUnheld does the same for the workspace of an overlay. end says that the overlay's
// sandbox is to be ended.
func (w workspaces) checkOverlayUnheld(ctx context.Context, id string, end bool) error {
	if w.stateDir == "" {
		return nil
	}
	o, err := w.Overlays.Get(ctx, id)
	if err != nil {
		return err
	}
	if end && o.Live {
		return cli.Refuse(errdefs.ErrFailedPrecondition,
			"sandbox %s is of a stopped server: start it again, or end it with `orchestrator down`", id)
	}
	return w.checkUnheld(ctx, o.Workspace)
}

// ResizeWorkspace changes the quota of a workspace.
func (w workspaces) ResizeWorkspace(ctx context.Context, name string, quota int64) (v1.Workspace, error) {
	if err := w.checkUnheld(ctx, name); err != nil {
		return v1.Workspace{}, err
	}
	return w.Client.Workspaces.Resize(ctx, name, quota)
}

// DeleteWorkspace removes a workspace with its files.
func (w workspaces) DeleteWorkspace(ctx context.Context, name string) error {
	if err := w.checkUnheld(ctx, name); err != nil {
		return err
	}
	return w.Client.Workspaces.Delete(ctx, name)
}

// Snapshot copies the files of a workspace.
func (w workspaces) Snapshot(ctx context.Context, name, label string) (v1.Snapshot, error) {
	if err := w.checkUnheld(ctx, name); err != nil {
		return v1.Snapshot{}, err
	}
	return w.Client.Snapshots.Create(ctx, name, label)
}

// Restore resets a workspace to a snapshot.
func (w workspaces) Restore(ctx context.Context, name, snapshot string) (v1.Snapshot, error) {
	if err := w.checkUnheld(ctx, name); err != nil {
		return v1.Snapshot{}, err
	}
	return w.Client.Snapshots.Restore(ctx, name, snapshot)
}

// CommitOverlay writes the changes of an overlay to its workspace.
func (w workspaces) CommitOverlay(ctx context.Context, id string, r v1.CommitRequest) (v1.Commit, error) {
	if err := w.checkOverlayUnheld(ctx, id, r.End); err != nil {
		return v1.Commit{}, err
	}
	return w.Client.Overlays.Commit(ctx, id, r)
}

// DiscardOverlay removes the changes of an overlay.
func (w workspaces) DiscardOverlay(ctx context.Context, id string, end bool) error {
	if err := w.checkOverlayUnheld(ctx, id, end); err != nil {
		return err
	}
	return w.Client.Overlays.Discard(ctx, id, end)
}
