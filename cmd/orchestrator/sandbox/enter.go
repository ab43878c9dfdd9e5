package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

type enterOptions struct {
	env                    []string
	cwd, user, term, keys  string
	timeout                time.Duration
	scrollback             int64
	command, idempotencyID string
}

func newSandboxEnter(a *cli.App) *cobra.Command {
	var o enterOptions
	c := &cobra.Command{
		Use:   "enter [flags] SANDBOX [-- CMD...]",
		Short: "Open a terminal in a leased sandbox",
		Long: `Open a terminal in a leased sandbox that runs a shell, or CMD, with job control. The
exit code is the command's.

The command does not end with this program: enter reconnects after a lost connection
or a restart of the server. Ctrl-P Ctrl-Q detaches and leaves it running; "shell
attach" attaches again. If standard input or output is not a terminal, input is sent
by lines, and its end as Ctrl-D; for plain pipes use "exec -i".`,
		Example: `  orchestrator sandbox enter $id
  orchestrator sandbox enter --cwd /tmp -e EDITOR=vi $id -- python3
  orchestrator sandbox enter --detach-keys ctrl-] $id -- top`,
		Args: sandboxAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return runEnter(cmd.Context(), a, cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.command, "command", "c", "", "`TEXT` for the sandbox's shell, instead of CMD")
	f.StringArrayVarP(&o.env, "env", "e", nil, "`KEY=VALUE`, or KEY to pass on your own; can be repeated")
	f.StringVar(&o.cwd, "cwd", "", "initial `DIR` (default: /workspace)")
	f.StringVarP(&o.user, "user", "u", "", "`USER` by name or number, except 0 (default: the sandbox's user)")
	f.StringVar(&o.term, "term", "", "`TERM` of the command (default: that of this terminal)")
	f.DurationVar(&o.timeout, "timeout", 0, "kill it and all it started after this time (0: never)")
	f.Int64Var(&o.scrollback, "spool", 0, "`BYTES` of output to keep (0: the default)")
	f.StringVar(&o.keys, "detach-keys", defaultDetachKeys, "`KEYS` that detach, or none")
	f.StringVar(&o.idempotencyID, "idempotency-key", "", "open it at most once for this `KEY`")
	return c
}

func runEnter(ctx context.Context, a *cli.App, cmd *cobra.Command, o enterOptions, args []string) error {
	keys, err := parseDetachKeys(cmd, o.keys)
	if err != nil {
		return err
	}
	argv := args[1:]
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) > 0 && o.command != "" {
		return cli.Usage(cmd, "CMD and --command are both given: use one of them")
	}
	env, err := a.Environment(cmd, o.env)
	if err != nil {
		return err
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	s := &terminalSession{app: a, screen: newScreen(a), keys: keys, sendsEOF: true}
	cols, rows := s.screen.size()
	t, err := cl.OpenTerminal(ctx, args[0], v1.TerminalRequest{
		Argv: argv, Command: o.command, Cwd: o.cwd, Env: env, User: o.user, TimeoutMS: cli.Millis(o.timeout),
		Term: terminalType(a, o.term, s.screen), Cols: cols, Rows: rows, SpoolBytes: o.scrollback,
	}, s.options(), cli.IdempotencyKey(o.idempotencyID)...)
	if err != nil {
		return err
	}
	s.reattachCommand = "orchestrator shell attach " + t.Shell()
	return finishTerminal(ctx, cl, s, t, true)
}

// terminalType returns the TERM of a command. For output to a file or a pipe it is "dumb".
func terminalType(a *cli.App, asked string, s screen) string {
	switch own, _ := a.Lookup("TERM"); {
	case asked != "":
		return asked
	case !s.there():
		return "dumb"
	default:
		return own
	}
}

// finishTerminal stays attached until the command ends. If forget is set, it then removes the
// terminal.
func finishTerminal(
	ctx context.Context,
	cl *client.Client,
	s *terminalSession,
	t *client.Terminal,
	forget bool,
) error {
	r, err := s.attach(ctx, t)
	if err != nil {
		if r.Ending == "" || errors.Is(err, errDetach) {
			return s.leave(err)
		}
		s.resetScreen()
		return err
	}
	s.screen.restore()
	if r.Ending != string(runtime.Exited) { // other endings had no time for that
		s.resetScreen()
	}
	if forget {
		_, _ = cl.KillShell(ctx, t.Shell(), 0, true) // otherwise it is removed with its sandbox
	}
	return cli.ResultError(r)
}
