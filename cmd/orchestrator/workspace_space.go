package main

import (
	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// quotaSize reads a size that was given; "" is 0.
func quotaSize(cmd *cobra.Command, what, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := units.RAMInBytes(text)
	if err != nil || n <= 0 {
		return 0, usage(cmd, "%s is %q: give a size such as 64MiB or 10g", what, text)
	}
	return n, nil
}

// spaceCells are what a workspace holds at most, and what is in it.
func spaceCells(w v1.Workspace) []string {
	if w.QuotaBytes == 0 {
		return []string{"no bound", ""}
	}
	return []string{size(w.QuotaBytes), size(w.UsedBytes)}
}

func (a *app) printWorkspace(w v1.Workspace, err error) error {
	if err != nil {
		return err
	}
	return a.print(w, &table{head: workspaceHead(), rows: [][]string{workspaceRow(w)}})
}

func (a *app) newWorkspaceResize() *cobra.Command {
	return &cobra.Command{
		Use:   "resize NAME SIZE",
		Short: "Change what a workspace holds at most",
		Long: `Change what a workspace holds at most.

It shrinks only while no sandbox has it, and not below what is in it. Growing it
while one has it needs a service with CAP_SYS_RESOURCE.`,
		Example: "  orchestrator workspace resize notes 1GiB",
		Args:    exactArgs("NAME", "SIZE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := quotaSize(cmd, "SIZE", args[1])
			if err != nil {
				return err
			}
			return a.withWorkspaces(cmd.Context(), func(w workspaces) error {
				got, err := w.ResizeWorkspace(cmd.Context(), args[0], bytes)
				return a.printWorkspace(got, err)
			})
		},
	}
}
