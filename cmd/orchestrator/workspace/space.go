package workspace

import (
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// quotaSize parses a size. "" is 0.
func quotaSize(cmd *cobra.Command, what, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := units.RAMInBytes(text)
	if err != nil || n <= 0 {
		return 0, cli.Usage(cmd, "%s is %q: give a size such as 64MiB or 10g", what, text)
	}
	return n, nil
}

// spaceCells returns the cells for the quota and the usage of a workspace.
func spaceCells(w v1.Workspace) []string {
	if w.QuotaBytes == 0 {
		return []string{"no bound", ""}
	}
	return []string{cli.Size(w.QuotaBytes), cli.Size(w.UsedBytes)}
}

func printWorkspace(a *cli.App, w v1.Workspace, err error) error {
	if err != nil {
		return err
	}
	return a.Print(w, &cli.Table{Head: workspaceHead(), Rows: [][]string{workspaceRow(w)}})
}

func newWorkspaceResize(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "resize NAME SIZE",
		Short: "Change the quota of a workspace",
		Long: `Change the quota of a workspace.

It can shrink only while no sandbox uses it, and not below its content. Growing it
while a sandbox uses it needs a service with CAP_SYS_RESOURCE.`,
		Example: "  orchestrator workspace resize notes 1GiB",
		Args:    cli.ExactArgs("NAME", "SIZE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := quotaSize(cmd, "SIZE", args[1])
			if err != nil {
				return err
			}
			return withWorkspaces(cmd.Context(), a, func(w workspaces) error {
				got, err := w.ResizeWorkspace(cmd.Context(), args[0], bytes)
				return printWorkspace(a, got, err)
			})
		},
	}
}
