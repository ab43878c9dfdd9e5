package main

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
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
		Use:   "check [FILE]",
		Short: "Check a configuration file, with the environment over it, and the files of templates and profiles",
		Long: `Check a configuration file, with the environment over it, and the files of
templates and profiles that it names. Without FILE, check the one of --config or
ORCHESTRATOR_CONFIG, or else the defaults.`,
		Example: "  orchestrator config check orchestrator.yaml",
		Args:    cli.ExactArgs("[FILE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				a.Flags.Config = args[0]
			}
			return checkConfig(a)
		},
	})
	return c
}

// checkConfig prints that the configuration is good, or returns its first error.
func checkConfig(a *cli.App) error {
	file := a.ConfigFile()
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	if _, err := c.WithTemplatesDir(file); err != nil {
		return err
	}
	set, err := standalone.LoadProfiles(c.Profiles.Dir)
	if err == nil {
		_, err = set.Get(c.Profiles.Default)
	}
	if err != nil {
		return cli.Refuse(errdefs.ErrInvalidArgument, "profiles: %s", cli.WithoutClass(err.Error()))
	}
	name := "the default configuration"
	if file != "" {
		name = cli.Escape(file)
	}
	_, err = fmt.Fprintf(a.Stdout, "%s is good\n", name)
	return err
}
