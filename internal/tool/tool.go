package tool

import (
	"context"
	"encoding/json"
	"time"

	v1 "orchestrator/client/v1"
)

// Effect is what a tool does to the world, as "calls(shell)", "reads(filesystem)",
// "writes(filesystem)" or "spawns(process)".
type Effect string

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

	// check decodes and validates an input, without a sandbox.
	check func(raw json.RawMessage) (Prepared, error)
}

// Prepared is a call that was checked and waits to run.
type Prepared struct {
	// Command is what a command policy decides on: Shell is a command line for
	// the sandbox's shell, Argv an argument vector. Both empty: no command.
	Shell string
	Argv  []string
	// Reads and Writes are paths that it names.
	Reads, Writes []string
	// NeedsSandbox: Run gets a Box with a sandbox. Background: what it starts
	// lives on after the call, so the sandbox must.
	NeedsSandbox, Background bool
	// Run carries it out. The output is of the type the schema describes.
	Run func(ctx context.Context, box Box) (any, Outcome, error)
}

// Outcome is what the engine and the audit need to know of how it went.
type Outcome struct {
	// Ending is of a command, "" for a tool that runs none.
	Ending   string
	ExitCode int
	Duration time.Duration
	Usage    v1.Usage
	Stdout   int64
	Stderr   int64
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
}

// Cut says how much of a stream is kept and which part.
type Cut struct {
	// Limit is in Unit: "bytes" or "characters". Zero takes the service's.
	Limit int64  `json:"limit,omitempty"`
	Unit  string `json:"unit,omitempty"`
	// Keep is "head", "tail" or "both".
	Keep string `json:"keep,omitempty"`
	// Marker stands where the rest was: after the head, before the tail, or
	// between. {omitted}, {total} and {unit} in it are replaced.
	Marker string `json:"marker,omitempty"`
}
