package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/jsonschema-go/jsonschema"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Effect is what a tool does to the world, as "calls(shell)", "calls(network)",
// "reads(filesystem)", "writes(filesystem)" or "spawns(process)".
type Effect string

// The effects of the built-in tools.
const (
	CallsShell   Effect = "calls(shell)"
	CallsNetwork Effect = "calls(network)"
	ReadsFiles   Effect = "reads(filesystem)"
	WritesFiles  Effect = "writes(filesystem)"
	Spawns       Effect = "spawns(process)"
)

// Trust levels that a tool may need, and a caller may have.
const (
	TrustNone = 0
	TrustMax  = 3
)

// Tool is one built-in tool: typed in and out, with schemas from the types. It
// is immutable.
type Tool struct {
	Name        string
	Title       string
	Description string
	Effects     []Effect
	Trust       int
	Cacheable   bool
	// ReadOnly: it changes nothing. Destructive: it may destroy. Idempotent:
	// twice is the same as once.
	ReadOnly, Destructive, Idempotent bool
	// Input and Output are JSON Schemas.
	Input, Output json.RawMessage

	required []string
	check    func(raw json.RawMessage) (Prepared, error)
}

// Check decodes and validates an input, without a sandbox. An error is of class
// InvalidArgument and names the field.
func (t *Tool) Check(raw json.RawMessage) (Prepared, error) {
	if len(t.required) > 0 {
		var fields map[string]json.RawMessage
		if err := strictjson.Decode(raw, &fields); err != nil {
			return Prepared{}, aboutInput(err)
		}
		for _, name := range t.required {
			if _, ok := fields[name]; !ok {
				return Prepared{}, invalid(name, "is missing")
			}
		}
	}
	return t.check(raw)
}

// Prepared is a call that was checked and waits to run.
type Prepared struct {
	// Command is what a command policy decides on; nil: no command.
	Command *Command
	// NeedsSandbox: Run gets a Box with a sandbox. Background: what it starts
	// lives on after the call, so the sandbox must.
	NeedsSandbox, Background bool
	// Run carries it out. The output is of the type the schema describes.
	Run func(ctx context.Context, box Box) (any, Outcome, error)
}

// Command is what a tool is about to run, in one of three forms.
type Command struct {
	// Shell is a command line for the sandbox's shell.
	Shell string
	// Line is a command line without a shell: who decides on it splits it into
	// Argv, which has to be set before Run.
	Line string
	// Argv is an argument vector.
	Argv []string
}

// Outcome is what the engine and the audit need to know of how it went.
type Outcome struct {
	// Ending is of a command, "" for a tool that runs none.
	Ending    string
	ExitCode  int
	Signal    int
	Duration  time.Duration
	Usage     v1.Usage
	Stdout    int64
	Stderr    int64
	Truncated bool
	Detail    string
	// TimeoutMS is the time-out that was in force.
	TimeoutMS int64
}

// Caps bound one call, as the profile and the service set them. Zero: none.
type Caps struct {
	Timeout, MaxTimeout time.Duration
	// Clamp makes a longer time-out MaxTimeout; without it that is an error.
	Clamp bool
	// Output bounds what the answer holds of each stream.
	Output Cut
	// MaxFile bounds files read and written, in bytes.
	MaxFile int64
	// Dirs, if not empty, are the only folders that paths may be in, as the
	// sandbox names them; Alias maps a folder of the profile to one of the
	// sandbox ("/home/user/projects" to "/workspace").
	Dirs     []string
	Alias    map[string]string
	ReadOnly bool
	// NoFollow refuses symbolic links in paths instead of following them
	// within the folder.
	NoFollow bool
	// MemoryBytes and CPUs bound what one command may use of the sandbox.
	MemoryBytes int64
	CPUs        float64
	// Web bounds tools of the web.
	Web WebCaps
}

// Builtins are all built-in tools, sorted by name.
func Builtins() []*Tool { return slices.Clone(builtins) }

var builtins = []*Tool{
	browserOpen, fsDelete, fsEdit, fsGlob, fsList, fsRead, fsSearch, fsStat, fsWrite, httpRequest,
	systemBash, systemKill, systemLine, systemOutput, systemRun, systemShells, webFetch, webSearch,
}

// Get finds a built-in tool by its name.
func Get(name string) (*Tool, bool) {
	for _, t := range builtins {
		if t.Name == name {
			return t, true
		}
	}
	return nil, false
}

// errNoOutput is returned beside an outcome that says all there is to say.
var errNoOutput = errors.New("there is no output")

// define completes a tool with what its types say.
func define[In, Out any](t Tool, check func(in *In) (Prepared, error), run func(ctx context.Context, box Box, in *In) (Out, Outcome, error)) *Tool {
	in, err := jsonschema.For[In](nil)
	if err != nil {
		panic(fmt.Sprintf("input of %s: %v", t.Name, err)) // the types are ours
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
		p.Run = func(ctx context.Context, box Box) (any, Outcome, error) {
			out, o, err := run(ctx, box, v)
			if err == errNoOutput {
				return nil, o, nil
			}
			return out, o, err
		}
		return p, nil
	}
	return &t
}

func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a schema of ours
	}
	return b
}

// aboutInput names the input where it is wrong as a whole.
func aboutInput(err error) error {
	if e, ok := errors.AsType[*strictjson.FieldError](err); ok && e.Field == "body" {
		return &strictjson.FieldError{Field: "input", Message: e.Message}
	}
	return err
}

func invalid(field, format string, args ...any) error {
	return &strictjson.FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// forbidden is an error about a path that the profile does not give.
func forbidden(format string, args ...any) error {
	return usererror.Errorf(errdefs.ErrPermissionDenied, "path "+format, args...)
}
