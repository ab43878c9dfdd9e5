package main

import (
	"os"
	"testing"

	"github.com/spf13/cobra"

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
