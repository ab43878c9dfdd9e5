// Package argv decides on an argument vector that is run without a shell: which
// programs are allowed, by which arguments a harmless program writes or runs
// another, and which arguments name a place outside the workspace. The
// orchestrator asks it, and the guest asks it again in the sandbox, right before
// it would run the program; so it imports only the standard library.
//
// Rules are not changed by a check, and may be used by many goroutines at once.
// Check touches nothing; CheckHere also follows symbolic links.
package argv

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Rules are what may run. They are data: a profile holds them, and the host
// sends them to the guest with a command.
type Rules struct {
	// Programs are the only ones that may run, by name, with what is special
	// about their arguments. A name is a word without a slash: another file of
	// that name somewhere is not it.
	Programs map[string]Program `json:"programs"`
	// Root is the folder that path arguments must be in; empty: anywhere.
	Root string `json:"root,omitempty"`
}

// Program is what is special about one program's arguments. The zero value takes
// any flags, and paths for operands.
type Program struct {
	// DenyFlags are flags by which it writes, runs something, or reads
	// elsewhere. Short ones ("-o") are found in clusters and with a value glued
	// on, long ones ("--output") by unambiguous prefix and with "=value".
	DenyFlags []string `json:"deny_flags,omitempty"`
	// ValueFlags take a value, glued on or in the next word, that is no path. A
	// long flag that only takes it glued on ("--color") is none of them, nor is a
	// short one after whose value further flags may follow.
	ValueFlags []string `json:"value_flags,omitempty"`
	// PathFlags take a path.
	PathFlags []string `json:"path_flags,omitempty"`
	// PatternFlags are those of the above that stand for the first operand of
	// "pattern-first" and of a script.
	PatternFlags []string `json:"pattern_flags,omitempty"`
	// SingleDash: flags are words with one dash ("-name"), not clusters. A flag
	// that ends in * stands for all that begin so.
	SingleDash bool `json:"single_dash,omitempty"`
	// FlagsFirst: after its first operand it takes no flags any more. What looks
	// like one is an operand then, and what is denied stays so.
	FlagsFirst bool `json:"flags_first,omitempty"`
	// FilesOnly: paths must not be folders, since it would follow the links that
	// are in them. Only CheckHere can tell.
	FilesOnly bool `json:"files_only,omitempty"`
	// Operands says what operands are: "paths" (unless set), "pattern-first"
	// (a text, then paths), "text", "assignments" (NAME=value), or "none".
	Operands string `json:"operands,omitempty"`
	// MaxOperands bounds their number; 0 does not.
	MaxOperands int `json:"max_operands,omitempty"`
	// DenyOperands are what no operand may begin with ("+" for less).
	DenyOperands []string `json:"deny_operands,omitempty"`
	// Script is the language of the first operand, and of the values of
	// PatternFlags: "sed" or "awk". Commands by which a script writes, runs or
	// reads elsewhere are refused.
	Script string `json:"script,omitempty"`
}

// What operands can be.
const (
	Paths        = "paths"
	PatternFirst = "pattern-first"
	Text         = "text"
	Assignments  = "assignments"
	None         = "none"
)

// Classes of a Refusal; they are the policy's.
const (
	ClassAllowList = "allowlist" // the program is not in Rules.Programs
	ClassArgument  = "argument"  // an argument by which it would do more than read
	ClassPath      = "path"      // an argument outside Root
	ClassEmpty     = "empty"     // there is no program
	ClassLimit     = "limit"     // too many, or too long
)

// Bounds of an argument vector.
const (
	MaxArgs  = 4096
	MaxBytes = 128 << 10
)

// Refusal says why an argument vector may not run. Message holds nothing of the
// host.
type Refusal struct {
	Class   string `json:"class"`
	Program string `json:"program,omitempty"`
	Message string `json:"message"`
	// Index is the argument that it is about; 0 is the program.
	Index int `json:"index"`
}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// Names are the programs, sorted.
func (r Rules) Names() []string {
	names := make([]string, 0, len(r.Programs))
	for n := range r.Programs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Validate says what of the rules cannot be used; the error names the field.
func (r Rules) Validate() error {
	if len(r.Programs) == 0 {
		return fmt.Errorf("programs is empty: nothing could run")
	}
	if r.Root != "" && (!path.IsAbs(r.Root) || path.Clean(r.Root) != r.Root) {
		return fmt.Errorf("root %q is no clean absolute path", r.Root)
	}
	for _, n := range r.Names() {
		if n == "" || strings.ContainsAny(n, "/\x00") {
			return fmt.Errorf("programs has %q: a program is named by a word without a slash", n)
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
		return fmt.Errorf("operands is %q: it can be paths, pattern-first, text, assignments or none", p.Operands)
	}
	switch p.Script {
	case "", "sed", "awk":
	default:
		return fmt.Errorf("script is %q: it can be sed or awk", p.Script)
	}
	if p.MaxOperands < 0 {
		return fmt.Errorf("max_operands is negative")
	}
	for _, l := range []struct {
		name  string
		flags []string
	}{{"deny_flags", p.DenyFlags}, {"value_flags", p.ValueFlags}, {"path_flags", p.PathFlags}, {"pattern_flags", p.PatternFlags}} {
		for i, f := range l.flags {
			if len(f) < 2 || f[0] != '-' || f == "--" {
				return fmt.Errorf("%s[%d] is %q: a flag begins with -", l.name, i, f)
			}
			if !p.SingleDash && len(f) > 2 && f[1] != '-' {
				return fmt.Errorf("%s[%d] is %q: a flag is -x or --word (set single_dash for words with one dash)", l.name, i, f)
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
