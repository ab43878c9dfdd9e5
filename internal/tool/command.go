package tool

import (
	"context"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Runner runs commands in the call's sandbox.
type Runner interface {
	// Exec runs a command and waits for it to end. Both streams are truncated as the caps' Cut
	// says. rest is the id by which Shells.Output returns the whole, or "" if nothing was omitted.
	Exec(ctx context.Context, x v1.Exec) (r v1.ExecResult, rest string, err error)
	// Start starts a background command.
	Start(ctx context.Context, r v1.ShellRequest) (v1.Shell, error)
}

// commandInput is the common input of tools that run a command.
type commandInput struct {
	Cwd             string            `json:"cwd,omitempty" jsonschema:"the folder to run in, absolute or relative to /workspace"`
	Env             map[string]string `json:"env,omitempty" jsonschema:"environment variables to add"`
	Stdin           string            `json:"stdin,omitempty" jsonschema:"what the command reads on its standard input"`
	TimeoutMS       int64             `json:"timeout_ms,omitempty" jsonschema:"end the command and all it started after this many milliseconds"`
	RunInBackground bool              `json:"run_in_background,omitempty" jsonschema:"start it and return its id at once; read it with system.output"`
	Description     string            `json:"description,omitempty" jsonschema:"what it is for, for whoever reads the log"`
}

// CommandOutput is a command's result and output.
type CommandOutput struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code" jsonschema:"-1 unless the command exited by itself"`
	Ending   string `json:"ending" jsonschema:"exited, signalled, timeout, cancelled, oom, pids, disk, output_limit, sandbox_lost, or started"`
	Signal   int    `json:"signal,omitempty"`
	// Truncated reports that part of a stream is omitted. The totals are exact.
	Truncated   bool   `json:"truncated"`
	StdoutBytes int64  `json:"stdout_bytes"`
	StderrBytes int64  `json:"stderr_bytes"`
	DurationMS  int64  `json:"duration_ms"`
	TimeoutMS   int64  `json:"timeout_ms,omitempty"`
	ShellID     string `json:"shell_id,omitempty" jsonschema:"the background command's id: the shell_id of system.output and system.kill"`
	Rest        string `json:"rest,omitempty" jsonschema:"read the whole output by this id with system.output"`
	Detail      string `json:"detail,omitempty"`
}

type bashInput struct {
	Command string `json:"command" jsonschema:"the command line, for bash"`
	commandInput
}

type runInput struct {
	Argv []string `json:"argv" jsonschema:"the program and its arguments; no shell is in between"`
	commandInput
}

type lineInput struct {
	Command string `json:"command" jsonschema:"the program and its arguments in one line; quotes group words, nothing is expanded, no shell is in between"`
	commandInput

	cmd *Command // the policy check splits it
}

var systemBash = Define(Tool{
	Name: "system.bash", Title: "Run a shell command", Trust: 3, Destructive: true,
	Description: "Runs a command line with bash in a disposable sandbox without a network. " +
		"Everything that it started is dead when it returns; use run_in_background for what shall go on.",
	Effects: []Effect{CallsShell, WritesFiles, Spawns},
}, func(in *bashInput) (Prepared, error) {
	if err := checkCommand("command", in.Command); err != nil {
		return Prepared{}, err
	}
	return in.prepare(&Command{Shell: in.Command})
}, func(ctx context.Context, caps Caps, r Runner, in *bashInput) (CommandOutput, Outcome, error) {
	return runCommand(ctx, caps, r, in.exec(v1.Exec{Command: in.Command}), in.RunInBackground)
})

var systemRun = Define(Tool{
	Name: "system.run", Title: "Run a program", Trust: 3, Destructive: true,
	Description: "Runs a program with arguments in a disposable sandbox without a network. No shell looks at them.",
	Effects:     []Effect{WritesFiles, Spawns},
}, func(in *runInput) (Prepared, error) {
	if len(in.Argv) == 0 || in.Argv[0] == "" {
		return Prepared{}, Invalid("argv", "is empty: give the program and its arguments")
	}
	for _, a := range in.Argv {
		if strings.ContainsRune(a, 0) {
			return Prepared{}, Invalid("argv", "holds a NUL byte")
		}
	}
	return in.prepare(&Command{Argv: in.Argv})
}, func(ctx context.Context, caps Caps, r Runner, in *runInput) (CommandOutput, Outcome, error) {
	return runCommand(ctx, caps, r, in.exec(v1.Exec{Argv: in.Argv}), in.RunInBackground)
})

// systemLine is for profiles of systems that split a command line themselves.
var systemLine = Define(Tool{
	Name: "system.line", Title: "Run a program by a line", Trust: 3, Destructive: true,
	Description: "Runs a program given as one line, split into words by quoting alone, " +
		"in a disposable sandbox without a network. No shell looks at it.",
	Effects: []Effect{WritesFiles, Spawns},
}, func(in *lineInput) (Prepared, error) {
	in.cmd = &Command{Line: in.Command}
	return in.prepare(in.cmd)
}, func(ctx context.Context, caps Caps, r Runner, in *lineInput) (CommandOutput, Outcome, error) {
	if len(in.cmd.Argv) == 0 {
		return CommandOutput{}, Outcome{}, Invalid("command", "is empty")
	}
	return runCommand(ctx, caps, r, in.exec(v1.Exec{Argv: in.cmd.Argv}), in.RunInBackground)
})

func checkCommand(field, command string) error {
	switch {
	case strings.TrimSpace(command) == "":
		return Invalid(field, "is empty")
	case strings.ContainsRune(command, 0):
		return Invalid(field, "holds a NUL byte")
	}
	return nil
}

func (c *commandInput) prepare(cmd *Command) (Prepared, error) {
	if c.TimeoutMS < 0 {
		return Prepared{}, Invalid("timeout_ms", "is negative")
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return Prepared{}, Invalid("env", "has a name that is empty or has '=', or a NUL byte: %q", name)
		}
	}
	return Prepared{Command: cmd, NeedsSandbox: true, Background: c.RunInBackground}, nil
}

func (c *commandInput) exec(x v1.Exec) v1.Exec {
	x.Cwd, x.Env, x.Stdin, x.TimeoutMS = c.Cwd, c.Env, c.Stdin, c.TimeoutMS
	return x
}

func runCommand(ctx context.Context, caps Caps, run Runner, x v1.Exec, background bool) (CommandOutput, Outcome, error) {
	cwd, err := caps.folder("cwd", x.Cwd)
	if err != nil {
		return CommandOutput{}, Outcome{}, err
	}
	x.Cwd = cwd
	if err := caps.timeout(&x, background); err != nil {
		return CommandOutput{}, Outcome{}, err
	}
	if background {
		return startCommand(ctx, run, x)
	}
	r, rest, err := run.Exec(ctx, x)
	if err != nil {
		return CommandOutput{}, Outcome{}, err
	}
	out := CommandOutput{
		Stdout: r.Stdout, Stderr: r.Stderr, ExitCode: r.ExitCode, Ending: r.Ending, Signal: r.Signal, Truncated: r.Truncated,
		StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, DurationMS: r.DurationMS, TimeoutMS: x.TimeoutMS,
		Rest: rest, Detail: r.Detail,
	}
	return out, Outcome{
		Ending: r.Ending, ExitCode: r.ExitCode, Signal: r.Signal, Duration: time.Duration(r.DurationMS) * time.Millisecond,
		Usage:  r.Usage,
		Stdout: r.StdoutBytes, Stderr: r.StderrBytes, Truncated: r.Truncated, Detail: r.Detail, TimeoutMS: x.TimeoutMS,
	}, nil
}

// startCommand starts the command as a shell. A requested time-out also applies in the background.
func startCommand(ctx context.Context, run Runner, x v1.Exec) (CommandOutput, Outcome, error) {
	sh, err := run.Start(ctx, v1.ShellRequest{Exec: x})
	if err != nil {
		return CommandOutput{}, Outcome{}, err
	}
	return CommandOutput{Ending: Started, ShellID: sh.ID, TimeoutMS: x.TimeoutMS}, Outcome{Ending: Started,
		TimeoutMS: x.TimeoutMS}, nil
}

// Started is the ending of a call that started a background command.
const Started = "started"

// timeout applies the default and the limit of the caps. A background command has a time-out only
// if the call sets one.
func (c Caps) timeout(x *v1.Exec, background bool) error {
	if x.TimeoutMS == 0 && background {
		return nil
	}
	if x.TimeoutMS == 0 {
		x.TimeoutMS = c.Timeout.Milliseconds()
	}
	if limit := c.MaxTimeout.Milliseconds(); limit > 0 && x.TimeoutMS > limit {
		if !c.Clamp {
			return Invalid("timeout_ms", "is %d: at most %d", x.TimeoutMS, limit)
		}
		x.TimeoutMS = limit
	}
	return nil
}
