package sandbox

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewExecCommand returns "orchestrator exec".
func NewExecCommand(a *cli.App) *cobra.Command {
	var o cli.CommandOptions
	c := &cobra.Command{
		Use:   "exec [flags] SANDBOX -- CMD...",
		Short: "Run a command in a leased sandbox",
		Long: `Run a command in a leased sandbox and wait for its end.

Its output is streamed, and its exit code is returned; other endings have their own
exit codes (docs/exit-codes.md). With -o json, the result is printed instead. Ctrl-C
kills the command with everything it started.`,
		Example: `  orchestrator exec $id -- python3 -V
  orchestrator exec $id -c 'ls | wc -l'
  tar c src | orchestrator exec -i $id -- tar x
  orchestrator exec --timeout 5s --cwd /tmp -e LANG=C $id -- sleep 60`,
		Args: sandboxAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return runExec(cmd.Context(), a, cmd, o, args) },
	}
	c.Flags().SetInterspersed(false)
	o.Register(c.Flags(), "send standard input to the command")
	return c
}

// sandboxAndCommand requires a sandbox. A command may follow it.
func sandboxAndCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] == "--" {
		args = nil
	}
	return cli.FirstArgs("SANDBOX")(cmd, args)
}

func runExec(ctx context.Context, a *cli.App, cmd *cobra.Command, o cli.CommandOptions, args []string) error {
	id := args[0]
	o, argv := o.AfterName(args[1:])
	x, err := a.Exec(cmd, o, argv)
	if err != nil {
		return err
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if a.Flags.Output == "json" && !o.Interactive {
		r, err := cl.Exec(ctx, id, x, cli.IdempotencyKey(o.Key)...)
		return a.PrintResult(r, err)
	}
	r, err := cl.ExecStream(ctx, id, x, a.Streams(o), cli.IdempotencyKey(o.Key)...)
	if err != nil {
		return err
	}
	return cli.ResultError(r)
}
