package tool

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Shells lists, reads and ends background commands of the caller.
type Shells interface {
	// List lists the background commands of the call's sandbox or session if it names one,
	// otherwise all.
	List(ctx context.Context) ([]v1.Shell, error)
	// Output reads output of a background command, or the rest of an earlier call's output, by its
	// id.
	Output(ctx context.Context, id string, stream string, offset, limit int64, wait time.Duration) (v1.Output, error)
	// Kill ends a background command: TERM, the grace period, KILL.
	Kill(ctx context.Context, id string, grace time.Duration) (v1.Shell, error)
}

// Limits of the shell tools.
const (
	maxWait  = time.Minute
	maxGrace = time.Minute
	// KillGrace is how long a background command may take to end after TERM.
	KillGrace = 5 * time.Second
	// outputLimit is the default size of system.output's answer, in bytes.
	outputLimit = 30_000
)

// ShellState is a background command.
type ShellState struct {
	ShellID   string   `json:"shell_id"`
	Argv      []string `json:"argv"`
	State     string   `json:"state" jsonschema:"running or ended"`
	StartedAt string   `json:"started_at"`
	SandboxID string   `json:"sandbox_id"`
	Ending    string   `json:"ending,omitempty"`
	ExitCode  *int     `json:"exit_code,omitempty"`
	// Bytes written to each stream so far.
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
}

func shellState(sh v1.Shell) ShellState {
	s := ShellState{
		ShellID: sh.ID, Argv: sh.Argv, State: sh.State, StartedAt: sh.StartedAt.UTC().Format(time.RFC3339),
		SandboxID:   sh.SandboxID,
		StdoutBytes: sh.StdoutEnd, StderrBytes: sh.StderrEnd,
	}
	if s.Argv == nil {
		s.Argv = []string{}
	}
	if sh.Result != nil {
		s.Ending, s.ExitCode = sh.Result.Ending, &sh.Result.ExitCode
	}
	return s
}

type shellsInput struct{}

// ShellsOutput lists background commands.
type ShellsOutput struct {
	Shells []ShellState `json:"shells"`
}

var systemShells = Define(Tool{
	Name: "system.shells", Title: "List background commands", Trust: 0, ReadOnly: true, Idempotent: true,
	Description: "Lists your background commands with their state.",
	Effects:     []Effect{CallsShell},
}, func(*shellsInput) (Prepared, error) {
	return Prepared{}, nil
}, func(ctx context.Context, _ Caps, s Shells, _ *shellsInput) (ShellsOutput, Outcome, error) {
	list, err := s.List(ctx)
	if err != nil {
		return ShellsOutput{}, Outcome{}, err
	}
	out := ShellsOutput{Shells: make([]ShellState, 0, len(list))}
	for _, sh := range list {
		out.Shells = append(out.Shells, shellState(sh))
	}
	return out, Outcome{}, nil
})

type outputInput struct {
	ShellID string `json:"shell_id" jsonschema:"the background command's id (shell_id or background_task_id of its result), or the rest id of an earlier call"`
	Stream  string `json:"stream,omitempty" jsonschema:"stdout (the default) or stderr"`
	Offset  int64  `json:"offset,omitempty" jsonschema:"the byte to begin with; go on with next_offset"`
	Limit   int64  `json:"limit,omitempty" jsonschema:"at most this many bytes"`
	WaitMS  int64  `json:"wait_ms,omitempty" jsonschema:"wait this long for new output"`
}

// OutputOutput is a piece of a background command's output.
type OutputOutput struct {
	ShellID    string `json:"shell_id"`
	Stream     string `json:"stream"`
	Offset     int64  `json:"offset"`
	NextOffset int64  `json:"next_offset"`
	Gap        int64  `json:"gap" jsonschema:"bytes before offset that are no longer kept"`
	Data       string `json:"data"`
	Base64     string `json:"base64,omitempty" jsonschema:"instead of data, for bytes that are no text"`
	EOF        bool   `json:"eof"`
	State      string `json:"state"`
	Ending     string `json:"ending,omitempty"`
	ExitCode   *int   `json:"exit_code,omitempty"`
}

var systemOutput = Define(Tool{
	Name: "system.output", Title: "Read output", Trust: 0, ReadOnly: true, Idempotent: true,
	Description: "Reads output of a background command, or the rest of a truncated output, from a byte offset.",
	Effects:     []Effect{CallsShell},
}, func(in *outputInput) (Prepared, error) {
	switch {
	case in.ShellID == "":
		return Prepared{}, Invalid("shell_id", "is empty")
	case in.Stream != "" && in.Stream != "stdout" && in.Stream != "stderr":
		return Prepared{}, Invalid("stream", "is %q: use stdout or stderr", in.Stream)
	case in.Offset < 0:
		return Prepared{}, Invalid("offset", "is negative")
	case in.Limit < 0 || in.Limit > 1<<20:
		return Prepared{}, Invalid("limit", "is %d: from 0 to %d", in.Limit, 1<<20)
	case in.WaitMS < 0 || in.WaitMS > maxWait.Milliseconds():
		return Prepared{}, Invalid("wait_ms", "is %d: from 0 to %d", in.WaitMS, maxWait.Milliseconds())
	}
	return Prepared{}, nil
}, func(ctx context.Context, _ Caps, s Shells, in *outputInput) (OutputOutput, Outcome, error) {
	stream, limit := in.Stream, in.Limit
	if stream == "" {
		stream = "stdout"
	}
	if limit == 0 {
		limit = outputLimit
	}
	o, err := s.Output(ctx, in.ShellID, stream, in.Offset, limit, time.Duration(in.WaitMS)*time.Millisecond)
	if err != nil {
		return OutputOutput{}, Outcome{}, err
	}
	out := OutputOutput{
		ShellID: in.ShellID, Stream: stream, Offset: o.Offset, NextOffset: o.NextOffset, Gap: o.Gap, Data: o.Data,
		Base64: o.Base64,
		EOF:    o.EOF, State: o.Shell.State,
	}
	if o.Shell.Result != nil {
		out.Ending, out.ExitCode = o.Shell.Result.Ending, &o.Shell.Result.ExitCode
	}
	return out, Outcome{}, nil
})

type killInput struct {
	ShellID string `json:"shell_id" jsonschema:"the background command's id (shell_id or background_task_id of its result)"`
	GraceMS *int64 `json:"grace_ms,omitempty" jsonschema:"how long it has to end by itself after TERM; 5000 unless set"`
}

// KillOutput reports whether a background command was ended.
type KillOutput struct {
	ShellID string `json:"shell_id"`
	Success bool   `json:"success"`
	Message string `json:"message"`
	Ending  string `json:"ending,omitempty"`
	// Already reports that an earlier kill had ended the command.
	Already bool `json:"already,omitempty"`
}

var systemKill = Define(Tool{
	Name: "system.kill", Title: "End a background command", Trust: 2, Destructive: true, Idempotent: true,
	Description: "Ends a background command with everything it started: TERM, a grace time, KILL.",
	Effects:     []Effect{CallsShell},
}, func(in *killInput) (Prepared, error) {
	switch {
	case in.ShellID == "":
		return Prepared{}, Invalid("shell_id", "is empty")
	case in.GraceMS != nil && (*in.GraceMS < 0 || *in.GraceMS > maxGrace.Milliseconds()):
		return Prepared{}, Invalid("grace_ms", "is %d: from 0 to %d", *in.GraceMS, maxGrace.Milliseconds())
	}
	return Prepared{}, nil
}, func(ctx context.Context, _ Caps, s Shells, in *killInput) (KillOutput, Outcome, error) {
	grace := KillGrace
	if in.GraceMS != nil {
		grace = time.Duration(*in.GraceMS) * time.Millisecond
	}
	already := false
	if o, err := s.Output(ctx, in.ShellID, "stdout", 0, 1, 0); err == nil && o.Shell.Result != nil {
		already = o.Shell.Result.Ending == string(runtime.Cancelled)
	}
	sh, err := s.Kill(ctx, in.ShellID, grace)
	switch {
	case errdefs.IsNotFound(err): // Report this as a result, not an error, as the systems that profiles emulate do.
		return KillOutput{ShellID: in.ShellID, Message: fmt.Sprintf("Shell %s not found", in.ShellID)}, Outcome{}, nil
	case err != nil:
		return KillOutput{}, Outcome{}, err
	}
	out := KillOutput{ShellID: in.ShellID, Success: true, Message: "Shell terminated", Already: already}
	if sh.Result != nil {
		out.Ending = sh.Result.Ending
	}
	return out, Outcome{}, nil
})
