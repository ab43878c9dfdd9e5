// Package argv decides whether an argument vector may run without a shell. It checks the program
// name, the arguments that make a harmless program write or run something, and paths outside the
// workspace. The orchestrator applies it first. The guest applies it again in the sandbox, right
// before it runs the program, so the package imports only the standard library.
//
// Checks do not modify Rules, so they are safe for concurrent use. Check does no I/O; CheckHere
// also resolves symbolic links.
package argv

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Rules defines what may run. It is plain data: profiles contain it, and the host sends it to the
// guest with a command.
type Rules struct {
	// Programs are the only ones that may run, by name. A name has no slash, so that a path to
	// another file with that name is not allowed.
	Programs map[string]Program `json:"programs"`
	// Root is the directory that path arguments must be in; empty means anywhere.
	Root string `json:"root,omitempty"`
}

// Program describes the arguments of one program. The zero value allows any flags, and paths as
// operands.
type Program struct {
	// DenyFlags are flags that make the program write, run another program or read elsewhere. Short
	// flags ("-o") also match in clusters and with an attached value, long flags ("--output") as
	// unambiguous prefixes and with "=value".
	DenyFlags []string `json:"deny_flags,omitempty"`
	// ValueFlags take a value that is not a path, attached or in the next word. Omit long flags
	// whose value is always attached ("--color"), and short flags with a value that further flags
	// can follow.
	ValueFlags []string `json:"value_flags,omitempty"`
	// PathFlags take a path as value.
	PathFlags []string `json:"path_flags,omitempty"`
	// PatternFlags are flags of the lists above that replace the first operand of "pattern-first"
	// or of a script.
	PatternFlags []string `json:"pattern_flags,omitempty"`
	// SingleDash: flags are words with one dash ("-name") and never clusters. A flag that ends in *
	// matches every word with that prefix.
	SingleDash bool `json:"single_dash,omitempty"`
	// FlagsFirst: words after the first operand are operands even if they look like flags. Denied
	// flags are refused there too.
	FlagsFirst bool `json:"flags_first,omitempty"`
	// FilesOnly: paths must not be directories, because the program would follow links in them.
	// Only CheckHere enforces it.
	FilesOnly bool `json:"files_only,omitempty"`
	// Operands is the kind of the operands: "paths" (default), "pattern-first" (a text, then
	// paths), "text", "assignments" (NAME=value) or "none".
	Operands string `json:"operands,omitempty"`
	// MaxOperands is the maximum number of operands; 0 means no limit.
	MaxOperands int `json:"max_operands,omitempty"`
	// DenyOperands are prefixes that operands must not have ("+" for less).
	DenyOperands []string `json:"deny_operands,omitempty"`
	// Script is the language of the first operand and of the values of PatternFlags: "sed" or
	// "awk". Scripts that write, run programs or read other files are refused.
	Script string `json:"script,omitempty"`
}

// Kinds of operands for Program.Operands.
const (
	Paths        = "paths"
	PatternFirst = "pattern-first"
	Text         = "text"
	Assignments  = "assignments"
	None         = "none"
)

// Classes of a Refusal, with the values of package policy.
const (
	ClassAllowList = "allowlist" // the program is not in Rules.Programs
	ClassArgument  = "argument"  // an argument would let the program do more than read
	ClassPath      = "path"      // an argument is outside Root
	ClassEmpty     = "empty"     // the vector is empty
	ClassLimit     = "limit"     // too many arguments, or too long
)

// Bounds of an argument vector, in arguments and bytes.
const (
	MaxArgs  = 4096
	MaxBytes = 128 << 10
)

// Refusal explains why an argument vector may not run. Message contains no information about the
// host.
type Refusal struct {
	Class   string `json:"class"`
	Program string `json:"program,omitempty"`
	Message string `json:"message"`
	// Index is the index of the refused argument; 0 is the program.
	Index int `json:"index"`
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

// Names returns the names of the programs, sorted.
func (r Rules) Names() []string {
	names := make([]string, 0, len(r.Programs))
	for n := range r.Programs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Validate returns an error that names the first invalid field.
func (r Rules) Validate() error {
	if len(r.Programs) == 0 {
		return fmt.Errorf("programs is empty: must have at least one entry")
	}
	if r.Root != "" && (!path.IsAbs(r.Root) || path.Clean(r.Root) != r.Root) {
		return fmt.Errorf("root %q must be a clean absolute path", r.Root)
	}
	for _, n := range r.Names() {
		if n == "" || strings.ContainsAny(n, "/\x00") {
			return fmt.Errorf("programs has %q: names must not be empty or contain a slash", n)
		}
		p := r.Programs[n]
		if err := p.validate(); err != nil {
			return fmt.Errorf("programs.%s.%w", n, err)
		}
	}
	return nil
}

func (p *Program) validate() error {
	switch p.Operands {
	case "", Paths, PatternFirst, Text, Assignments, None:
	default:
		return fmt.Errorf("operands is %q: must be paths, pattern-first, text, assignments or none", p.Operands)
	}
	switch p.Script {
	case "", "sed", "awk":
	default:
		return fmt.Errorf("script is %q: must be sed or awk", p.Script)
	}
	if p.MaxOperands < 0 {
		return fmt.Errorf("max_operands is negative")
	}
	for _, l := range []struct {
		name  string
		flags []string
	}{{"deny_flags", p.DenyFlags}, {"value_flags", p.ValueFlags}, {"path_flags", p.PathFlags},
		{"pattern_flags", p.PatternFlags}} {
		for i, f := range l.flags {
			if len(f) < 2 || f[0] != '-' || f == "--" {
				return fmt.Errorf("%s[%d] is %q: flags start with -", l.name, i, f)
			}
			if !p.SingleDash && len(f) > 2 && f[1] != '-' {
				return fmt.Errorf("%s[%d] is %q: use -x or --word, or set single_dash", l.name, i, f)
			}
		}
	}
	for i, o := range p.DenyOperands {
		if o == "" {
			return fmt.Errorf("deny_operands[%d] is empty", i)
		}
	}
	return nil
}
