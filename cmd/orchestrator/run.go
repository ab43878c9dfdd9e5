package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

type runOptions struct {
	commandOptions
	egressOptions
	template, workspace string
	mode, class         string
	readOnly, noServer  bool
	whenEmpty           string
	wait                time.Duration
	runtime, logLevel   string
	junit, junitName    string
}

func (a *app) newRunCommand() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run [flags] -- CMD...",
		Short: "Run one command in a sandbox of its own",
		Long: `Run one command in a sandbox that nobody used before, and destroy it.

A server that answers is used; without one the same is done in this process,
which takes as long as starting a container does. The command's output is
passed on as it comes, and its exit code is ours; other endings have codes of
their own (docs/exit-codes.md). With -o json the result is printed instead.
Ctrl-C kills the command with everything it started. Whatever becomes of this
process, nothing of the sandbox stays.`,
		Example: `  orchestrator run -- python3 -c 'print(6*7)'
  orchestrator run -c 'cat /etc/os-release | head -1'
  orchestrator run --workspace notes --read-only -- ls -l
  echo hello | orchestrator run -i --timeout 10s -- wc -c
  orchestrator run --no-server -e LANG=C -- env`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runRun(cmd.Context(), cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	o.commandOptions.register(f, "pass standard input on")
	o.egressOptions.register(f)
	f.StringVar(&o.template, "template", "", "`NAME` of the template; empty is the default one")
	f.StringVar(&o.workspace, "workspace", "", "`NAME` of the workspace to have at /workspace")
	f.BoolVar(&o.readOnly, "read-only", false, "the workspace cannot be written to")
	f.StringVar(&o.mode, "mode", "", modeHelp)
	f.StringVar(&o.class, "class", "", classHelp)
	f.StringVar(&o.whenEmpty, "when-empty", "", "`WHAT` a server does if no sandbox is warm: wait (default), cold or refuse")
	f.DurationVar(&o.wait, "wait", 0, "how long a server waits for one; 0 is its default")
	f.StringVar(&o.junit, "junit", "", "write a report in JUnit's XML to `FILE`, of one test case")
	f.StringVar(&o.junitName, "junit-name", "", "`NAME` of the test case; empty is the command")
	f.BoolVar(&o.noServer, "no-server", false, "do it in this process even if a server answers")
	f.StringVar(&o.runtime, "runtime", "", "without a server, `NAME`: auto, docker, containerd or oci (ORCHESTRATOR_RUNTIME)")
	f.StringVar(&o.logLevel, "log-level", "error", "without a server, `LEVEL` of what is logged: debug, info, warn or error")
	return c
}

func (a *app) runRun(ctx context.Context, cmd *cobra.Command, o runOptions, args []string) error {
	x, err := a.exec(cmd, o.commandOptions, args)
	if err != nil {
		return err
	}
	egress, err := o.egress(cmd)
	if err != nil {
		return err
	}
	c, err := a.settings()
	if err != nil {
		return err
	}
	setIfGiven(&c.Runtime, o.runtime)
	c.Log.Level = o.logLevel
	if err := c.Validate(); err != nil {
		return err
	}
	req := v1.Run{
		Exec: x, Template: o.template, Workspace: o.workspace, ReadOnly: o.readOnly, Mode: o.mode, Class: o.class, WhenEmpty: o.whenEmpty, WaitMS: millis(o.wait), Egress: egress,
	}
	report := a.report(o.junit, o.junitName, x)
	return report.finish(a, a.runAnywhere(ctx, c, req, o))
}

// runAnywhere has a server do it, or does it in this process where there is
// none.
func (a *app) runAnywhere(ctx context.Context, c config.Config, req v1.Run, o runOptions) error {
	if o.noServer {
		return a.runHere(ctx, c, req, o)
	}
	cl, err := a.server(ctx, c)
	if err != nil {
		return err
	}
	if cl == nil {
		err := a.runHere(ctx, c, req, o)
		if _, served := errors.AsType[*servedError](err); !served {
			return err
		}
		// One was started meanwhile; nothing has run.
		var e error
		if cl, e = a.server(ctx, c); cl == nil {
			return errors.Join(err, e)
		}
	}
	return a.runServed(ctx, cl, req, o)
}

// runServed has a server do it.
func (a *app) runServed(ctx context.Context, cl *client.Client, req v1.Run, o runOptions) error {
	if a.flags.output == "json" && !o.interactive {
		r, err := cl.Run(ctx, req, key(o.key)...)
		return a.printResult(r, err)
	}
	r, err := cl.RunStream(ctx, req, a.streams(o.commandOptions), key(o.key)...)
	if err != nil {
		return err
	}
	a.noteOverlay(r)
	return result(r)
}

// runHere does it in this process.
func (a *app) runHere(ctx context.Context, c config.Config, req v1.Run, o runOptions) error {
	asked := a.flags.output == "json" && !o.interactive
	st := engine.Stream{}
	if !asked {
		st.Stdout, st.Stderr = a.stdout, a.stderr
	}
	if o.interactive {
		st.Stdin = a.stdin
	}
	r, err := a.runLocally(ctx, c, req, st)
	if asked {
		return a.printResult(r, err)
	}
	if err != nil {
		return err
	}
	a.noteOverlay(r)
	return result(r)
}
