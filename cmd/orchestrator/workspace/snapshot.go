package workspace

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

func snapshotRow(s v1.Snapshot) []string {
	room := ""
	if s.SizeBytes > 0 {
		room = cli.Size(s.SizeBytes)
	}
	return []string{s.ID, s.Label, cli.Ago(s.CreatedAt), room}
}

func snapshotHead() []string { return []string{"SNAPSHOT", "LABEL", "CREATED", "SIZE"} }

func newWorkspaceSnapshot(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "snapshot NAME [LABEL]",
		Short:   "Keep a copy of a workspace that no sandbox has",
		Example: "  orchestrator workspace snapshot notes before-upgrade",
		Args:    cli.ExactArgs("NAME", "[LABEL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			label := ""
			if len(args) == 2 {
				label = args[1]
			}
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				got, err := w.Snapshot(cmd.Context(), args[0], label)
				if err != nil {
					return err
				}
				return a.Print(got, &cli.Table{Head: snapshotHead(), Rows: [][]string{snapshotRow(got)}})
			})
		},
	}
}

func newWorkspaceSnapshots(a *cli.App) *cobra.Command {
	ls := &cobra.Command{
		Use:     "ls NAME",
		Aliases: []string{"list"},
		Short:   "List the snapshots of a workspace",
		Example: "  orchestrator workspace snapshots ls notes",
		Args:    cli.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				list, err := w.Snapshots(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return cli.PrintList(a, list, snapshotHead(), snapshotRow)
			})
		},
	}
	rm := &cobra.Command{
		Use:     "rm NAME SNAPSHOT",
		Short:   "Remove a snapshot by its id or label",
		Example: "  orchestrator workspace snapshots rm notes before-upgrade",
		Args:    cli.ExactArgs("NAME", "SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				return w.RemoveSnapshot(cmd.Context(), args[0], args[1])
			})
		},
	}
	return cli.Group("snapshots", "List and remove copies of a workspace", "  orchestrator workspace snapshots ls notes", ls, rm)
}

func newWorkspaceRestore(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "restore NAME SNAPSHOT",
		Short:   "Put a workspace that no sandbox has back to a snapshot",
		Example: "  orchestrator workspace restore notes before-upgrade",
		Args:    cli.ExactArgs("NAME", "SNAPSHOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				got, err := w.Restore(cmd.Context(), args[0], args[1])
				if err != nil {
					return err
				}
				return a.Print(got, &cli.Table{Head: snapshotHead(), Rows: [][]string{snapshotRow(got)}})
			})
		},
	}
}

// Overlays lists what was changed beside a workspace.
func (l *localWorkspaces) Overlays(_ context.Context, workspace string) ([]v1.Overlay, error) {
	list, err := l.manager.Overlays(workspace)
	out := make([]v1.Overlay, 0, len(list))
	for _, o := range list {
		out = append(out, engine.PresentOverlay(o, o.Workspace))
	}
	return out, err
}

// DiffOverlay tells what an overlay changed.
func (l *localWorkspaces) DiffOverlay(ctx context.Context, id string, text bool, paths ...string) (v1.Diff, error) {
	d, err := l.manager.Diff(ctx, id, volumes.DiffOptions{Paths: paths, Text: text})
	return engine.PresentDiff(d, d.Overlay.Workspace), err
}

// unused sees that no sandbox of a stopped server has the workspace of an
// overlay.
func (l *localWorkspaces) unused(ctx context.Context, overlay string, end bool) error {
	o, err := l.manager.FindOverlay(overlay)
	if err != nil {
		return err
	}
	if end && o.Live {
		return cli.Refuse(errdefs.ErrFailedPrecondition, "sandbox %s is of a stopped server: start it again, or end it with `orchestrator down`", overlay)
	}
	return standalone.LeftHolding(ctx, l.dir, o.Workspace)
}

// CommitOverlay commits one.
func (l *localWorkspaces) CommitOverlay(ctx context.Context, id string, r v1.CommitRequest) (v1.Commit, error) {
	if err := l.unused(ctx, id, r.End); err != nil {
		return v1.Commit{}, err
	}
	c, err := l.manager.Commit(ctx, id, volumes.CommitOptions{Paths: r.Paths, Force: r.Force})
	return engine.PresentCommit(id, c), err
}

// DiscardOverlay removes one.
func (l *localWorkspaces) DiscardOverlay(ctx context.Context, id string, end bool) error {
	if err := l.unused(ctx, id, end); err != nil {
		return err
	}
	return l.manager.Discard(ctx, id)
}

// Snapshot copies a workspace.
func (l *localWorkspaces) Snapshot(ctx context.Context, workspace, label string) (v1.Snapshot, error) {
	if err := standalone.LeftHolding(ctx, l.dir, workspace); err != nil {
		return v1.Snapshot{}, err
	}
	s, err := l.manager.Snapshot(ctx, workspace, label)
	return engine.PresentSnapshot(s, workspace), err
}

// Snapshots lists them.
func (l *localWorkspaces) Snapshots(_ context.Context, workspace string) ([]v1.Snapshot, error) {
	list, err := l.manager.Snapshots(workspace)
	out := make([]v1.Snapshot, 0, len(list))
	for _, s := range list {
		out = append(out, engine.PresentSnapshot(s, workspace))
	}
	return out, err
}

// RemoveSnapshot removes one.
func (l *localWorkspaces) RemoveSnapshot(ctx context.Context, workspace, snapshot string) error {
	return l.manager.RemoveSnapshot(ctx, workspace, snapshot)
}

// Restore puts a workspace back to one.
func (l *localWorkspaces) Restore(ctx context.Context, workspace, snapshot string) (v1.Snapshot, error) {
	if err := standalone.LeftHolding(ctx, l.dir, workspace); err != nil {
		return v1.Snapshot{}, err
	}
	s, err := l.manager.Restore(ctx, workspace, snapshot)
	return engine.PresentSnapshot(s, workspace), err
}
