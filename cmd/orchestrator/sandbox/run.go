package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

type runOptions struct {
	cli.CommandOptions
	egressOptions
	template, workspace string
	mode, class         string
	readOnly, noServer  bool
	whenEmpty           string
	wait                time.Duration
	runtime, logLevel   string
	junit, junitName    string
}

// NewRunCommand returns "orchestrator run".
func NewRunCommand(a *cli.App) *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run [flags] -- CMD...",
		Short: "Run one command in a new sandbox",
		Long: `Run one command in a new sandbox and destroy the sandbox.

If a server answers, it runs the command. Otherwise this process does, which takes
as long as starting a container. The command's output is streamed, and its exit code
is returned; other endings have their own exit codes (docs/exit-codes.md). With
-o json, the result is printed instead. Ctrl-C kills the command with everything it
started. The sandbox is removed even if this process is killed.`,
		Example: `  orchestrator run -- python3 -c 'print(6*7)'
  orchestrator run -c 'cat /etc/os-release | head -1'
  orchestrator run --workspace notes --read-only -- ls -l
  echo hello | orchestrator run -i --timeout 10s -- wc -c
  orchestrator run --no-server -e LANG=C -- env`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runRun(cmd.Context(), a, cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	o.CommandOptions.Register(f, "send standard input to the command")
	o.egressOptions.register(f)
	f.StringVar(&o.template, "template", "", "`NAME` of the template (default: the default template)")
	f.StringVar(&o.workspace, "workspace", "", "`NAME` of the workspace to mount at /workspace")
	f.BoolVar(&o.readOnly, "read-only", false, "make the workspace read-only")
	f.StringVar(&o.mode, "mode", "", cli.ModeHelp)
	f.StringVar(&o.class, "class", "", classHelp)
	f.StringVar(
		&o.whenEmpty,
		"when-empty",
		"",
		"`ACTION` of a server if no sandbox is warm: wait (default), cold or refuse",
	)
	f.DurationVar(&o.wait, "wait", 0, "maximum wait for a sandbox (0: the server's default)")
	f.StringVar(&o.junit, "junit", "", "write a JUnit XML report with one test case to `FILE`")
	f.StringVar(&o.junitName, "junit-name", "", "`NAME` of the test case (default: the command)")
	f.BoolVar(&o.noServer, "no-server", false, "run in this process even if a server answers")
	f.StringVar(
		&o.runtime,
		"runtime",
		"",
		"without a server, runtime `NAME`: auto, docker, containerd, oci or kubernetes (ORCHESTRATOR_RUNTIME)",
	)
	f.StringVar(&o.logLevel, "log-level", "error", "without a server, log `LEVEL`: debug, info, warn or error")
	return c
}

func runRun(ctx context.Context, a *cli.App, cmd *cobra.Command, o runOptions, args []string) error {
	x, err := a.Exec(cmd, o.CommandOptions, args)
	if err != nil {
		return err
	}
	egress, err := o.egress(cmd)
	if err != nil {
		return err
	}
	c, err := a.Settings()
	if err != nil {
		return err
	}
	cli.SetIfGiven(&c.Runtime, o.runtime)
	c.Log.Level = o.logLevel
	if err := c.Validate(); err != nil {
		return err
	}
	req := v1.Run{
		Exec: x, Template: o.template, Workspace: o.workspace, ReadOnly: o.readOnly, Mode: o.mode, Class: o.class,
		WhenEmpty: o.whenEmpty, WaitMS: cli.Millis(o.wait), Egress: egress,
	}
	report := newReport(a, o.junit, o.junitName, x)
	return report.finish(a, runAnywhere(ctx, a, c, req, o))
}

// runAnywhere runs the command on the server that answers, or in this process if none does.
func runAnywhere(ctx context.Context, a *cli.App, c config.Config, req v1.Run, o runOptions) error {
	if o.noServer {
		return runLocally(ctx, a, c, req, o)
	}
	cl, err := a.FindServer(ctx, c)
	if err != nil {
		return err
	}
	if cl == nil {
		err := runLocally(ctx, a, c, req, o)
		if _, served := errors.AsType[*standalone.HeldByServerError](err); !served {
			return err
		}
		// A server was started in between; nothing has run.
		var e error
		if cl, e = a.FindServer(ctx, c); cl == nil {
			return errors.Join(err, e)
		}
	}
	return runOnServer(ctx, a, cl, req, o)
}

// runOnServer runs the command on a server.
func runOnServer(ctx context.Context, a *cli.App, cl *client.Client, req v1.Run, o runOptions) error {
	r, err := callRun(ctx, a, cl, req, o)
	return printRun(a, o, r, err)
}

// runLocally runs the command with an engine in this process.
func runLocally(ctx context.Context, a *cli.App, c config.Config, req v1.Run, o runOptions) error {
	var r v1.ExecResult
	err := standalone.RunLocally(ctx, a, c, req, func(cl *client.Client, req v1.Run) (err error) {
		r, err = callRun(ctx, a, cl, req, o)
		return err
	})
	return printRun(a, o, r, err)
}

// printsResult reports whether the result is printed as JSON. Otherwise output is streamed.
func (o runOptions) printsResult(a *cli.App) bool { return a.Flags.Output == "json" && !o.Interactive }

func callRun(ctx context.Context, a *cli.App, cl *client.Client, req v1.Run, o runOptions) (v1.ExecResult, error) {
	if o.printsResult(a) {
		return cl.Run(ctx, req, cli.IdempotencyKey(o.Key)...)
	}
	return cl.RunStream(ctx, req, a.Streams(o.CommandOptions), cli.IdempotencyKey(o.Key)...)
}

func printRun(a *cli.App, o runOptions, r v1.ExecResult, err error) error {
	if o.printsResult(a) {
		return a.PrintResult(r, err)
	}
	if err != nil {
		return err
	}
	a.NoteOverlay(r)
	return cli.ResultError(r)
}
