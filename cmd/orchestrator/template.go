package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func (a *app) newTemplateCommand() *cobra.Command {
	return group("template", "List, show, check and reload templates", `  orchestrator template ls
  orchestrator template show python
  orchestrator template check templates/python.yaml
  orchestrator template reload`,
		a.newTemplateList(), a.newTemplateShow(), a.newTemplateCheck(), a.newTemplateReload())
}

func (a *app) newTemplateList() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List templates, and what keeps some from being used",
		Long: `List the templates of a server: those of its configuration and of its
templates_dir. One that is not_ready cannot be leased yet. An error beside one
that is ready says why its latest version is not in use: the last good one is.`,
		Example: "  orchestrator template ls\n  orchestrator template ls -o json | jq '.items[] | select(.error)'",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			list, err := cl.Templates(cmd.Context())
			if err != nil {
				return err
			}
			head := []string{"NAME", "STATE", "IMAGE", "CLASS", "MEMORY", "POOL", "FILE", "ERROR"}
			return printList(a, list, head, func(t v1.Template) []string {
				return []string{t.Name, t.State, t.Image, t.Class, size(t.Limits.MemoryBytes), poolOf(t.Pool), t.File, oneLine(t.Error)}
			})
		},
	}
}

// poolOf is how many are kept warm: "2 of 50", or "2 to 50" where demand tells.
func poolOf(p v1.PoolSettings) string {
	if p.Adaptive {
		return fmt.Sprintf("%d to %d", p.Min, p.Max)
	}
	return fmt.Sprintf("%d of %d", p.Min, p.Max)
}

func (a *app) newTemplateShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show a template as it is used",
		Long:  `Show a template as it is used. Of its environment only the names are told.`,
		Example: `  orchestrator template show python
  orchestrator template show python -o json | jq .limits`,
		Args: exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			t, err := cl.Template(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.flags.output == "json" {
				return a.printJSON(t)
			}
			text, err := yaml.Marshal(t)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				fmt.Fprintln(a.stdout, escape(strings.TrimSuffix(line, "\n"))) //nolint:errcheck // as every print
			}
			return nil
		},
	}
}

func (a *app) newTemplateCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a template's file",
		Long: `Check a template's file without a server: every key and every value in it. The
file is named as its template, NAME.yaml or NAME.json. Whether its image is
there is for the server to say.`,
		Example: "  orchestrator template check templates/python.yaml",
		Args:    exactArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := config.ReadTemplate(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s is good: image %s, class %s\n", escape(args[0]), escape(t.Image), t.Class)
			return err
		},
	}
}

func (a *app) newTemplateReload() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Make the server read its templates again",
		Long: `Make the server read its templates again. It does so by itself when a file
changes, and at SIGHUP; this command waits for it and tells what came of it. New
warm sandboxes are made from new versions, old ones go, leases go on. What cannot
be used is told, and its last good version stays; the exit code is 78 then.`,
		Example: "  orchestrator template reload\n  orchestrator template reload -o json",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			r, err := cl.ReloadTemplates(cmd.Context())
			if err != nil {
				return err
			}
			return a.printReload(r)
		},
	}
}

func (a *app) printReload(r v1.TemplateReload) error {
	t := &table{}
	for _, group := range []struct {
		result string
		names  []string
	}{{"added", r.Added}, {"changed", r.Changed}, {"resized", r.Resized}, {"removed", r.Removed}} {
		for _, name := range group.names {
			t.add(name, group.result)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Failed)) {
		t.add(name, "failed: "+oneLine(r.Failed[name]))
	}
	if len(t.rows) == 0 {
		a.note("nothing has changed")
	}
	if err := a.print(r, t); err != nil {
		return err
	}
	if n := len(r.Failed); n > 0 {
		return refuse(errdefs.ErrFailedPrecondition, "of the templates %d cannot be used as written: %s", n, strings.Join(slices.Sorted(maps.Keys(r.Failed)), ", "))
	}
	return nil
}
