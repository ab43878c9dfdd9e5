package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// globalFlags are the flags of every command.
type globalFlags struct {
	config    string
	stateDir  string
	address   string
	tokenFile string
	output    string
}

// run carries out one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.newRootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return a.finish(err)
}

func (a *app) newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "orchestrator",
		Short: "Run commands in warm, disposable sandboxes without a network",
		Long: `Run commands in warm, disposable sandboxes without a network.

"serve" is the service; the other commands use it, and "run", "image" and
"workspace" work without one as well. What commands exit with is in
docs/exit-codes.md: 64 to 78 say that orchestrator did not do it, 120 to 125
how a command ended that did not end by itself.`,
		Example: `  orchestrator serve
  orchestrator run -- python3 -c 'print(6*7)'
  orchestrator run -c 'echo $HOSTNAME | tr a-z A-Z'`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          unknownCommand,
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%s", err) })
	f := root.PersistentFlags()
	f.StringVar(&a.flags.config, "config", "", "configuration `FILE` (ORCHESTRATOR_CONFIG)")
	f.StringVar(&a.flags.stateDir, "state-dir", "", "`DIR` of everything that is kept (ORCHESTRATOR_STATE_DIR)")
	f.StringVar(&a.flags.address, "address", "", "where the server is: unix:`PATH` or HOST:PORT (ORCHESTRATOR_ADDRESS)")
	f.StringVar(&a.flags.tokenFile, "token-file", "", "`FILE` with the token for TCP (ORCHESTRATOR_TOKEN, ORCHESTRATOR_TOKEN_FILE)")
	f.StringVarP(&a.flags.output, "output", "o", "table", "`FORM` of what is printed: table or json")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if a.flags.output != "table" && a.flags.output != "json" {
			return usage(cmd, "--output is %q: use table or json", a.flags.output)
		}
		return nil
	}
	root.AddCommand(
		a.newServeCommand(), a.newRunCommand(), a.newSandboxCommand(), a.newExecCommand(), a.newShellCommand(), a.newSessionCommand(), a.newForwardCommand(),
		a.newPoolCommand(), a.newTemplateCommand(), a.newEventsCommand(), a.newPsCommand(), a.newTopCommand(), a.newCopyCommand(), a.newLogsCommand(), a.newImageCommand(), a.newWorkspaceCommand(), a.newDownCommand(), a.newDoctorCommand(),
		a.newMCPCommand(), a.newToolCommand(), a.newApprovalsCommand(), a.newTokenCommand(), a.newAuditCommand(), a.newPolicyCommand(), a.newProfileCommand(),
		a.newConfigCommand(), a.newVersionCommand(), a.newJanitorCommand(),
	)
	a.completeArguments(root)
	return root
}

// usageError is a command line that cannot be carried out.
type usageError struct{ message, hint string }

// Error is one line with what to do.
func (e *usageError) Error() string { return e.message + "; " + e.hint }

func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...), "see `" + cmd.CommandPath() + " --help`"}
}

// unknownCommand is what a command that only has others does.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return &usageError{fmt.Sprintf("unknown command %q", cmd.CommandPath()+" "+args[0]), fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), mostSimilar(like, args[0]))}
	}
	return usage(cmd, "unknown command %q", cmd.CommandPath()+" "+args[0])
}

// mostSimilar is the name that begins most like word; of several, the first.
func mostSimilar(names []string, word string) string {
	alike := func(name string) (n int) {
		for n < min(len(name), len(word)) && name[n] == word[n] {
			n++
		}
		return n
	}
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(alike(a), alike(b)) })
}

// group is a command that only has others.
func group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs, RunE: unknownCommand}
	c.AddCommand(commands...)
	return c
}

// exactArgs asks for exactly these arguments; one in brackets may be missing.
func exactArgs(want ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range want {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return usage(cmd, "%s is missing", name)
			}
			if i < len(args) && args[i] == "" {
				return usage(cmd, "%s is empty", strings.Trim(name, "[]"))
			}
		}
		if len(args) > len(want) {
			return usage(cmd, "unexpected argument %q", args[len(want)])
		}
		return nil
	}
}
