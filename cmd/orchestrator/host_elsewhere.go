//go:build !linux

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// hostCommands returns the commands of the host that has the sandboxes. All but "down" say that
// they need Linux.
func hostCommands(a *cli.App) []*cobra.Command {
	list := []*cobra.Command{newDownCommand(a)}
	for _, c := range []struct {
		name, short string
		refuse      func(what string) error
	}{
		{"serve", "Run the service", cli.NeedsLinux},
		{"backup", "Write the records of the state directory to a file", cli.NeedsLinuxHost},
		{"restore", "Put a backup into the state directory", cli.NeedsLinuxHost},
		{"doctor", "Check what this host can enforce", cli.NeedsLinuxHost},
		{"kubernetes", "Prepare the nodes of a cluster", cli.NeedsLinuxHost},
	} {
		list = append(list, &cobra.Command{
			Use: c.name, Short: c.short + "; needs Linux", DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error { return c.refuse(c.name) },
		})
	}
	return list
}

// newDownCommand returns "orchestrator down" for a server on another host.
func newDownCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "down",
		Short: "Destroy every sandbox and stop the server",
		Long: `Destroy every sandbox with its background commands, and stop the server. Workspaces
and images stay.`,
		Example: "  orchestrator down --address sandboxes.example:7070",
		Args:    cli.ExactArgs(),
	}
	bound := cli.WaitFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := bound(cmd.Context())
		defer cancel()
		return runDown(ctx, a)
	}
	return c
}

func runDown(ctx context.Context, a *cli.App) error {
	c, err := a.Settings()
	if err != nil {
		return err
	}
	cl, err := a.FindServer(ctx, c)
	if err != nil {
		return err
	}
	_, err = cli.DownServer(ctx, cl, c)
	return err
}
