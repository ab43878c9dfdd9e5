package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/sandbox"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// completeTime bounds the request for names while the user waits at a prompt.
const completeTime = 2 * time.Second

// lister returns the names of one kind that a server has. It returns none after an error.
type lister func(ctx context.Context, cl *client.Client) []string

// completeArguments registers completion functions: for the first argument of each command, by its
// name in the usage, and for flags.
func completeArguments(a *cli.App, root *cobra.Command) {
	byWord := map[string]lister{
		"SANDBOX":   sandboxNames,
		"SHELL":     shellNames,
		"WORKSPACE": workspaceNames,
		"REF":       imageNames,
		"JOB":       jobNames,
	}
	byGroup := map[string]lister{"workspace": workspaceNames, "template": templateNames}
	byFlag := map[string]lister{"workspace": workspaceNames, "template": templateNames}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		for name, list := range byFlag {
			if c.Flags().Lookup(name) != nil {
				_ = c.RegisterFlagCompletionFunc(name, complete(a, list, false))
			}
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { completeValues(c, f) })
		word := firstArgument(c.Use)
		list := byWord[word]
		if word == "NAME" && c.HasParent() && c.Name() != "create" {
			list = byGroup[c.Parent().Name()]
		}
		if list != nil && c.ValidArgsFunction == nil {
			c.ValidArgsFunction = complete(a, list, true)
		}
	}
	walk(root)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { completeValues(root, f) })
	_ = root.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp))
}

// knownValues returns values of flags whose usage gives only examples, because the list is long or
// other values are allowed.
func knownValues(flag string) []string {
	switch flag {
	case "ending", "retry-on":
		known := runtime.Endings()
		endings := make([]string, len(known))
		for i, e := range known {
			endings[i] = string(e)
		}
		return endings
	case "verdict":
		return []string{"allow", "ask", "deny"}
	case "network":
		return []string{"none", "host"}
	}
	return nil
}

// completeValues registers the values of a flag whose usage lists them, or that are known.
func completeValues(c *cobra.Command, f *pflag.Flag) {
	if values := slices.Concat(flagValues(f.Usage), knownValues(f.Name)); len(values) > 0 {
		_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// valueList matches the values in a usage, such as ": text or json" and ": wait (default), cold or
// refuse".
var valueList = regexp.MustCompile(
	`: ([a-z_]+(?: \(default\))?(?:, [a-z_]+(?: \(default\))?)*(?:,? or [a-z_]+)?)(?:$|[,;]| \()`)

// flagValues returns the values that a flag's usage lists. Usages are the only place that lists
// them, so help and completion agree.
func flagValues(usage string) []string {
	found := valueList.FindStringSubmatch(usage)
	if len(found) == 0 || !strings.Contains(found[1], " or ") {
		return nil
	}
	list := strings.NewReplacer(" (default)", "", ", or ", ", ", " or ", ", ").Replace(found[1])
	return strings.Split(list, ", ")
}

// firstArgument returns the first word of a usage that is in capitals, or "".
func firstArgument(use string) string {
	for i, word := range strings.Fields(use) {
		word = strings.TrimRight(strings.Trim(word, "[]"), ".")
		if i > 0 && word != "" && word == strings.ToUpper(word) && word != strings.ToLower(word) {
			return word
		}
	}
	return ""
}

// complete returns a function that offers the names of list. If first is set, it offers them for
// the first argument only.
func complete(a *cli.App, list lister, first bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if first && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		c, err := a.Settings()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		cl, err := a.ClientFor(c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(ctx, cl), cobra.ShellCompDirectiveNoFileComp
	}
}

func sandboxNames(ctx context.Context, cl *client.Client) (out []string) {
	list, _ := cl.Sandboxes(ctx, false)
	for _, s := range list {
		out = append(out, s.ID+"\t"+cli.Escape(s.Template+" "+sandbox.WorkspaceOf(s)))
	}
	return out
}

func shellNames(ctx context.Context, cl *client.Client) (out []string) {
	list, _ := cl.Sandboxes(ctx, false)
	for _, s := range list {
		shells, _ := cl.Shells(ctx, s.ID)
		for _, sh := range shells {
			out = append(out, sh.ID+"\t"+cli.Escape(sh.State+" "+strings.Join(sh.Argv, " ")))
		}
	}
	return out
}

func jobNames(ctx context.Context, cl *client.Client) (out []string) {
	list, _ := cl.Jobs.List(ctx, false)
	for _, j := range list {
		out = append(out, j.ID+"\t"+cli.Escape(j.State+" "+j.Name))
	}
	return out
}

func workspaceNames(ctx context.Context, cl *client.Client) (out []string) {
	list, _ := cl.Workspaces.List(ctx)
	for _, w := range list {
		out = append(out, cli.Escape(w.Name))
	}
	return out
}

func templateNames(ctx context.Context, cl *client.Client) (out []string) {
	list, _ := cl.Templates.List(ctx)
	for _, t := range list {
		out = append(out, t.Name+"\t"+t.State)
	}
	return out
}

func imageNames(ctx context.Context, cl *client.Client) (out []string) {
	list, _ := cl.Images.List(ctx)
	for _, i := range list {
		out = append(out, cli.Escape(i.Ref))
	}
	return out
}
