package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// maxScript bounds a script that is read from standard input.
const maxScript = 512 << 10

func (a *app) newSessionCommand() *cobra.Command {
	return group("session", "Run commands in a shell that keeps its state", `  s=$(orchestrator session create -q $id)
  orchestrator session exec $id $s -c 'cd /tmp; x=5'
  orchestrator session exec $id $s -c 'pwd; echo $x'
  orchestrator session rm $id $s`,
		a.newSessionCreate(), a.newSessionList(), a.newSessionExec(), a.newSessionRemove())
}

type sessionOptions struct {
	shell, cwd, user, key string
	env                   []string
	quiet                 bool
}

func (a *app) newSessionCreate() *cobra.Command {
	var o sessionOptions
	c := &cobra.Command{
		Use:   "create [flags] SANDBOX",
		Short: "Start a session",
		Example: `  orchestrator session create $id
  orchestrator session create -q --shell sh --cwd /tmp -e LANG=C $id`,
		Args: exactArgs("SANDBOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runSessionCreate(cmd.Context(), cmd, o, args[0])
		},
	}
	f := c.Flags()
	f.StringVar(&o.shell, "shell", "", "`SHELL`: bash or sh; empty is bash where the image has it")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`KEY=VALUE`, or KEY to hand on your own; can be repeated")
	f.StringVar(&o.cwd, "cwd", "", "`DIR` to begin in; empty is /workspace")
	f.StringVarP(&o.user, "user", "u", "", "`USER` by name or number, never 0; empty is the sandbox's own")
	f.StringVar(&o.key, "idempotency-key", "", "start it at most once for this `KEY`")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print the id only")
	return c
}

func (a *app) runSessionCreate(ctx context.Context, cmd *cobra.Command, o sessionOptions, sandbox string) error {
	env, err := a.environment(cmd, o.env)
	if err != nil {
		return err
	}
	cl, err := a.client(ctx)
	if err != nil {
		return err
	}
	_, s, err := cl.StartSession(ctx, sandbox, v1.ShellSessionRequest{Shell: o.shell, Cwd: o.cwd, Env: env, User: o.user}, key(o.key)...)
	if err != nil {
		return err
	}
	if s.Missing != "" {
		fmt.Fprintln(a.stderr, "orchestrator:", s.Missing) //nolint:errcheck // it is a remark
	}
	if o.quiet {
		_, err := fmt.Fprintln(a.stdout, s.ID)
		return err
	}
	return a.print(s, sessionTable(s))
}

func (a *app) newSessionList() *cobra.Command {
	return &cobra.Command{
		Use:     "ls SANDBOX",
		Aliases: []string{"list"},
		Short:   "List a sandbox's sessions",
		Example: "  orchestrator session ls $id",
		Args:    exactArgs("SANDBOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			list, err := cl.Sessions(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(v1.List[v1.ShellSession]{Items: list}, sessionTable(list...))
		},
	}
}

func sessionTable(list ...v1.ShellSession) *table {
	t := &table{head: []string{"ID", "STATE", "SHELL", "STARTED", "COMMANDS", "WAITING", "BACKGROUND", "ENDING"}}
	for _, s := range list {
		end := ""
		if s.Result != nil {
			end = endingText(s.Result)
		}
		t.rows = append(t.rows, []string{s.ID, s.State, s.Shell, ago(s.StartedAt), fmt.Sprint(s.Commands), fmt.Sprint(s.Waiting), fmt.Sprint(s.Left), end})
	}
	return t
}

func (a *app) newSessionRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm SANDBOX SESSION",
		Aliases: []string{"remove"},
		Short:   "Kill what lives of a session and forget it",
		Example: "  orchestrator session rm $id $s",
		Args:    exactArgs("SANDBOX", "SESSION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			_, err = cl.Session(args[0], args[1]).End(cmd.Context())
			return err
		},
	}
}

type sessionExecOptions struct {
	commandOptions
	renew, refuse bool
	wait          time.Duration
}

func (a *app) newSessionExec() *cobra.Command {
	var o sessionExecOptions
	c := &cobra.Command{
		Use:   "exec [flags] SANDBOX SESSION [-- CMD...]",
		Short: "Run a command, or a script from standard input, in a session",
		Long: `Run a command in a session and wait for its end. Without a command the script
is read from standard input.

Its output is passed on as it comes, and its exit code is ours; other endings
have codes of their own (docs/exit-codes.md). Where the session ends with the
command, a line on standard error says so.`,
		Example: `  orchestrator session exec $id $s -c 'source venv/bin/activate'
  orchestrator session exec $id $s <build.sh
  orchestrator session exec --timeout 5s --renew $id $s -- make test`,
		Args: func(cmd *cobra.Command, args []string) error {
			return exactArgs("SANDBOX", "SESSION")(cmd, args[:min(2, len(args))])
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runSessionExec(cmd.Context(), cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.shell, "command", "c", "", "`TEXT` for the session, instead of CMD")
	f.DurationVar(&o.timeout, "timeout", 0, "kill what it started after this time, and interrupt the session; 0 is the server's default")
	f.BoolVarP(&o.interactive, "interactive", "i", false, "pass standard input on to the command")
	f.BoolVar(&o.renew, "renew", false, "begin the session anew if it has ended")
	f.BoolVar(&o.refuse, "no-wait", false, "fail if another command runs in the session")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for other commands; 0 is a minute")
	f.StringVar(&o.key, "idempotency-key", "", "do it at most once for this `KEY`")
	return c
}

func (a *app) runSessionExec(ctx context.Context, cmd *cobra.Command, o sessionExecOptions, args []string) error {
	command, argv := o.afterName(args[2:])
	if len(argv) == 0 && command.shell == "" && !o.interactive {
		script, err := io.ReadAll(io.LimitReader(a.stdin, maxScript+1))
		switch {
		case err != nil:
			return fmt.Errorf("read the script: %w", err)
		case len(script) > maxScript:
			return usage(cmd, "the script is over %d bytes: write it to a file in the sandbox", maxScript)
		case len(script) == 0:
			return usage(cmd, "there is no command, and nothing on standard input")
		}
		command.shell = string(script)
	}
	x, err := a.exec(cmd, command, argv)
	if err != nil {
		return err
	}
	req := v1.ShellSessionExec{Exec: x, Renew: o.renew, WaitMS: millis(o.wait)}
	if o.refuse {
		req.WhenBusy = "refuse"
	}
	cl, err := a.client(ctx)
	if err != nil {
		return err
	}
	s := cl.Session(args[0], args[1])
	if a.flags.output == "json" && !o.interactive {
		r, err := s.Exec(ctx, req, key(o.key)...)
		return a.printResult(r, err)
	}
	r, err := s.ExecStream(ctx, req, a.streams(command), key(o.key)...)
	if err != nil {
		return err
	}
	if r.Session == v1.SessionEnded {
		fmt.Fprintf(a.stderr, "orchestrator: the session has ended with the command (%s)\n", endingText(&r)) //nolint:errcheck // the exit code is what counts
	}
	return result(r)
}

// endingText is an ending in a word or two.
func endingText(r *v1.ExecResult) string {
	switch {
	case r.Ending == "exited":
		return fmt.Sprintf("exited %d", r.ExitCode)
	case r.Signal != 0:
		return fmt.Sprintf("%s %d", r.Ending, r.Signal)
	}
	return r.Ending
}
