package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

func TestFirstArgument(t *testing.T) {
	for use, want := range map[string]string{
		"exec [flags] SANDBOX -- CMD...": "SANDBOX", "logs SHELL": "SHELL", "ls": "",
		"rm SANDBOX...": "SANDBOX", "show NAME": "NAME", "ls [NAME]": "NAME",
	} {
		if got := firstArgument(use); got != want {
			t.Errorf("firstArgument(%q) = %q, want %q", use, got, want)
		}
	}
}

// Every command with a SANDBOX or SHELL argument completes it.
func TestArgumentCompletion(t *testing.T) {
	a := &cli.App{Lookup: os.LookupEnv}
	n := 0
	commands(newRootCommand(a), func(c *cobra.Command) {
		if word := firstArgument(c.Use); word == "SANDBOX" || word == "SHELL" {
			if n++; c.ValidArgsFunction == nil {
				t.Errorf("%s has no ValidArgsFunction, want one", c.CommandPath())
			}
		}
	})
	if n < 6 {
		t.Errorf("checked %d commands, want at least 6", n)
	}
}

// TestFlagValuesAreCompleted walks all flags of all commands: whose usage offers a choice of words
// completes them.
func TestFlagValuesAreCompleted(t *testing.T) {
	choice := regexp.MustCompile(`[a-z_]+(?: \(default\))?,? or [a-z_]+`)
	noChoice := map[string]bool{"user": true, "detach-keys": true} // values are free, apart from the named ones
	root := newRootCommand(&cli.App{Lookup: os.LookupEnv})
	completed := map[string]bool{}
	commands(root, func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !choice.MatchString(f.Usage) || noChoice[f.Name] || f.Value.Type() == "bool" {
				return
			}
			complete, ok := c.GetFlagCompletionFunc(f.Name)
			if !ok {
				t.Errorf("%s --%s has no completion: %q", c.CommandPath(), f.Name, f.Usage)
				return
			}
			values, _ := complete(c, nil, "")
			for _, v := range values {
				if !strings.Contains(f.Usage, v) && len(knownValues(f.Name)) == 0 {
					t.Errorf("%s --%s completes %q, want a word of %q", c.CommandPath(), f.Name, v, f.Usage)
				}
			}
			completed[f.Name] = len(values) > 1
		})
	})
	for _, name := range []string{
		"output", "runtime", "log-level", "log-format", "when-empty", "class", "mode", "sort", "ending", "retry-on",
	} {
		if !completed[name] {
			t.Errorf("--%s was not checked, want it completed", name)
		}
	}
}
