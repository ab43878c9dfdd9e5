package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func newConfigCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration with every default",
		Example: `  orchestrator config > orchestrator.yaml
  orchestrator config check orchestrator.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.UnknownCommand(cmd, args)
			}
			_, err := a.Stdout.Write(config.Commented)
			return err
		},
	}
	c.AddCommand(&cobra.Command{
		Use:     "check FILE",
		Short:   "Check a configuration file, with the environment over it, and its templates_dir",
		Example: "  orchestrator config check orchestrator.yaml",
		Args:    cli.ExactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			a.Flags.Config = args[0]
			c, err := a.ValidSettings()
			if err != nil {
				return err
			}
			if _, err := c.WithTemplatesDir(args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "%s is good\n", cli.Escape(args[0]))
			return err
		},
	})
	return c
}
