package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// commandOptions are those of everything that runs a command.
type commandOptions struct {
	shell       string
	env         []string
	cwd, user   string
	timeout     time.Duration
	interactive bool
	key         string
}

func (o *commandOptions) register(f *pflag.FlagSet, interactive string) {
	f.StringVarP(&o.shell, "command", "c", "", "`TEXT` for the sandbox's shell, instead of CMD")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`KEY=VALUE`, or KEY to hand on your own; can be repeated")
	f.StringVar(&o.cwd, "cwd", "", "`DIR` to run in; empty is /workspace")
	f.StringVarP(&o.user, "user", "u", "", "`USER` by name or number, never 0; empty is the sandbox's own")
	f.DurationVar(&o.timeout, "timeout", 0, "kill it and all it started after this time; 0 is the server's default")
	f.BoolVarP(&o.interactive, "interactive", "i", false, interactive)
	f.StringVar(&o.key, "idempotency-key", "", "do it at most once for this `KEY`")
}

// afterName takes -c TEXT that comes after SANDBOX, where flags are no longer
// parsed: a command of that name there is not.
func (o commandOptions) afterName(argv []string) (commandOptions, []string) {
	if o.shell == "" && len(argv) == 2 && (argv[0] == "-c" || argv[0] == "--command") {
		o.shell, argv = argv[1], nil
	}
	return o, argv
}

// exec makes the request of a command line.
func (a *app) exec(cmd *cobra.Command, o commandOptions, argv []string) (v1.Exec, error) {
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	switch {
	case len(argv) > 0 && o.shell != "":
		return v1.Exec{}, usage(cmd, "CMD and --command are both given: use one of them")
	case len(argv) == 0 && o.shell == "":
		return v1.Exec{}, usage(cmd, "CMD is missing: give it after --, or --command for the shell")
	case o.timeout < 0:
		return v1.Exec{}, usage(cmd, "--timeout is negative")
	}
	env, err := a.environment(cmd, o.env)
	if err != nil {
		return v1.Exec{}, err
	}
	return v1.Exec{Argv: argv, Command: o.shell, Cwd: o.cwd, Env: env, User: o.user, TimeoutMS: millis(o.timeout)}, nil
}

// millis rounds away from 0, which stands for something else: for no end, or
// for the server's own choice.
func millis(d time.Duration) int64 {
	switch ms := d.Milliseconds(); {
	case ms == 0 && d > 0:
		return 1
	case ms == 0 && d < 0:
		return -1
	default:
		return ms
	}
}

func key(k string) []client.Option {
	if k == "" {
		return nil
	}
	return []client.Option{client.IdempotencyKey(k)}
}

func (a *app) newExecCommand() *cobra.Command {
	var o commandOptions
	c := &cobra.Command{
		Use:   "exec [flags] SANDBOX -- CMD...",
		Short: "Run a command in a leased sandbox",
		Long: `Run a command in a leased sandbox and wait for its end.

Its output is passed on as it comes, and its exit code is ours; other endings
have codes of their own (docs/exit-codes.md). With -o json the result is
printed instead. Ctrl-C kills the command with everything it started.`,
		Example: `  orchestrator exec $id -- python3 -V
  orchestrator exec $id -c 'ls | wc -l'
  tar c src | orchestrator exec -i $id -- tar x
  orchestrator exec --timeout 5s --cwd /tmp -e LANG=C $id -- sleep 60`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "--" {
				return usage(cmd, "SANDBOX is missing")
			}
			return exactArgs("SANDBOX")(cmd, args[:1])
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runExec(cmd.Context(), cmd, o, args) },
	}
	c.Flags().SetInterspersed(false)
	o.register(c.Flags(), "pass standard input on")
	return c
}

func (a *app) runExec(ctx context.Context, cmd *cobra.Command, o commandOptions, args []string) error {
	id := args[0]
	o, argv := o.afterName(args[1:])
	x, err := a.exec(cmd, o, argv)
	if err != nil {
		return err
	}
	cl, err := a.client(ctx)
	if err != nil {
		return err
	}
	if a.flags.output == "json" && !o.interactive {
		r, err := cl.Exec(ctx, id, x, key(o.key)...)
		return a.printResult(r, err)
	}
	r, err := cl.ExecStream(ctx, id, x, a.streams(o), key(o.key)...)
	if err != nil {
		return err
	}
	return result(r)
}

// streams are ours for a command's.
func (a *app) streams(o commandOptions) client.Streams {
	s := client.Streams{Stdout: a.stdout, Stderr: a.stderr}
	if o.interactive {
		s.Stdin = a.stdin
	}
	return s
}

// printResult prints a result as JSON.
func (a *app) printResult(r v1.ExecResult, err error) error {
	if err != nil {
		return err
	}
	if err := a.printJSON(r); err != nil {
		return err
	}
	return result(r)
}
