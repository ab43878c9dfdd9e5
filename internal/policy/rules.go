package policy

import "github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"

// Action is what a verdict says, from the mildest to the strictest.
type Action string

// The actions.
const (
	Allow Action = "allow"
	Ask   Action = "ask"
	Deny  Action = "deny"
)

// Match is how rules meet a command.
type Match string

const (
	// Parsed decides on the programs that would run, seen through the shell's
	// grammar. It is the default.
	Parsed Match = "parsed"
	// Literal applies the Pattern and Substring of each rule to the command's
	// text, as the systems that the profiles come from do. Nothing else counts.
	Literal Match = "literal"
)

// Rules are the command policy of a profile as it stands in its file. Compile
// makes a Policy of them.
type Rules struct {
	Match Match `json:"match,omitempty"`
	// Default is for commands that no rule speaks of: allow unless set.
	Default Action `json:"default,omitempty"`
	// Unknown is for what cannot be known before the command runs, such as a
	// program named by a variable or code that is made by a command: ask
	// unless set.
	Unknown Action `json:"unknown,omitempty"`
	// Allow, if not empty, are the only programs that may run; Deny are
	// programs that never do. Both hold names or globs ("mkfs.*"), and the name
	// that counts is the program that would run, however it is written.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// Forbid are texts that may not stand anywhere in a command, quoted or not
	// (the metacharacters of a source that has no shell).
	Forbid []string `json:"forbid,omitempty"`
	// Rules are tried all; the strictest that matches decides, and of equals
	// the first.
	Rules []Rule `json:"rules,omitempty"`
	// Argv, if set, is the second decision: on an argument vector, without a
	// shell, in the sandbox, by the process that would run it.
	Argv *argv.Rules `json:"argv,omitempty"`
	// Messages replace the words of a refusal by class (Verdict.Class). A
	// message is a text/template over the Verdict and the Rules.
	Messages map[string]string `json:"messages,omitempty"`
}

// Rule speaks of commands by what they would do. All parts that are set must
// hold for one and the same command.
type Rule struct {
	ID     string `json:"id"`
	Action Action `json:"action"`
	// Never marks a deny that is a safety violation and not a matter of taste.
	Never   bool   `json:"never,omitempty"`
	Message string `json:"message,omitempty"`

	// Programs are names or globs. Subcommand are the first operands ("push").
	Programs   []string `json:"programs,omitempty"`
	Subcommand []string `json:"subcommand,omitempty"`
	// Flags are groups of spellings: every group needs one of its own
	// (["-r", "-R", "--recursive"]). Short ones are found in clusters, long
	// ones by unambiguous prefix and with "=value".
	Flags [][]string `json:"flags,omitempty"`
	// ValueFlags take the next word as their value: it is no operand.
	ValueFlags []string `json:"value_flags,omitempty"`
	// Operands are globs, one of which must match an operand (paths are made
	// clean first: "//", "/./" and "/../" are "/").
	Operands []string `json:"operands,omitempty"`
	// Pipe holds for a pipeline in which one of From writes, perhaps through
	// others, into one of To.
	Pipe *Pipe `json:"pipe,omitempty"`
	// Writes are globs or folders ("/etc/") that a redirection writes to.
	Writes []string `json:"writes,omitempty"`
	// Construct is a part of the shell's language: "command_substitution",
	// "process_substitution", "fork_bomb", "background", "function".
	Construct string `json:"construct,omitempty"`

	// Pattern is a regular expression (RE2), Substring a text; they are used
	// with match literal only, and IgnoreCase is for both.
	Pattern    string `json:"pattern,omitempty"`
	Substring  string `json:"substring,omitempty"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
}

// Pipe is a pipeline from one program into another.
type Pipe struct {
	From []string `json:"from"`
	To   []string `json:"to"`
}

// Classes of a verdict.
const (
	ClassRule      = "rule"      // a rule of Rules.Rules
	ClassAllowList = "allowlist" // a program that is not in Allow
	ClassDenyList  = "denylist"  // a program that is in Deny
	ClassForbidden = "forbidden" // a text in Forbid
	ClassUnknown   = "unknown"   // it cannot be known before it runs
	ClassSyntax    = "syntax"    // it does not parse
	ClassEmpty     = "empty"     // there is no command
	ClassLimit     = "limit"     // too long, too deep, too much
	ClassPath      = "path"      // an argument outside the workspace
	ClassArgument  = "argument"  // an argument by which a program writes or runs another
	ClassDefault   = "default"   // nothing speaks of it
)

// Verdict is what a policy says of one command.
type Verdict struct {
	Action Action `json:"verdict"`
	// Rule names what decided: the ID of a rule, or a class with its word
	// ("denylist:sudo").
	Rule  string `json:"rule,omitempty"`
	Class string `json:"class,omitempty"`
	Never bool   `json:"never,omitempty"`
	// Message says it to people and models. It holds nothing of the host.
	Message string `json:"message,omitempty"`
	// Program is the program that the verdict is about, as it would run.
	Program string `json:"program,omitempty"`
	// At is the place in the command.
	At *Position `json:"at,omitempty"`
}

// Position is a place in a command: the first byte at Offset (from 0), also as
// Line and Column (from 1, in bytes), with the text that stands there, bounded.
type Position struct {
	Offset int    `json:"offset"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text,omitempty"`
}
