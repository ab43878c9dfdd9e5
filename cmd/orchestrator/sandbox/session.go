package sandbox

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// maxScript bounds a script that is read from standard input, in bytes.
const maxScript = 512 << 10

// NewSessionCommand returns "orchestrator session" with its commands.
func NewSessionCommand(a *cli.App) *cobra.Command {
	return cli.Group("session", "Run commands in a shell that keeps its state", `  s=$(orchestrator session create -q $id)
  orchestrator session exec $id $s -c 'cd /tmp; x=5'
  orchestrator session exec $id $s -c 'pwd; echo $x'
  orchestrator session rm $id $s`,
		newSessionCreate(a), newSessionList(a), newSessionExec(a), newSessionRemove(a))
}

type sessionOptions struct {
	shell, cwd, user, key string
	env                   []string
	quiet                 bool
}

func newSessionCreate(a *cli.App) *cobra.Command {
	var o sessionOptions
	c := &cobra.Command{
		Use:   "create [flags] SANDBOX",
		Short: "Start a session",
		Example: `  orchestrator session create $id
  orchestrator session create -q --shell sh --cwd /tmp -e LANG=C $id`,
		Args: cli.ExactArgs("SANDBOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSessionCreate(cmd.Context(), a, cmd, o, args[0])
		},
	}
	f := c.Flags()
	f.StringVar(&o.shell, "shell", "", "`SHELL`: bash or sh (default: bash if the image has it)")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`KEY=VALUE`, or KEY to pass on your own; can be repeated")
	f.StringVar(&o.cwd, "cwd", "", "initial `DIR` (default: /workspace)")
	f.StringVarP(&o.user, "user", "u", "", "`USER` by name or number, except 0 (default: the sandbox's user)")
	f.StringVar(&o.key, "idempotency-key", "", "start it at most once for this `KEY`")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only the id")
	return c
}

func runSessionCreate(ctx context.Context, a *cli.App, cmd *cobra.Command, o sessionOptions, sandbox string) error {
	env, err := a.Environment(cmd, o.env)
	if err != nil {
		return err
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	_, s, err := cl.StartSession(
		ctx,
		sandbox,
		v1.ShellSessionRequest{Shell: o.shell, Cwd: o.cwd, Env: env, User: o.user},
		cli.IdempotencyKey(o.key)...)
	if err != nil {
		return err
	}
	if s.Missing != "" {
		fmt.Fprintln(a.Stderr, "orchestrator:", s.Missing)
	}
	if o.quiet {
		_, err := fmt.Fprintln(a.Stdout, s.ID)
		return err
	}
	return a.Print(s, sessionTable(s))
}

func newSessionList(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "ls SANDBOX",
		Aliases: []string{"list"},
		Short:   "List a sandbox's sessions",
		Example: "  orchestrator session ls $id",
		Args:    cli.ExactArgs("SANDBOX"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			list, err := cl.Sessions(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.Print(v1.List[v1.ShellSession]{Items: list}, sessionTable(list...))
		}),
	}
}

func sessionTable(list ...v1.ShellSession) *cli.Table {
	t := &cli.Table{
		Head:     []string{"ID", "STATE", "SHELL", "STARTED", "COMMANDS", "WAITING", "BACKGROUND", "ENDING"},
		Optional: []string{"SHELL", "WAITING"},
	}
	for _, s := range list {
		end := ""
		if s.Result != nil {
			end = endingText(s.Result)
		}
		t.Rows = append(
			t.Rows,
			[]string{
				s.ID,
				s.State,
				s.Shell,
				cli.Ago(s.StartedAt),
				fmt.Sprint(s.Commands),
				fmt.Sprint(s.Waiting),
				fmt.Sprint(s.Left),
				end,
			},
		)
	}
	return t
}

func newSessionRemove(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "rm SANDBOX SESSION",
		Aliases: []string{"remove"},
		Short:   "Kill a session's processes and remove it",
		Example: "  orchestrator session rm $id $s",
		Args:    cli.ExactArgs("SANDBOX", "SESSION"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			_, err := cl.Session(args[0], args[1]).End(cmd.Context())
			return err
		}),
	}
}

type sessionExecOptions struct {
	cli.CommandOptions
	renew, refuse bool
	wait          time.Duration
}

func newSessionExec(a *cli.App) *cobra.Command {
	var o sessionExecOptions
	c := &cobra.Command{
		Use:   "exec [flags] SANDBOX SESSION [-- CMD...]",
		Short: "Run a command, or a script from standard input, in a session",
		Long: `Run a command in a session and wait for its end. Without a command, run the script
on standard input.

Its output is streamed, and its exit code is returned; other endings have their own
exit codes (docs/exit-codes.md). If the session ends with the command, a line on
standard error says so.`,
		Example: `  orchestrator session exec $id $s -c 'source venv/bin/activate'
  orchestrator session exec $id $s <build.sh
  orchestrator session exec --timeout 5s --renew $id $s -- make test`,
		Args: cli.FirstArgs("SANDBOX", "SESSION"),
		RunE: func(cmd *cobra.Command, args []string) error { return runSessionExec(cmd.Context(), a, cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.Shell, "command", "c", "", "`TEXT` for the session, instead of CMD")
	f.DurationVar(
		&o.Timeout,
		"timeout",
		0,
		"kill what it started after this time, and interrupt the session (0: the server's default)",
	)
	f.BoolVarP(&o.Interactive, "interactive", "i", false, "send standard input to the command")
	f.BoolVar(&o.renew, "renew", false, "restart the session if it has ended")
	f.BoolVar(&o.refuse, "no-wait", false, "fail if another command runs in the session")
	f.DurationVar(&o.wait, "wait", 0, "maximum wait for other commands (0: one minute)")
	f.StringVar(&o.Key, "idempotency-key", "", "run at most once for this `KEY`")
	return c
}

func runSessionExec(ctx context.Context, a *cli.App, cmd *cobra.Command, o sessionExecOptions, args []string) error {
	command, argv := o.AfterName(args[2:])
	if len(argv) == 0 && command.Shell == "" && !o.Interactive {
		script, err := io.ReadAll(io.LimitReader(a.Stdin, maxScript+1))
		switch {
		case err != nil:
			return fmt.Errorf("read the script: %w", err)
		case len(script) > maxScript:
			return cli.Usage(cmd, "the script is over %d bytes: write it to a file in the sandbox", maxScript)
		case len(script) == 0:
			return cli.Usage(cmd, "CMD is missing, and standard input is empty")
		}
		command.Shell = string(script)
	}
	x, err := a.Exec(cmd, command, argv)
	if err != nil {
		return err
	}
	req := v1.ShellSessionExec{Exec: x, Renew: o.renew, WaitMS: cli.Millis(o.wait)}
	if o.refuse {
		req.WhenBusy = "refuse"
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	s := cl.Session(args[0], args[1])
	if a.Flags.Output == "json" && !o.Interactive {
		r, err := s.Exec(ctx, req, cli.IdempotencyKey(o.Key)...)
		return a.PrintResult(r, err)
	}
	r, err := s.ExecStream(ctx, req, a.Streams(command), cli.IdempotencyKey(o.Key)...)
	if err != nil {
		return err
	}
	if r.Session == v1.SessionEnded {
		fmt.Fprintf(
			a.Stderr,
			"orchestrator: the session ended with the command (%s)\n",
			endingText(&r),
		)
	}
	return cli.ResultError(r)
}

// endingText describes an ending in a word or two.
func endingText(r *v1.ExecResult) string {
	switch {
	case r.Ending == "exited":
		return fmt.Sprintf("exited %d", r.ExitCode)
	case r.Signal != 0:
		return fmt.Sprintf("%s %d", r.Ending, r.Signal)
	}
	return r.Ending
}
