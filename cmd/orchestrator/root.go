package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/governed"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/image"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/job"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/sandbox"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/template"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/workspace"
)

// run executes one command line and returns the exit code.
func run(ctx context.Context, a *cli.App, args []string) int {
	root := newRootCommand(a) //nolint:contextcheck // cobra passes it to the commands
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return a.Finish(err)
}

func newRootCommand(a *cli.App) *cobra.Command {
	root := &cobra.Command{
		Use:   "orchestrator",
		Short: "Run commands in warm, disposable sandboxes without a network",
		Long: `Run commands in warm, disposable sandboxes without a network.

"serve" is the service, and the other commands use it. "run", "image" and
"workspace" also work without a server. docs/exit-codes.md lists the exit codes:
from 64 to 78 orchestrator did not do what was asked, and from 120 to 125 the
command was ended, for example by a limit.`,
		Example: `  orchestrator serve
  orchestrator run -- python3 -c 'print(6*7)'
  orchestrator run -c 'echo $HOSTNAME | tr a-z A-Z'`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          cli.UnknownCommand,
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return cli.Usage(cmd, "%s", err) })
	addGlobalFlags(a, root.PersistentFlags())
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		return a.CheckOutput(cmd)
	}
	root.AddCommand(
		sandbox.NewRunCommand(a), sandbox.NewSandboxCommand(a), sandbox.NewExecCommand(a), sandbox.NewShellCommand(a),
		sandbox.NewSessionCommand(a), sandbox.NewLogsCommand(a), sandbox.NewCopyCommand(a), sandbox.NewForwardCommand(a),
		sandbox.NewPSCommand(a), sandbox.NewTopCommand(a), sandbox.NewEventsCommand(a),
		job.NewCommand(a), image.NewCommand(a), workspace.NewCommand(a), template.NewTemplateCommand(a), template.NewPoolCommand(a),
		governed.NewToolCommand(a), governed.NewMCPCommand(a), governed.NewApprovalsCommand(a), governed.NewTokenCommand(a),
		governed.NewAuditCommand(a), governed.NewPolicyCommand(a), governed.NewProfileCommand(a),
		newConfigCommand(a), newVersionCommand(a), newManualCommand(a),
	)
	root.AddCommand(hostCommands(a)...)
	addTableFlags(a, root)
	completeArguments(a, root)
	return root
}

// addTableFlags adds the flags of lists to every command that prints one.
func addTableFlags(a *cli.App, c *cobra.Command) {
	for _, sub := range c.Commands() {
		addTableFlags(a, sub)
	}
	switch c.Name() {
	case "ls", "ps", "pool", "overlays", "snapshots":
		if c.RunE != nil && !c.HasSubCommands() {
			cli.AddTableFlags(a, c)
		}
	}
}

// addGlobalFlags adds the flags of every command.
func addGlobalFlags(a *cli.App, f *pflag.FlagSet) {
	f.StringVar(&a.Flags.Config, "config", "", "configuration `FILE` (ORCHESTRATOR_CONFIG)")
	f.StringVar(&a.Flags.StateDir, "state-dir", "", "state `DIR` (ORCHESTRATOR_STATE_DIR)")
	f.StringVar(&a.Flags.Address, "address", "", "server address: unix:`PATH`, HOST:PORT or https://HOST:PORT (ORCHESTRATOR_ADDRESS)")
	f.StringVar(
		&a.Flags.TokenFile,
		"token-file",
		"",
		"`FILE` with the token for TCP (ORCHESTRATOR_TOKEN, ORCHESTRATOR_TOKEN_FILE)",
	)
	f.StringVar(&a.Flags.CAFile, "ca-file", "", "`FILE` with the authorities to trust for https (ORCHESTRATOR_CA_FILE)")
	f.StringVar(&a.Flags.CertFile, "cert-file", "", "`FILE` with this client's certificate (ORCHESTRATOR_CERT_FILE)")
	f.StringVar(&a.Flags.KeyFile, "key-file", "", "`FILE` with the key of --cert-file (ORCHESTRATOR_KEY_FILE)")
	f.StringVarP(&a.Flags.Output, "output", "o", "table", "output `FORMAT`: table or json")
	f.StringVar(
		&a.Flags.Format,
		"format",
		"",
		"output `FORMAT`: a Go template for each item, such as '{{.ID}} {{.State}}', or json for one object on a line",
	)
}
