package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/jsonschema-go/jsonschema"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
)

// Effect is an effect of a tool: "calls(shell)", "calls(network)", "reads(filesystem)",
// "writes(filesystem)" or "spawns(process)".
type Effect string

// The effects of the built-in tools.
const (
	CallsShell   Effect = "calls(shell)"
	CallsNetwork Effect = "calls(network)"
	ReadsFiles   Effect = "reads(filesystem)"
	WritesFiles  Effect = "writes(filesystem)"
	Spawns       Effect = "spawns(process)"
)

// Trust levels that a tool may require and a caller may have.
const (
	TrustNone = 0
	TrustMax  = 3
)

// Tool is an immutable built-in tool with typed input and output and their schemas.
type Tool struct {
	Name        string
	Title       string
	Description string
	Effects     []Effect
	Trust       int
	Cacheable   bool
	// ReadOnly tools change nothing. Destructive tools may destroy data. Repeating an Idempotent
	// call has no further effect.
	ReadOnly, Destructive, Idempotent bool
	// Input and Output are JSON Schemas.
	Input, Output json.RawMessage

	required []string
	check    func(raw json.RawMessage) (Prepared, error)
}

// Check decodes and validates an input without a sandbox. Errors are of class InvalidArgument and
// name the field.
func (t *Tool) Check(raw json.RawMessage) (Prepared, error) {
	if len(t.required) > 0 {
		var fields map[string]json.RawMessage
		if err := strictjson.Decode(raw, &fields); err != nil {
			return Prepared{}, aboutInput(err)
		}
		for _, name := range t.required {
			if _, ok := fields[name]; !ok {
				return Prepared{}, Invalid(name, "is missing")
			}
		}
	}
	return t.check(raw)
}

// Prepared is a checked call, ready to run.
type Prepared struct {
	// Command is what a command policy decides on, or nil.
	Command *Command
	// NeedsSandbox reports that the call needs a sandbox of its own. Background reports that the
	// call starts something that outlives it, so the sandbox must outlive it too.
	NeedsSandbox, Background bool
	// Call runs the call.
	Call Call
}

// Call is a checked call: a Run of what the tool needs. Whoever runs it switches on its type.
type Call interface{ isCall() }

// Run runs a checked call within caps. D is what the tool needs, such as Files. The output has the
// type that the schema describes.
type Run[D any] func(ctx context.Context, caps Caps, d D) (any, Outcome, error)

func (Run[D]) isCall() {}

// Command is what a tool will run, in one of three forms.
type Command struct {
	// Shell is a command line for the sandbox's shell.
	Shell string
	// Line is a command line without a shell. The policy check splits it into Argv, which must be
	// set before Run.
	Line string
	// Argv is an argument vector.
	Argv []string
}

// Outcome is what the engine and the audit log need to know about the result.
type Outcome struct {
	// Ending is how the command ended, or "" if the tool runs none.
	Ending    string
	ExitCode  int
	Signal    int
	Duration  time.Duration
	Usage     v1.Usage
	Stdout    int64
	Stderr    int64
	Truncated bool
	Detail    string
	// TimeoutMS is the effective time-out.
	TimeoutMS int64
}

// Caps limits one call, as the profile and the service configure it. Zero means no limit.
type Caps struct {
	Timeout, MaxTimeout time.Duration
	// Clamp reduces a longer time-out to MaxTimeout. Without it, a longer time-out is an error.
	Clamp bool
	// Output limits each stream in the answer.
	Output Cut
	// MaxFile limits files read and written, in bytes.
	MaxFile int64
	// Dirs, if not empty, lists the only directories that paths may be in, as the sandbox names
	// them. Alias maps a directory of the profile to one of the sandbox ("/home/user/projects" to
	// "/workspace").
	Dirs     []string
	Alias    map[string]string
	ReadOnly bool
	// NoFollow refuses symbolic links in paths. Without it, links within the directory are
	// followed.
	NoFollow bool
	// MemoryBytes and CPUs limit one command's use of the sandbox.
	MemoryBytes int64
	CPUs        float64
	// Web limits web tools.
	Web reach.Caps
}

// Tools returns the tools for commands, background commands and files.
func Tools() []*Tool {
	return []*Tool{
		fsDelete, fsEdit, fsGlob, fsList, fsRead, fsSearch, fsStat, fsWrite,
		systemBash, systemKill, systemLine, systemOutput, systemRun, systemShells,
	}
}

// ErrNoOutput accompanies an outcome that needs no output.
var ErrNoOutput = errors.New("no output")

// Define completes a tool with schemas and functions derived from its types: its input, its output
// and what it needs to run. It panics if a type has no schema.
func Define[In, Out, D any](
	t Tool,
	check func(in *In) (Prepared, error),
	run func(ctx context.Context, caps Caps, d D, in *In) (Out, Outcome, error),
) *Tool {
	in, err := jsonschema.For[In](nil)
	if err != nil {
		panic(fmt.Sprintf("input of %s: %v", t.Name, err)) // only for an invalid type of a built-in tool
	}
	out, err := jsonschema.For[Out](nil)
	if err != nil {
		panic(fmt.Sprintf("output of %s: %v", t.Name, err))
	}
	t.required = in.Required
	t.Input, t.Output = mustJSON(in), mustJSON(out)
	t.check = func(raw json.RawMessage) (Prepared, error) {
		v := new(In)
		if err := strictjson.Decode(raw, v); err != nil {
			return Prepared{}, aboutInput(err)
		}
		p, err := check(v)
		if err != nil {
			return Prepared{}, err
		}
		p.Call = Run[D](func(ctx context.Context, caps Caps, d D) (any, Outcome, error) {
			out, o, err := run(ctx, caps, d, v)
			if err == ErrNoOutput {
				return nil, o, nil
			}
			return out, o, err
		})
		return p, nil
	}
	return &t
}

func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only for an invalid schema in this package
	}
	return b
}

// aboutInput adds the field name "input" to an error about the whole input.
func aboutInput(err error) error {
	if e, ok := errors.AsType[*strictjson.FieldError](err); ok && e.Field == "body" {
		return &strictjson.FieldError{Field: "input", Message: e.Message}
	}
	return err
}

// Invalid returns an error of class InvalidArgument about a field of the input.
func Invalid(field, format string, args ...any) error {
	return &strictjson.FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// forbidden returns an error about a path that the profile does not allow.
func forbidden(format string, args ...any) error {
	return usererror.Errorf(errdefs.ErrPermissionDenied, "path "+format, args...)
}
