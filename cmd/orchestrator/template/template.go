// Package template has the commands that show and change templates and their warm pools: template
// and pool. They need a server.
package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// NewTemplateCommand returns "orchestrator template" with its commands.
func NewTemplateCommand(a *cli.App) *cobra.Command {
	return cli.Group("template", "List, show, check and reload templates", `  orchestrator template ls
  orchestrator template show python
  orchestrator template check templates/python.yaml
  orchestrator template reload`,
		newTemplateList(a), newTemplateShow(a), newTemplateCheck(a), newTemplateReload(a))
}

func newTemplateList(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List templates and their errors",
		Long: `List the templates of a server: those of its configuration and of its
templates_dir. One that is not_ready cannot be leased yet. An error at one that is
ready says why its latest version is not in use; the last valid version is.`,
		Example: "  orchestrator template ls\n  orchestrator template ls -o json | jq '.items[] | select(.error)'",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			list, err := cl.Templates.List(cmd.Context())
			if err != nil {
				return err
			}
			table := &cli.Table{
				Head:     []string{"NAME", "STATE", "IMAGE", "CLASS", "MEMORY", "POOL", "FILE", "ERROR"},
				Optional: []string{"CLASS", "MEMORY", "FILE"},
			}
			return cli.PrintTable(a, list, table, func(t v1.Template) []string {
				return []string{
					t.Name,
					t.State,
					t.Image,
					t.Class,
					cli.Size(t.Limits.MemoryBytes),
					poolOf(t.Pool),
					t.File,
					cli.OneLine(t.Error),
				}
			})
		}),
	}
}

// poolOf formats the number of warm sandboxes: "2 of 50", or "2 to 50" for an adaptive pool.
func poolOf(p v1.PoolSettings) string {
	if p.Adaptive {
		return fmt.Sprintf("%d to %d", p.Min, p.Max)
	}
	return fmt.Sprintf("%d of %d", p.Min, p.Max)
}

func newTemplateShow(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show a template as it is used",
		Long:  `Show a template as it is used. Only the names of its environment are shown.`,
		Example: `  orchestrator template show python
  orchestrator template show python -o json | jq .limits`,
		Args: cli.ExactArgs("NAME"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			t, err := cl.Templates.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.Flags.Output == "json" {
				return a.PrintJSON(t)
			}
			text, err := yaml.Marshal(t)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				fmt.Fprintln(a.Stdout, cli.Escape(strings.TrimSuffix(line, "\n")))
			}
			return nil
		}),
	}
}

func newTemplateCheck(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a template's file",
		Long: `Check a template's file without a server: every key and every value in it. The
file's name is the template's: NAME.yaml or NAME.json. Only the server can check
whether its image exists.`,
		Example: "  orchestrator template check templates/python.yaml",
		Args:    cli.ExactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := config.ReadTemplate(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "%s is good: image %s, class %s\n", cli.Escape(args[0]), cli.Escape(t.Image), t.Class)
			return err
		},
	}
}

func newTemplateReload(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Make the server read its templates again",
		Long: `Make the server read its templates again. It also does so when a file changes, and
at SIGHUP; this command waits for the outcome and prints it. New warm sandboxes use
the new versions, old warm ones are replaced, and leases continue. Of a template that
cannot be used, the last valid version stays in use; the exit code is 78 then.`,
		Example: "  orchestrator template reload\n  orchestrator template reload -o json",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			r, err := cl.Templates.Reload(cmd.Context())
			if err != nil {
				return err
			}
			return printReload(a, r)
		}),
	}
}

func printReload(a *cli.App, r v1.TemplateReload) error {
	t := &cli.Table{}
	for _, group := range []struct {
		result string
		names  []string
	}{{"added", r.Added}, {"changed", r.Changed}, {"resized", r.Resized}, {"removed", r.Removed}} {
		for _, name := range group.names {
			t.Add(name, group.result)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Failed)) {
		t.Add(name, "failed: "+cli.OneLine(r.Failed[name]))
	}
	if len(t.Rows) == 0 {
		a.Note("nothing changed")
	}
	if err := a.Print(r, t); err != nil {
		return err
	}
	if n := len(r.Failed); n > 0 {
		return cli.Refuse(
			errdefs.ErrFailedPrecondition,
			"of the templates %d cannot be used as written: %s",
			n,
			strings.Join(slices.Sorted(maps.Keys(r.Failed)), ", "),
		)
	}
	return nil
}
