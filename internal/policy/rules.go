package policy

import "github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"

// Action is the outcome of a verdict.
type Action string

// Actions, from the mildest to the strictest.
const (
	Allow Action = "allow"
	Ask   Action = "ask"
	Deny  Action = "deny"
)

// Match selects how rules are compared with a command.
type Match string

const (
	// Parsed judges the programs that would run, found by parsing the shell code. It is the
	// default.
	Parsed Match = "parsed"
	// Literal applies the Pattern and Substring of each rule to the text of the command. Rules have
	// no other conditions then. Profiles that imitate a system with text rules use it.
	Literal Match = "literal"
)

// Rules is the command policy of a profile, as in its file. Compile makes a Policy of it.
type Rules struct {
	Match Match `json:"match,omitempty"`
	// Default is the action for commands that no rule matches. The zero value means allow.
	Default Action `json:"default,omitempty"`
	// Unknown is the action for what is known only at run time, such as a program named by a
	// variable or code that a command prints. The zero value means ask.
	Unknown Action `json:"unknown,omitempty"`
	// Allow lists the only programs that may run, if not empty; Deny lists programs that never may.
	// Both contain names or globs ("mkfs.*"). They are compared with the base name of the program
	// that would run, however the command spells it.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// Forbid lists texts that a command must not contain anywhere, quoted or not, such as the
	// metacharacters of a shell.
	Forbid []string `json:"forbid,omitempty"`
	// Rules are all tried. The strictest match decides; among equals, the first one.
	Rules []Rule `json:"rules,omitempty"`
	// Argv, if set, is a second decision on the argument vector. It is made in the sandbox by the
	// process that is about to run the program without a shell.
	Argv *argv.Rules `json:"argv,omitempty"`
	// Messages replace the message of a verdict by its class. A message is a text/template; its
	// data is the Verdict and the fields Program, Text, Allowed, Reason, Line and Column.
	Messages map[string]string `json:"messages,omitempty"`
}

// Rule matches commands by what they would do. All conditions that are set must hold for the same
// command.
type Rule struct {
	ID     string `json:"id"`
	Action Action `json:"action"`
	// Never marks a deny as a safety violation. Verdicts report it as HardDeny, and profiles can
	// give it a separate error type.
	Never   bool   `json:"never,omitempty"`
	Message string `json:"message,omitempty"`

	// Programs are names or globs. Subcommand lists the first operands ("push").
	Programs   []string `json:"programs,omitempty"`
	Subcommand []string `json:"subcommand,omitempty"`
	// Flags lists groups of spellings of one flag (["-r", "-R", "--recursive"]). The command must
	// have a flag of every group. Short flags also match in clusters; long flags also match as
	// unambiguous prefixes and with "=value".
	Flags [][]string `json:"flags,omitempty"`
	// ValueFlags lists flags whose value is the next word, so that it does not count as an operand.
	ValueFlags []string `json:"value_flags,omitempty"`
	// Operands are globs; one must match an operand. Paths are cleaned first ("//", "/./" and
	// "/../" become "/").
	Operands []string `json:"operands,omitempty"`
	// Pipe matches a pipeline in which a program of From writes to a program of To, directly or
	// through others.
	Pipe *Pipe `json:"pipe,omitempty"`
	// Writes lists globs or directories ("/etc/"); one must match a file that the command writes.
	Writes []string `json:"writes,omitempty"`
	// Construct is an element of the shell language: "command_substitution",
	// "process_substitution", "fork_bomb", "background" or "function".
	Construct string `json:"construct,omitempty"`

	// Pattern is a regular expression (RE2) and Substring a text. They require match literal.
	// IgnoreCase applies to both.
	Pattern    string `json:"pattern,omitempty"`
	Substring  string `json:"substring,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
}

// Pipe describes a pipeline from one program to another.
type Pipe struct {
	From []string `json:"from"`
	To   []string `json:"to"`
}

// Classes of a verdict.
const (
	ClassRule      = "rule"      // a rule of Rules.Rules
	ClassAllowList = "allowlist" // the program is not in Rules.Allow
	ClassDenyList  = "denylist"  // the program is in Rules.Deny
	ClassForbidden = "forbidden" // the command contains a text of Rules.Forbid
	ClassUnknown   = "unknown"   // known only at run time
	ClassSyntax    = "syntax"    // the command does not parse
	ClassEmpty     = "empty"     // the command is empty
	ClassLimit     = "limit"     // the command is too long, too deep or too complex
	ClassPath      = "path"      // an argument is outside the workspace
	ClassArgument  = "argument"  // an argument makes a program write or run another program
	ClassDefault   = "default"   // no rule matches
)

// Verdict is the decision of a policy on one command.
type Verdict struct {
	Action Action `json:"verdict"`
	// Rule names what decided: the ID of a rule, or a class and its detail ("denylist:sudo").
	Rule  string `json:"rule,omitempty"`
	Class string `json:"class,omitempty"`
	// HardDeny reports that the deny is a safety violation (Rule.Never).
	HardDeny bool `json:"hard_deny,omitempty"`
	// Message explains the verdict to people and models. It contains no information about the host.
	Message string `json:"message,omitempty"`
	// Program is the program that the verdict is about, by the name it would run under.
	Program string `json:"program,omitempty"`
	// At is the position in the command.
	At *Position `json:"at,omitempty"`
}

// Position is a place in a command. Offset counts bytes from 0; Line and Column count from 1,
// Column in bytes. Text is the text at that place, truncated.
type Position struct {
	Offset int    `json:"offset"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text,omitempty"`
}
