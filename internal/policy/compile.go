package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/containerd/errdefs"
)

// RuleError describes the part of Rules that is invalid. Its errdefs class is InvalidArgument.
type RuleError struct {
	Path   string // such as "rules[3].operands[0]"
	Reason string
}

// Error implements error. The text starts with the path.
func (e *RuleError) Error() string { return e.Path + " " + e.Reason }

// Unwrap returns the errdefs class.
func (e *RuleError) Unwrap() error { return errdefs.ErrInvalidArgument }

// Bounds of Rules.
const (
	maxRules   = 1024
	maxEntries = 1024 // entries of one list
	maxPattern = 1024 // bytes of one entry
)

// Policy is a compiled set of Rules. It is immutable and safe for concurrent use.
type Policy struct {
	rules       Rules
	allow       programs
	deny        programs
	allowed     string // the entries of Rules.Allow, sorted
	list        []rule
	byName      map[string][]int // indexes of rules by program name
	byGlob      []int            // rules whose programs are globs, or that have none
	pipes       []int            // rules with a Pipe
	byConstruct map[string][]int // rules by construct
	messages    map[string]*template.Template
}

// programs is a set of names and globs.
type programs struct {
	names map[string]bool
	globs globs
}

func (p *programs) empty() bool { return len(p.names) == 0 && len(p.globs) == 0 }

func (p *programs) match(name string) answer {
	if p.names[name] {
		return yes
	}
	return p.globs.match(name)
}

// rule is a compiled Rule.
type rule struct {
	*Rule
	index      int
	programs   programs
	subcommand globs
	flags      [][]spelling
	valueFlags map[string]bool
	operands   globs
	writes     globs
	from, to   programs
	pattern    *regexp.Regexp
}

// spelling is one way to write a flag: short, long, as an operand ("+main"), or with a value ("-c
// core.hooksPath=*").
type spelling struct {
	text    string
	operand bool
	value   *glob
	glob    glob
}

// Compile validates rules and returns a Policy. The error is a *RuleError.
func Compile(r Rules) (*Policy, error) {
	r.Rules = slices.Clone(r.Rules) // the caller may modify its slice later
	c := compiler{p: &Policy{rules: r, byName: map[string][]int{}, byConstruct: map[string][]int{},
		messages: map[string]*template.Template{}}}
	c.compileSettings(&c.p.rules)
	if len(r.Rules) > maxRules {
		c.fail("rules", "has %d entries: at most %d", len(r.Rules), maxRules)
	}
	ids := map[string]int{}
	for i := range r.Rules {
		if c.err != nil {
			return nil, c.err
		}
		path := fmt.Sprintf("rules[%d]", i)
		if first, twice := ids[r.Rules[i].ID]; twice {
			c.fail(path+".id", "is %q, which rules[%d] uses too: ids must be unique", r.Rules[i].ID, first)
		}
		ids[r.Rules[i].ID] = i
		c.compileRule(path, i, r.Rules[i])
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.p, nil
}

// compiler builds a Policy and keeps the first error.
type compiler struct {
	p   *Policy
	err error
}

func (c *compiler) fail(path, format string, args ...any) {
	if c.err == nil {
		c.err = &RuleError{path, fmt.Sprintf(format, args...)}
	}
}

func (c *compiler) compileSettings(r *Rules) {
	switch r.Match {
	case "":
		r.Match = Parsed
	case Parsed, Literal:
	default:
		c.fail("match", "is %q: must be parsed or literal", r.Match)
	}
	r.Default = c.action("default", r.Default, Allow)
	r.Unknown = c.action("unknown", r.Unknown, Ask)
	c.p.allow = c.compilePrograms("allow", r.Allow)
	c.p.deny = c.compilePrograms("deny", r.Deny)
	sorted := slices.Clone(r.Allow)
	slices.Sort(sorted)
	c.p.allowed = strings.Join(slices.Compact(sorted), ", ")
	c.checkList("forbid", r.Forbid)
	if r.Match == Literal && (len(r.Allow) > 0 || len(r.Deny) > 0) {
		c.fail("match", "is literal: remove allow and deny, or use match parsed")
	}
	for _, class := range sortedKeys(r.Messages) {
		t, err := template.New(class).Option("missingkey=error").Parse(r.Messages[class])
		if !slices.Contains(classes, class) {
			c.fail("messages."+class, "is not a class: must be one of %s", strings.Join(classes, ", "))
		} else if err != nil {
			c.fail("messages."+class, "is not a valid template: %v", err)
		} else if err := t.Execute(new(strings.Builder), messageData{}); err != nil {
			c.fail("messages."+class, "cannot be executed: %v", err)
		}
		c.p.messages[class] = t
	}
	if r.Argv != nil {
		if err := r.Argv.Validate(); err != nil {
			c.fail("argv", "is invalid: %v", err)
		}
	}
}

var classes = []string{
	ClassAllowList, ClassArgument, ClassDefault, ClassDenyList, ClassEmpty, ClassForbidden, ClassLimit, ClassPath,
	ClassRule, ClassSyntax, ClassUnknown,
}

func (c *compiler) action(path string, a, unset Action) Action {
	switch a {
	case "":
		return unset
	case Allow, Ask, Deny:
		return a
	}
	c.fail(path, "is %q: must be allow, ask or deny", a)
	return unset
}

func (c *compiler) checkList(path string, list []string) {
	if len(list) > maxEntries {
		c.fail(path, "has %d entries: at most %d", len(list), maxEntries)
	}
	for i, s := range list {
		c.checkEntry(fmt.Sprintf("%s[%d]", path, i), s)
	}
}

func (c *compiler) checkEntry(path, s string) {
	switch {
	case s == "":
		c.fail(path, "is empty")
	case len(s) > maxPattern:
		c.fail(path, "is %d bytes long: at most %d", len(s), maxPattern)
	}
}

func (c *compiler) compileGlobs(path string, list []string) globs {
	c.checkList(path, list)
	out := make(globs, 0, len(list))
	for i, s := range list {
		g, err := newGlob(s)
		if err != nil {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "is an invalid glob: %q %v", s, err)
		}
		out = append(out, g)
	}
	return out
}

func (c *compiler) compilePrograms(path string, list []string) programs {
	p := programs{names: map[string]bool{}}
	for i, g := range c.compileGlobs(path, list) {
		if strings.Contains(g.text, "/") {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "is %q: use the program name without a directory", list[i])
		}
		if g.plain {
			p.names[g.text] = true
		} else {
			p.globs = append(p.globs, g)
		}
	}
	return p
}

func (c *compiler) compileRule(path string, i int, r Rule) {
	n := rule{Rule: &c.p.rules.Rules[i], index: i}
	if r.ID == "" {
		c.fail(path+".id", "is empty: verdicts refer to rules by id")
	}
	if r.Action == "" {
		c.fail(path+".action", "is empty: must be allow, ask or deny")
	}
	c.action(path+".action", r.Action, Allow)
	if r.Never && r.Action != Deny {
		c.fail(path+".never", "requires action deny")
	}
	if c.p.rules.Match == Literal {
		c.compileLiteral(path, &n)
	} else {
		c.compileParsed(path, &n)
	}
	c.p.list = append(c.p.list, n)
}

func (c *compiler) compileLiteral(path string, r *rule) {
	for _, f := range parsedFields(r.Rule) {
		c.fail(path+"."+f, "requires match parsed: use pattern or substring instead")
	}
	switch {
	case r.Pattern == "" && r.Substring == "":
		c.fail(path, "has neither pattern nor substring: it would never match")
	case r.Pattern != "" && r.Substring != "":
		c.fail(path+".substring", "cannot be combined with pattern")
	}
	expr := r.Pattern
	if r.Substring != "" {
		expr = regexp.QuoteMeta(r.Substring)
	}
	c.checkEntry(path, expr)
	if r.IgnoreCase {
		expr = "(?i)" + expr
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		c.fail(path+".pattern", "is an invalid regular expression (RE2): %v", err)
	}
	r.pattern = re
}

// parsedFields returns the names of the conditions that require Match Parsed.
func parsedFields(r *Rule) []string {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"programs", len(r.Programs) > 0},
		{"subcommand", len(r.Subcommand) > 0},
		{"flags", len(r.Flags) > 0},
		{"value_flags", len(r.ValueFlags) > 0},
		{"operands", len(r.Operands) > 0},
		{"pipe", r.Pipe != nil},
		{"writes", len(r.Writes) > 0},
		{"construct", r.Construct != ""},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	return set
}

// constructs lists the values of Rule.Construct.
var constructs = []string{"background", "command_substitution", "fork_bomb", "function", "process_substitution"}

func (c *compiler) compileParsed(path string, r *rule) {
	switch {
	case r.Pattern != "":
		c.fail(path+".pattern", "requires match literal: use programs, flags and operands")
	case r.Substring != "":
		c.fail(path+".substring", "requires match literal: use programs, flags and operands")
	case r.IgnoreCase:
		c.fail(path+".ignore_case", "requires match literal")
	}
	fields := parsedFields(r.Rule)
	alone := r.Pipe != nil || r.Construct != ""
	switch {
	case len(fields) == 0:
		c.fail(path, "has no condition: it would match everything (use default)")
	case alone && len(fields) > 1:
		c.fail(path+"."+fields[len(fields)-1], "must be the only condition of a rule")
	case r.Construct != "":
		if !slices.Contains(constructs, r.Construct) {
			c.fail(path+".construct", "is %q: must be one of %s", r.Construct, strings.Join(constructs, ", "))
		}
		c.p.byConstruct[r.Construct] = append(c.p.byConstruct[r.Construct], r.index)
		return
	case r.Pipe != nil:
		if len(r.Pipe.From) == 0 || len(r.Pipe.To) == 0 {
			c.fail(path+".pipe", "needs programs in from and in to")
		}
		r.from = c.compilePrograms(path+".pipe.from", r.Pipe.From)
		r.to = c.compilePrograms(path+".pipe.to", r.Pipe.To)
		c.p.pipes = append(c.p.pipes, r.index)
		return
	case len(fields) == 1 && len(r.ValueFlags) > 0:
		c.fail(path+".value_flags", "is not a condition: add flags or operands")
	case len(r.Programs) == 0 && (len(r.Subcommand) > 0 || len(r.Flags) > 0 || len(r.Operands) > 0):
		c.fail(path+".programs", "is empty: subcommand, flags and operands require programs")
	}
	r.programs = c.compilePrograms(path+".programs", r.Programs)
	r.subcommand = c.compileGlobs(path+".subcommand", r.Subcommand)
	r.operands = c.compileGlobs(path+".operands", r.Operands)
	c.compileWrites(path, r)
	c.compileFlags(path, r)
	if len(r.programs.globs) > 0 || r.programs.empty() {
		c.p.byGlob = append(c.p.byGlob, r.index)
		return
	}
	for name := range r.programs.names {
		c.p.byName[name] = append(c.p.byName[name], r.index)
	}
}

// compileWrites compiles Rule.Writes; "/etc/" stands for everything below it.
func (c *compiler) compileWrites(path string, r *rule) {
	list := slices.Clone(r.Writes)
	for i, s := range list {
		if strings.HasSuffix(s, "/") {
			list[i] = s + "**"
		}
	}
	r.writes = c.compileGlobs(path+".writes", list)
}

func (c *compiler) compileFlags(path string, r *rule) {
	r.valueFlags = map[string]bool{}
	for i, f := range r.ValueFlags {
		if at := fmt.Sprintf("%s.value_flags[%d]", path, i); len(f) < 2 || f[0] != '-' {
			c.fail(at, "is %q: flags start with -", f)
		}
		r.valueFlags[f] = true
	}
	if len(r.Flags) > maxEntries {
		c.fail(path+".flags", "has %d groups: at most %d", len(r.Flags), maxEntries)
	}
	for i, group := range r.Flags {
		at := fmt.Sprintf("%s.flags[%d]", path, i)
		c.checkList(at, group)
		if len(group) == 0 {
			c.fail(at, "is empty: a group lists the spellings of one flag")
		}
		var out []spelling
		for j, s := range group {
			out = append(out, c.compileSpelling(fmt.Sprintf("%s[%d]", at, j), s, r))
		}
		r.flags = append(r.flags, out)
	}
}

func (c *compiler) compileSpelling(path, s string, r *rule) spelling {
	if !strings.HasPrefix(s, "-") {
		g, err := newGlob(s)
		if err != nil {
			c.fail(path, "is an invalid glob: %q %v", s, err)
		}
		return spelling{text: s, operand: true, glob: g}
	}
	flag, value, has := strings.Cut(s, " ")
	if len(flag) < 2 || flag == "--" {
		c.fail(path, "is %q: not a flag", s)
	}
	if !has {
		return spelling{text: flag}
	}
	g, err := newGlob(value)
	if err != nil {
		c.fail(path, "is an invalid glob: %q %v", value, err)
	}
	if !r.valueFlags[flag] {
		c.fail(path, "gives %s a value: add it to value_flags", flag)
	}
	return spelling{text: flag, value: &g}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
