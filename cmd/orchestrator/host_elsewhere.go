//go:build !linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// hostCommands returns the commands of the host that has the sandboxes. All but "down" say that
// they need Linux.
func hostCommands(a *cli.App) []*cobra.Command {
	list := []*cobra.Command{{
		Use:     "down",
		Short:   "Destroy every sandbox and stop the server",
		Example: "  orchestrator down --address sandboxes.example:7070",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			return cl.Down(cmd.Context())
		}),
	}}
	for name, short := range map[string]string{
		"serve":      "Run the service",
		"doctor":     "Check what this host can enforce",
		"kubernetes": "Prepare the nodes of a cluster",
	} {
		list = append(list, &cobra.Command{
			Use: name, Short: short + "; needs Linux", DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error { return cli.NeedsLinux(name) },
		})
	}
	return list
}
