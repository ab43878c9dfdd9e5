package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// newManualCommand returns "orchestrator manual", which packages use.
func newManualCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "manual DIR",
		Short:   "Write a man page of each command to a directory",
		Example: "  orchestrator manual /usr/local/share/man/man1",
		Args:    cli.ExactArgs("DIR"),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true // pages of the same version are the same
			head := &doc.GenManHeader{Section: "1", Source: "orchestrator " + a.Version, Manual: "orchestrator"}
			if err := doc.GenManTree(root, head, args[0]); err != nil {
				return fmt.Errorf("write man pages: %w", err)
			}
			return nil
		},
	}
}
