package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CommandOptions are the flags of every command that runs something in a sandbox.
type CommandOptions struct {
	Shell       string
	Env         []string
	Cwd, User   string
	Timeout     time.Duration
	Interactive bool
	Key         string
}

// Register adds the flags to f. interactive is the help text of --interactive.
func (o *CommandOptions) Register(f *pflag.FlagSet, interactive string) {
	f.StringVarP(&o.Shell, "command", "c", "", "`TEXT` for the sandbox's shell, instead of CMD")
	f.StringArrayVarP(&o.Env, "env", "e", nil, "`KEY=VALUE`, or KEY to pass on your own; can be repeated")
	f.StringVar(&o.Cwd, "cwd", "", "working `DIR` (default: /workspace)")
	f.StringVarP(&o.User, "user", "u", "", "`USER` by name or number, except 0 (default: the sandbox's user)")
	f.DurationVar(&o.Timeout, "timeout", 0, "kill it and all it started after this time (0: the server's default)")
	f.BoolVarP(&o.Interactive, "interactive", "i", false, interactive)
	f.StringVar(&o.Key, "idempotency-key", "", "run at most once for this `KEY`")
}

// AfterName accepts -c TEXT after SANDBOX, where flags are not parsed any more.
func (o CommandOptions) AfterName(argv []string) (CommandOptions, []string) {
	if o.Shell == "" && len(argv) == 2 && (argv[0] == "-c" || argv[0] == "--command") {
		o.Shell, argv = argv[1], nil
	}
	return o, argv
}

// Exec returns the request for a command line.
func (a *App) Exec(cmd *cobra.Command, o CommandOptions, argv []string) (v1.Exec, error) {
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	switch {
	case len(argv) > 0 && o.Shell != "":
		return v1.Exec{}, Usage(cmd, "CMD and --command are both given: use one of them")
	case len(argv) == 0 && o.Shell == "":
		return v1.Exec{}, Usage(cmd, "CMD is missing: give it after --, or --command for the shell")
	case o.Timeout < 0:
		return v1.Exec{}, Usage(cmd, "--timeout is negative")
	}
	env, err := a.Environment(cmd, o.Env)
	if err != nil {
		return v1.Exec{}, err
	}
	return v1.Exec{Argv: argv, Command: o.Shell, Cwd: o.Cwd, Env: env, User: o.User, TimeoutMS: Millis(o.Timeout)}, nil
}

// Millis converts to milliseconds. It does not round to 0, which means the server's default or no
// limit.
func Millis(d time.Duration) int64 {
	switch ms := d.Milliseconds(); {
	case ms == 0 && d > 0:
		return 1
	case ms == 0 && d < 0:
		return -1
	default:
		return ms
	}
}

// IdempotencyKey returns the option that sends k as the idempotency key, or nothing if k is "".
func IdempotencyKey(k string) []client.Option {
	if k == "" {
		return nil
	}
	return []client.Option{client.IdempotencyKey(k)}
}

// Streams returns the streams to connect to a command.
func (a *App) Streams(o CommandOptions) client.Streams {
	s := client.Streams{Stdout: a.Stdout, Stderr: a.Stderr}
	if o.Interactive {
		s.Stdin = a.Stdin
	}
	return s
}

// PrintResult prints a result as JSON and returns the error for its ending.
func (a *App) PrintResult(r v1.ExecResult, err error) error {
	if err != nil {
		return err
	}
	if err := a.PrintJSON(r); err != nil {
		return err
	}
	return ResultError(r)
}

// ModeHelp is the help text of --mode.
const ModeHelp = "`MODE` of having the workspace: rw (default), ro, or overlay, " +
	"which keeps what changes apart for workspace diff, commit and discard"

// NoteOverlay says how to see the changes of a run with an overlay.
func (a *App) NoteOverlay(r v1.ExecResult) {
	if r.Overlay != "" {
		fmt.Fprintf(
			a.Stderr,
			"orchestrator: changes are kept in an overlay: see `orchestrator workspace diff %s`\n",
			r.Overlay,
		)
	}
}
