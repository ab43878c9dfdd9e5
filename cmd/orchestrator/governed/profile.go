package governed

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
)

// NewProfileCommand returns "orchestrator profile" with its commands.
func NewProfileCommand(a *cli.App) *cobra.Command {
	return cli.Group("profile", "List, print and check profiles", `  orchestrator profile ls
  orchestrator profile show gateway
  orchestrator profile check team.yaml`,
		newProfileList(a), newProfileShow(a), newProfileCheck(a))
}

func presentProfile(c *profile.Compiled) v1.Profile {
	out := v1.Profile{
		Name: c.Profile.Name, Title: c.Profile.Title, Description: c.Profile.Description,
		Tools: []string{}, Source: c.Source, Warnings: c.Profile.Warnings,
	}
	for _, t := range c.Tools() {
		out.Tools = append(out.Tools, t.Name())
	}
	return out
}

func newProfileList(a *cli.App) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the built-in profiles and those in profiles.dir",
		Example: "  orchestrator profile ls",
		Args:    cli.ExactArgs(),
		RunE: func(*cobra.Command, []string) error {
			set, _, err := localProfiles(a, dir)
			if err != nil {
				return err
			}
			var items []v1.Profile
			for _, c := range set.List() {
				items = append(items, presentProfile(c))
			}
			return cli.PrintList(a, items, []string{"NAME", "TITLE", "SOURCE", "TOOLS"}, func(p v1.Profile) []string {
				return []string{p.Name, p.Title, p.Source, strings.Join(p.Tools, " ")}
			})
		},
	}
	profilesDir(c.Flags(), &dir)
	return c
}

func newProfileShow(a *cli.App) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "show NAME",
		Short: "Print a profile as it is used, with what it extends",
		Example: `  orchestrator profile show gateway
  orchestrator profile show readonly -o json | jq .policy`,
		Args: cli.ExactArgs("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			set, _, err := localProfiles(a, dir)
			if err != nil {
				return err
			}
			c, err := set.Get(args[0])
			if err != nil {
				return err
			}
			if a.Flags.Output == "json" {
				return a.PrintJSON(c.Profile)
			}
			text, err := yaml.Marshal(c.Profile)
			if err != nil {
				return err
			}
			_, err = a.Stdout.Write(text)
			return err
		},
	}
	profilesDir(c.Flags(), &dir)
	return c
}

func newProfileCheck(a *cli.App) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a profile's file",
		Long: `Check a profile's file: every rule, schema, expression and template in it. Errors
are printed with their line. A file may extend the built-in profiles and those in
profiles.dir.`,
		Example: "  orchestrator profile check team.yaml",
		Args:    cli.ExactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := a.Settings()
			if err != nil {
				return err
			}
			cli.SetIfGiven(&c.Profiles.Dir, dir)
			p, err := profile.LoadFile(args[0], c.Profiles.Dir)
			if err != nil {
				return err
			}
			for _, w := range p.Profile.Warnings {
				a.Note("%s: %s", args[0], w)
			}
			_, err = fmt.Fprintf(
				a.Stdout,
				"%s is good: profile %s with %d tools\n",
				cli.Escape(args[0]),
				p.Profile.Name,
				len(p.Tools()),
			)
			return err
		},
	}
	profilesDir(c.Flags(), &dir)
	return c
}
