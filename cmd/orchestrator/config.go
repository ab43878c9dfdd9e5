package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func (a *app) newConfigCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration with every default",
		Example: `  orchestrator config > orchestrator.yaml
  orchestrator config check orchestrator.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args)
			}
			_, err := a.stdout.Write(config.Commented)
			return err
		},
	}
	c.AddCommand(&cobra.Command{
		Use:     "check FILE",
		Short:   "Check a configuration file, with the environment over it, and its templates_dir",
		Example: "  orchestrator config check orchestrator.yaml",
		Args:    exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			a.flags.config = args[0]
			c, err := a.valid()
			if err != nil {
				return err
			}
			if _, err := c.WithFolder(args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s is good\n", escape(args[0]))
			return err
		},
	})
	return c
}
