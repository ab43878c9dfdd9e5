package policy

import (
	"errors"
	"strconv"
	"strings"
	"text/template"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// words are what a message template sees.
type words struct {
	Verdict
	Program string
	Text    string // that is forbidden, or stands at the place
	Allowed string // the allow list, sorted and joined by ", "
	Reason  string
	Line    int
	Column  int
}

// Command decides on a shell command line in bash's grammar.
func (p *Policy) Command(command string) Verdict {
	r := run{p: p, src: command}
	if p.text(&r, command) {
		r.top(command)
	}
	return r.verdict()
}

// Argv decides on an argument vector that is run without a shell.
func (p *Policy) Argv(argv []string) Verdict {
	r := run{p: p, src: strings.Join(argv, " ")}
	total := len(argv)
	for _, a := range argv {
		total += len(a)
	}
	switch {
	case len(argv) == 0 || argv[0] == "":
		r.report(finding{action: Deny, class: ClassEmpty, reason: "there is no command"})
	case total > MaxCommand:
		r.src = ""
		r.report(finding{action: Deny, class: ClassLimit, reason: "it is over " + strconv.Itoa(MaxCommand) + " bytes long"})
	case p.text(&r, r.src):
		r.argv(argv)
	}
	return r.verdict()
}

func (r *run) argv(argv []string) {
	fields := make([]field, len(argv))
	at := 0
	for i, a := range argv {
		fields[i] = field{text: literal(a), at: span{at, at + len(a)}}
		at += len(a) + 1
	}
	if r.p.rules.Match != Literal {
		r.guard(func() { r.exec(newScope(), &call{words: fields, at: span{0, len(r.src)}}) })
	}
	r.checkArgv(argv, fields)
}

// text looks at what holds for any text, and says whether to go on.
func (p *Policy) text(r *run, s string) bool {
	switch {
	case len(s) > MaxCommand:
		r.src = ""
		r.report(finding{action: Deny, class: ClassLimit, reason: "it is over " + strconv.Itoa(MaxCommand) + " bytes long"})
		return false
	case !utf8.ValidString(s):
		at := 0
		for at < len(s) {
			c, n := utf8.DecodeRuneInString(s[at:])
			if c == utf8.RuneError && n <= 1 {
				break
			}
			at += n
		}
		r.src = s[:at]
		r.report(finding{action: Deny, class: ClassSyntax, reason: "it is not valid UTF-8", at: span{at, at}})
		return false
	}
	if at := strings.IndexByte(s, 0); at >= 0 {
		r.report(finding{action: Deny, class: ClassSyntax, reason: "it holds a NUL byte", at: span{at, at + 1}})
		return false
	}
	if strings.TrimSpace(s) == "" {
		r.report(finding{action: Deny, class: ClassEmpty, reason: "there is no command"})
		return false
	}
	for i, f := range p.rules.Forbid {
		if at := strings.Index(s, f); at >= 0 {
			r.report(finding{action: Deny, class: ClassForbidden, rule: "forbidden:" + f, reason: "it holds " + strconv.Quote(f), text: f, order: i, at: span{at, at + len(f)}})
			return false
		}
	}
	if p.rules.Match == Literal {
		p.patterns(r, s)
	}
	return true
}

// patterns are match literal.
func (p *Policy) patterns(r *run, s string) {
	matched := false
	for i := range p.list {
		if at := p.list[i].pattern.FindStringIndex(s); at != nil {
			matched = true
			r.rule(&p.list[i], "", span{at[0], at[1]})
		}
	}
	if !matched {
		r.byDefault("", span{0, len(s)})
	}
}

// top parses and walks the command itself.
func (r *run) top(command string) {
	if r.p.rules.Match == Literal {
		return
	}
	file, err := parse(command)
	if err != nil {
		r.syntax(err)
		return
	}
	if len(file.Stmts) == 0 {
		r.report(finding{action: Deny, class: ClassEmpty, reason: "there is no command"})
		return
	}
	r.parsed = len(command)
	r.guard(func() {
		r.stmts(newScope(), file.Stmts, nil)
		r.uncalled()
	})
}

// stopped ends a walk that went past its bounds.
type stopped struct{}

// unreadable is the rule of a command that something went wrong over while it
// was looked at: a fault of ours or of the parser's.
const unreadable = "unreadable"

// guard runs a walk and takes back what bounds end it by. A fault refuses the
// command, and does no more.
func (r *run) guard(walk func()) {
	defer func() {
		e := recover()
		if _, ended := e.(stopped); e != nil && !ended {
			r.report(finding{action: Deny, class: ClassLimit, rule: unreadable, reason: "it cannot be looked at", at: span{0, len(r.src)}})
		}
	}()
	walk()
}

// limit refuses the command and ends the walk.
func (r *run) limit(reason string) {
	r.report(finding{action: Deny, class: ClassLimit, reason: reason, at: r.here})
	panic(stopped{})
}

func (r *run) step(n int) {
	if r.steps += n; r.steps > maxSteps {
		r.limit("it is too much to look at")
	}
}

const forkBomb = ":(){:|:&};:"

func (r *run) syntax(err error) {
	if errors.Is(err, errDeep) || errors.Is(err, errMuch) {
		r.report(finding{action: Deny, class: ClassLimit, reason: "it cannot be looked at: " + err.Error()})
		return
	}
	if strings.Contains(strings.Join(strings.Fields(r.src), ""), forkBomb) {
		// As it is often written, without the blanks that make it run.
		r.construct("fork_bomb", span{0, len(r.src)})
		if r.any {
			return
		}
	}
	f := finding{action: Deny, class: ClassSyntax, reason: err.Error()}
	var pos syntax.Pos
	var parse syntax.ParseError
	var lang syntax.LangError
	switch {
	case errors.As(err, &parse):
		pos = parse.Pos
		f.reason = parse.Text
	case errors.As(err, &lang):
		pos = lang.Pos
		f.reason = lang.Feature + " is not bash's"
	}
	at := min(int(pos.Offset()), len(r.src))
	f.at = span{at, len(r.src)}
	r.report(f)
}

// finding is one thing that a policy has to say of a command.
type finding struct {
	action  Action
	class   string
	rule    string
	order   int // of the rule
	never   bool
	program string
	text    string
	allowed []string
	reason  string
	message string
	at      span
}

func rank(a Action) int {
	switch a {
	case Deny:
		return 2
	case Ask:
		return 1
	}
	return 0
}

// weight orders findings of one strictness: the most telling first.
func (f *finding) weight() int {
	if f.never {
		return 0
	}
	switch f.class {
	case ClassLimit, ClassSyntax, ClassEmpty, ClassForbidden:
		return 1
	case ClassRule:
		return 2
	case ClassDenyList:
		return 3
	case ClassAllowList, ClassPath, ClassArgument:
		return 4
	case ClassUnknown:
		return 5
	}
	return 6
}

// stricter says whether f stands over g.
func (f *finding) stricter(g *finding) bool {
	if a, b := rank(f.action), rank(g.action); a != b {
		return a > b
	}
	if a, b := f.weight(), g.weight(); a != b {
		return a < b
	}
	return f.class == ClassRule && g.class == ClassRule && f.order < g.order
}

// run is one decision.
type run struct {
	p    *Policy
	src  string
	best finding
	any  bool

	steps  int
	parsed int
	nested int
	depth  int
	here   span
	fixed  bool // here is the outer word of nested code
	trace  []string
	files  map[string]string // what the command itself has written, by path
	fds    int
	active []*syntax.FuncDecl
	called map[*syntax.FuncDecl]bool
	decls  []*syntax.FuncDecl
	forks  int
	expand []string // aliases being expanded
	cwd    string
}

func (r *run) report(f finding) {
	if !r.any || f.stricter(&r.best) {
		r.any, r.best = true, f
	}
}

// rule reports that a rule holds.
func (r *run) rule(l *rule, program string, at span) {
	r.report(finding{
		action: l.Action, class: ClassRule, rule: l.ID, order: l.index, never: l.Never, program: program, at: at,
		message: l.Message, reason: "rule " + l.ID,
	})
}

// unknown reports what cannot be known. worst is the strictest that it could
// come to.
func (r *run) unknown(reason, program string, worst Action, at span) {
	a := r.p.rules.Unknown
	if rank(worst) < rank(a) {
		a = worst
	}
	r.report(finding{action: a, class: ClassUnknown, rule: ClassUnknown, program: program, reason: reason, at: at})
}

func (r *run) byDefault(program string, at span) {
	r.report(finding{action: r.p.rules.Default, class: ClassDefault, rule: ClassDefault, program: program, reason: "no rule speaks of it", at: at})
}

// maxShown bounds the text of a place.
const maxShown = 80

func (r *run) verdict() Verdict {
	if !r.any {
		r.report(finding{action: Allow, class: ClassDefault, rule: ClassDefault, at: span{0, len(r.src)}})
	}
	f := &r.best
	v := Verdict{Action: f.action, Rule: f.rule, Class: f.class, Never: f.never, Program: show(f.program)}
	if v.Rule == "" {
		v.Rule = f.class
	}
	if f.action != Allow || f.at.end > f.at.start {
		v.At = r.position(f.at)
	}
	v.Message = r.message(f, v)
	return v
}

func (r *run) position(at span) *Position {
	start := min(max(at.start, 0), len(r.src))
	end := min(max(at.end, start), len(r.src))
	before := r.src[:start]
	line := strings.LastIndexByte(before, '\n')
	return &Position{Offset: start, Line: 1 + strings.Count(before, "\n"), Column: start - line, Text: cut(r.src[start:end])}
}

// cut bounds a text, between runes.
func cut(s string) string {
	if len(s) <= maxShown {
		return s
	}
	s = s[:maxShown]
	for len(s) > 0 && !utf8.ValidString(s[max(0, len(s)-4):]) && !utf8.RuneStart(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return strings.ToValidUTF8(s, "") + "…"
}

// show writes marks as what people know.
func show(s string) string {
	if !known(s) {
		s = strings.NewReplacer(string(anyText), "…", string(anyName), "*", string(anyByte), "?").Replace(s)
	}
	return cut(s)
}

func (r *run) message(f *finding, v Verdict) string {
	allowed := r.p.allowed
	if f.allowed != nil {
		allowed = strings.Join(f.allowed, ", ")
	}
	w := words{Verdict: v, Program: v.Program, Text: show(f.text), Allowed: allowed, Reason: f.reason}
	if v.At != nil {
		w.Line, w.Column = v.At.Line, v.At.Column
		if w.Text == "" {
			w.Text = v.At.Text
		}
	}
	if f.message != "" {
		return f.message
	}
	if t := r.p.messages[f.class]; t != nil && f.action != Allow {
		return fill(t, w)
	}
	return r.say(f, w)
}

func fill(t *template.Template, w words) string {
	var b strings.Builder
	if err := t.Execute(&b, w); err != nil {
		return w.Reason // Compile has tried the template
	}
	return b.String()
}

// say is the message where a profile has none of its own.
func (r *run) say(f *finding, w words) string {
	verb := map[Action]string{Allow: "is allowed", Ask: "needs an approval", Deny: "is refused"}[f.action]
	switch f.class {
	case ClassAllowList:
		return strconv.Quote(w.Program) + " is not allowed. Allowed: " + w.Allowed
	case ClassDenyList:
		return strconv.Quote(w.Program) + " is on the deny list"
	case ClassRule:
		return "the command " + verb + " by the rule " + f.rule
	case ClassSyntax, ClassLimit, ClassEmpty:
		if v := w.At; v != nil && f.class == ClassSyntax {
			return "the command is refused at line " + strconv.Itoa(v.Line) + ", column " + strconv.Itoa(v.Column) + ": " + f.reason
		}
		return "the command is refused: " + f.reason
	case ClassDefault:
		if f.action == Allow {
			return ""
		}
	}
	return "the command " + verb + ": " + f.reason
}
