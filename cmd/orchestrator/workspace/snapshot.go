package workspace

import (
	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
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
		Short:   "Copy the files of an unused workspace",
		Example: "  orchestrator workspace snapshot notes before-upgrade",
		Args:    cli.ExactArgs("NAME", "[LABEL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			label := ""
			if len(args) == 2 {
				label = args[1]
			}
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				progress := a.StartProgress("copying workspace "+args[0], 0)
				got, err := w.Snapshot(cmd.Context(), args[0], label)
				progress.Stop()
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
				list, err := w.Snapshots.List(cmd.Context(), args[0])
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
				return w.Snapshots.Remove(cmd.Context(), args[0], args[1])
			})
		},
	}
	return cli.Group(
		"snapshots",
		"List and remove copies of a workspace",
		"  orchestrator workspace snapshots ls notes",
		ls,
		rm,
	)
}

func newWorkspaceRestore(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "restore NAME SNAPSHOT",
		Short:   "Reset an unused workspace to a snapshot",
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
