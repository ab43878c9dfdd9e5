package sandbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewShellCommand returns "orchestrator shell" with its commands.
func NewShellCommand(a *cli.App) *cobra.Command {
	return cli.Group(
		"shell",
		"Run background commands and read their output",
		`  sh=$(orchestrator shell start -q $id -- make test)
  orchestrator shell logs -f $sh
  orchestrator shell kill $sh`,
		newShellStart(a),
		newShellList(a),
		newShellAttach(a),
		newShellLogs(a),
		newShellInput(a),
		newShellKill(a),
	)
}

type shellOptions struct {
	cli.CommandOptions
	merge, lossless, quiet bool
	spool                  int64
}

func newShellStart(a *cli.App) *cobra.Command {
	var o shellOptions
	c := &cobra.Command{
		Use:   "start [flags] SANDBOX -- CMD...",
		Short: "Start a background command",
		Example: `  orchestrator shell start $id -- python3 -m http.server
  orchestrator shell start --keep-stdin -q $id -c 'cat > notes.txt'`,
		Args: sandboxAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return runShellStart(cmd.Context(), a, cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&o.Shell, "command", "c", "", "`TEXT` for the sandbox's shell, instead of CMD")
	f.StringArrayVarP(&o.Env, "env", "e", nil, "`KEY=VALUE`, or KEY to pass on your own; can be repeated")
	f.StringVar(&o.Cwd, "cwd", "", "working `DIR` (default: /workspace)")
	f.StringVarP(&o.User, "user", "u", "", "`USER` by name or number, except 0 (default: the sandbox's user)")
	f.DurationVar(&o.Timeout, "timeout", 0, "kill it and all it started after this time (0: never)")
	f.StringVar(&o.Key, "idempotency-key", "", "start it at most once for this `KEY`")
	f.BoolVarP(&o.Interactive, "keep-stdin", "i", false, "keep its input open for 'shell input'")
	f.BoolVar(&o.merge, "merge", false, "merge standard error into standard output")
	f.BoolVar(&o.lossless, "lossless", false, "block the command while the kept output is full and unread")
	f.Int64Var(&o.spool, "spool", 0, "`BYTES` of each stream to keep (0: the default)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only the id")
	return c
}

func runShellStart(ctx context.Context, a *cli.App, cmd *cobra.Command, o shellOptions, args []string) error {
	command, argv := o.AfterName(args[1:])
	x, err := a.Exec(cmd, command, argv)
	if err != nil {
		return err
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	s, err := cl.StartShell(ctx, args[0], v1.ShellRequest{
		Exec: x, MergeStderr: o.merge, KeepOpen: o.Interactive, SpoolBytes: o.spool, Lossless: o.lossless,
	}, cli.IdempotencyKey(o.Key)...)
	if err != nil {
		return err
	}
	if o.quiet {
		_, err := fmt.Fprintln(a.Stdout, s.ID)
		return err
	}
	return printShells(a, s)
}

func shellRow(s v1.Shell) []string {
	end := ""
	if r := s.Result; r != nil {
		end = r.Ending
		switch {
		case r.Ending == "exited":
			end = fmt.Sprintf("exited %d", r.ExitCode)
		case r.Signal != 0:
			end = fmt.Sprintf("%s %d", r.Ending, r.Signal)
		}
	}
	tty := "-"
	if s.TTY {
		tty = "tty"
	}
	return []string{
		s.ID,
		s.State,
		end,
		tty,
		cli.Ago(s.StartedAt),
		fmt.Sprint(s.StdoutEnd),
		fmt.Sprint(s.StderrEnd),
		strings.Join(s.Argv, " "),
	}
}

func shellHead() []string {
	return []string{"ID", "STATE", "ENDING", "TTY", "STARTED", "STDOUT", "STDERR", "COMMAND"}
}

// shellOptional are the columns that a narrow terminal does not show.
func shellOptional() []string { return []string{"TTY", "STDERR", "STDOUT"} }

// printShells prints one shell.
func printShells(a *cli.App, s v1.Shell) error {
	return a.Print(s, &cli.Table{Head: shellHead(), Rows: [][]string{shellRow(s)}, Optional: shellOptional()})
}

func newShellList(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "ls SANDBOX",
		Aliases: []string{"list"},
		Short:   "List a sandbox's background commands",
		Example: "  orchestrator shell ls $id",
		Args:    cli.ExactArgs("SANDBOX"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			list, err := cl.Shells(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return cli.PrintTable(a, list, &cli.Table{Head: shellHead(), Optional: shellOptional()}, shellRow)
		}),
	}
}

type logsOptions struct {
	follow, stderr bool
	offset         int64
}

func newShellLogs(a *cli.App) *cobra.Command {
	var o logsOptions
	c := &cobra.Command{
		Use:   "logs SHELL",
		Short: "Print a background command's output",
		Long: `Print a background command's output unchanged, from an offset on.

With --follow, print until its end, and reconnect after a lost connection or a
restart of the server. Bytes that are no longer kept are reported on standard error.
With -o json, print one piece with its offset.`,
		Example: `  orchestrator shell logs $sh
  orchestrator shell logs -f --stderr $sh
  orchestrator shell logs --offset 1048576 $sh -o json`,
		Args: cli.ExactArgs("SHELL"),
		RunE: func(cmd *cobra.Command, args []string) error { return runShellLogs(cmd.Context(), a, cmd, o, args[0]) },
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "follow until the end of the stream")
	f.BoolVar(&o.stderr, "stderr", false, "print standard error instead of standard output")
	f.Int64Var(&o.offset, "offset", 0, "offset of the first `BYTE` to print")
	return c
}

func runShellLogs(ctx context.Context, a *cli.App, cmd *cobra.Command, o logsOptions, id string) error {
	stream := "stdout"
	if o.stderr {
		stream = "stderr"
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	gap := func(from, to int64) {
		fmt.Fprintf(
			a.Stderr,
			"orchestrator: %d bytes are no longer kept: %d to %d\n",
			to-from,
			from,
			to-1,
		)
	}
	switch {
	case o.follow && a.Flags.Output == "json":
		return cli.Usage(cmd, "--follow and --output json are both given: use one of them")
	case o.follow:
		_, err := cl.Follow(ctx, id, client.FollowRequest{Stream: stream, Offset: o.offset, Gap: gap}, a.Stdout)
		return err
	}
	if a.Flags.Output == "json" {
		out, err := cl.Output(ctx, id, client.OutputRequest{Stream: stream, Offset: o.offset})
		if err != nil {
			return err
		}
		return a.PrintJSON(out)
	}
	// Read the present output in pieces; do not wait for more.
	sh, err := cl.Shell(ctx, id)
	if err != nil {
		return err
	}
	end := sh.StdoutEnd
	if o.stderr {
		end = sh.StderrEnd
	}
	for next := o.offset; next < end; {
		at, err := cl.CopyOutput(
			ctx,
			id,
			client.OutputRequest{Stream: stream, Offset: next, Limit: end - next},
			gap,
			a.Stdout,
		)
		if err != nil {
			return err
		}
		if at <= next {
			return nil
		}
		next = at
	}
	return nil
}

func newShellInput(a *cli.App) *cobra.Command {
	var stayOpen bool
	c := &cobra.Command{
		Use:   "input SHELL",
		Short: "Send standard input to a background command",
		Example: `  echo hello | orchestrator shell input $sh
  printf 'line\n' | orchestrator shell input --keep-open $sh`,
		Args: cli.ExactArgs("SHELL"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			return cl.Input(cmd.Context(), args[0], a.Input(cmd.Context()), !stayOpen)
		}),
	}
	c.Flags().BoolVar(&stayOpen, "keep-open", false, "keep its input open")
	return c
}

type killOptions struct {
	grace  time.Duration
	signal int
	forget bool
}

func newShellKill(a *cli.App) *cobra.Command {
	var o killOptions
	c := &cobra.Command{
		Use:   "kill SHELL",
		Short: "End a background command and all its processes",
		Long: `End a background command with TERM and, after the grace time, KILL. All its
processes are dead when this returns. With --signal, only send that signal.`,
		Example: `  orchestrator shell kill $sh
  orchestrator shell kill --grace 30s --forget $sh
  orchestrator shell kill --signal 1 $sh`,
		Args: cli.ExactArgs("SHELL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			only := cmd.Flags().Changed("signal")
			if only && o.signal <= 0 { // elsewhere 0 only tests for existence, so it must not kill here
				return cli.Usage(cmd, "--signal is %d: from 1 to 64", o.signal)
			}
			cl, err := a.Client(cmd.Context())
			if err != nil {
				return err
			}
			if only {
				return cl.SignalShell(cmd.Context(), args[0], o.signal)
			}
			s, err := cl.KillShell(cmd.Context(), args[0], o.grace, o.forget)
			if err != nil {
				return err
			}
			return printShells(a, s)
		},
	}
	f := c.Flags()
	f.DurationVar(&o.grace, "grace", 2*time.Second, "time between TERM and KILL")
	f.IntVar(&o.signal, "signal", 0, "only send the signal with this `NUMBER`")
	f.BoolVar(&o.forget, "forget", false, "also remove its record and output")
	return c
}
