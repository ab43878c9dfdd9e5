package policy

import (
	"errors"
	"strconv"
	"strings"
	"text/template"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// messageData is the data of a message template.
type messageData struct {
	Verdict
	Never   bool // Verdict.HardDeny, under the name that templates use
	Program string
	Text    string // the forbidden text, or the text at the position
	Allowed string // the allow list, sorted and joined by ", "
	Reason  string
	Line    int
	Column  int
}

// Command returns the verdict on a shell command line in bash grammar.
func (p *Policy) Command(command string) Verdict {
	r := evaluation{p: p, src: command}
	if p.checkText(&r, command) {
		r.walkCommand(command)
	}
	return r.verdict()
}

// Argv returns the verdict on an argument vector that runs without a shell.
func (p *Policy) Argv(argv []string) Verdict {
	r := evaluation{p: p, src: strings.Join(argv, " ")}
	total := len(argv)
	for _, a := range argv {
		total += len(a)
	}
	switch {
	case len(argv) == 0 || argv[0] == "":
		r.report(finding{action: Deny, class: ClassEmpty, reason: "the command is empty"})
	case total > MaxCommand:
		r.src = ""
		r.report(finding{action: Deny, class: ClassLimit, reason: "it is longer than " + strconv.Itoa(MaxCommand) +
			" bytes"})
	case p.checkText(&r, r.src):
		r.walkArgv(argv)
	}
	return r.verdict()
}

func (r *evaluation) walkArgv(argv []string) {
	fields := make([]field, len(argv))
	at := 0
	for i, a := range argv {
		fields[i] = field{text: literal(a), at: span{at, at + len(a)}}
		at += len(a) + 1
	}
	if r.p.rules.Match != Literal {
		r.guarded(func() { r.exec(newScope(), &call{words: fields, at: span{0, len(r.src)}}) })
	}
	r.checkArgv(argv, fields)
}

// checkText applies the checks that hold for any text: size, encoding, Rules.Forbid and, with Match
// Literal, the patterns. It reports whether parsing should go on.
func (p *Policy) checkText(r *evaluation, s string) bool {
	switch {
	case len(s) > MaxCommand:
		r.src = ""
		r.report(finding{action: Deny, class: ClassLimit, reason: "it is longer than " + strconv.Itoa(MaxCommand) +
			" bytes"})
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
		r.report(finding{action: Deny, class: ClassSyntax, reason: "it contains a NUL byte", at: span{at, at + 1}})
		return false
	}
	if strings.TrimSpace(s) == "" {
		r.report(finding{action: Deny, class: ClassEmpty, reason: "the command is empty"})
		return false
	}
	for i, f := range p.rules.Forbid {
		if at := strings.Index(s, f); at >= 0 {
			r.report(finding{action: Deny, class: ClassForbidden, rule: "forbidden:" + f,
				reason: "it contains " + strconv.Quote(f), text: f, index: i, at: span{at, at + len(f)}})
			return false
		}
	}
	if p.rules.Match == Literal {
		p.matchPatterns(r, s)
	}
	return true
}

// matchPatterns applies the rules of Match Literal to the text.
func (p *Policy) matchPatterns(r *evaluation, s string) {
	matched := false
	for i := range p.list {
		if at := p.list[i].pattern.FindStringIndex(s); at != nil {
			matched = true
			r.reportRule(&p.list[i], "", span{at[0], at[1]})
		}
	}
	if !matched {
		r.reportDefault("", span{0, len(s)})
	}
}

// walkCommand parses and walks the outer command.
func (r *evaluation) walkCommand(command string) {
	if r.p.rules.Match == Literal {
		return
	}
	file, err := parse(command)
	if err != nil {
		r.reportSyntaxError(err)
		return
	}
	if len(file.Stmts) == 0 {
		r.report(finding{action: Deny, class: ClassEmpty, reason: "the command is empty"})
		return
	}
	r.parsed = len(command)
	r.guarded(func() {
		r.stmts(newScope(), file.Stmts, nil)
		r.walkUncalled()
	})
}

// limitExceeded is the panic value that ends a walk over its bounds.
type limitExceeded struct{}

// ruleUnreadable is the rule of a verdict after a panic in this package or in the parser.
const ruleUnreadable = "unreadable"

// guarded runs walk and recovers its panics. A panic other than limitExceeded denies the command.
func (r *evaluation) guarded(walk func()) {
	defer func() {
		e := recover()
		if _, ended := e.(limitExceeded); e != nil && !ended {
			r.report(finding{action: Deny, class: ClassLimit, rule: ruleUnreadable, reason: "it could not be evaluated",
				at: span{0, len(r.src)}})
		}
	}()
	walk()
}

// limit denies the command and ends the walk.
func (r *evaluation) limit(reason string) {
	r.report(finding{action: Deny, class: ClassLimit, reason: reason, at: r.current})
	panic(limitExceeded{})
}

// step adds n to the cost of the decision and ends the walk over maxSteps.
func (r *evaluation) step(n int) {
	if r.steps += n; r.steps > maxSteps {
		r.limit("it is too complex to evaluate")
	}
}

const forkBomb = ":(){:|:&};:"

func (r *evaluation) reportSyntaxError(err error) {
	if errors.Is(err, errTooDeep) || errors.Is(err, errTooLarge) {
		r.report(finding{action: Deny, class: ClassLimit, reason: "it is too complex to evaluate: " + err.Error()})
		return
	}
	if strings.Contains(strings.Join(strings.Fields(r.src), ""), forkBomb) {
		// The usual spelling lacks the blanks it needs to run, so it does not parse.
		r.reportConstruct("fork_bomb", span{0, len(r.src)})
		if r.found {
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
		f.reason = lang.Feature + " is not supported by bash"
	}
	at := min(int(pos.Offset()), len(r.src))
	f.at = span{at, len(r.src)}
	r.report(f)
}

// finding is one candidate verdict on a command.
type finding struct {
	action   Action
	class    string
	rule     string
	index    int // index of the rule
	hardDeny bool
	program  string
	text     string
	allowed  []string
	reason   string
	message  string
	at       span
}

// rank orders actions by strictness.
func rank(a Action) int {
	switch a {
	case Deny:
		return 2
	case Ask:
		return 1
	default:
		return 0
	}
}

// priority orders findings of the same action; a lower value wins.
func (f *finding) priority() int {
	if f.hardDeny {
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

// stricter reports whether f replaces g as the verdict.
func (f *finding) stricter(g *finding) bool {
	if a, b := rank(f.action), rank(g.action); a != b {
		return a > b
	}
	if a, b := f.priority(), g.priority(); a != b {
		return a < b
	}
	return f.class == ClassRule && g.class == ClassRule && f.index < g.index
}

// evaluation is the state of one decision.
type evaluation struct {
	p     *Policy
	src   string
	best  finding
	found bool

	steps    int // cost so far, up to maxSteps
	parsed   int
	nested   int // levels of code within code
	depth    int
	current  span              // position of the current command
	inNested bool              // nested code is walked: here is the outer word that contains it
	trace    []string          // programs in the order in which they were found
	files    map[string]string // known content of files that the command writes, by path
	fds      int
	active   []*syntax.FuncDecl
	called   map[*syntax.FuncDecl]bool
	decls    []*syntax.FuncDecl
	forks    int      // subshells, pipelines and background jobs around the current command
	expand   []string // aliases being expanded
	cwd      string
}

// report records f if it is stricter than the finding so far.
func (r *evaluation) report(f finding) {
	if !r.found || f.stricter(&r.best) {
		r.found, r.best = true, f
	}
}

// reportRule reports that a rule matches.
func (r *evaluation) reportRule(l *rule, program string, at span) {
	r.report(finding{
		action: l.Action, class: ClassRule, rule: l.ID, index: l.index, hardDeny: l.Never, program: program, at: at,
		message: l.Message, reason: "rule " + l.ID,
	})
}

// reportUnknown reports that something is known only at run time. worst is the strictest action
// that it could lead to.
func (r *evaluation) reportUnknown(reason, program string, worst Action, at span) {
	a := r.p.rules.Unknown
	if rank(worst) < rank(a) {
		a = worst
	}
	r.report(finding{action: a, class: ClassUnknown, rule: ClassUnknown, program: program, reason: reason, at: at})
}

// reportDefault reports that no rule matches the program.
func (r *evaluation) reportDefault(program string, at span) {
	r.report(finding{action: r.p.rules.Default, class: ClassDefault, rule: ClassDefault, program: program,
		reason: "no rule matches it", at: at})
}

// maxShown is the maximum length of a quoted text, in bytes.
const maxShown = 80

func (r *evaluation) verdict() Verdict {
	if !r.found {
		r.report(finding{action: Allow, class: ClassDefault, rule: ClassDefault, at: span{0, len(r.src)}})
	}
	f := &r.best
	v := Verdict{Action: f.action, Rule: f.rule, Class: f.class, HardDeny: f.hardDeny, Program: display(f.program)}
	if v.Rule == "" {
		v.Rule = f.class
	}
	if f.action != Allow || f.at.end > f.at.start {
		v.At = r.position(f.at)
	}
	v.Message = r.message(f, v)
	return v
}

func (r *evaluation) position(at span) *Position {
	start := min(max(at.start, 0), len(r.src))
	end := min(max(at.end, start), len(r.src))
	before := r.src[:start]
	line := strings.LastIndexByte(before, '\n')
	return &Position{Offset: start, Line: 1 + strings.Count(before, "\n"), Column: start - line,
		Text: clip.Elide(r.src[start:end], maxShown)}
}

// display replaces marks by readable characters and truncates s.
func display(s string) string {
	if !known(s) {
		s = strings.NewReplacer(string(anyText), "…", string(anyName), "*", string(anyByte), "?").Replace(s)
	}
	return clip.Elide(s, maxShown)
}

func (r *evaluation) message(f *finding, v Verdict) string {
	allowed := r.p.allowed
	if f.allowed != nil {
		allowed = strings.Join(f.allowed, ", ")
	}
	w := messageData{Verdict: v, Never: v.HardDeny, Program: v.Program, Text: display(f.text), Allowed: allowed,
		Reason: f.reason}
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
		return execute(t, w)
	}
	return r.defaultMessage(f, w)
}

func execute(t *template.Template, w messageData) string {
	var b strings.Builder
	if err := t.Execute(&b, w); err != nil {
		return w.Reason // unlikely: Compile executed the template once
	}
	return b.String()
}

// defaultMessage returns the message for classes without a template in Rules.Messages.
func (r *evaluation) defaultMessage(f *finding, w messageData) string {
	verb := map[Action]string{Allow: "is allowed", Ask: "needs approval", Deny: "is refused"}[f.action]
	switch f.class {
	case ClassAllowList:
		return strconv.Quote(w.Program) + " is not allowed. Allowed: " + w.Allowed
	case ClassDenyList:
		return strconv.Quote(w.Program) + " is on the deny list"
	case ClassRule:
		return "the command " + verb + " by the rule " + f.rule
	case ClassSyntax, ClassLimit, ClassEmpty:
		if v := w.At; v != nil && f.class == ClassSyntax {
			return "the command is refused at line " + strconv.Itoa(v.Line) + ", column " + strconv.Itoa(v.Column) +
				": " + f.reason
		}
		return "the command is refused: " + f.reason
	case ClassDefault:
		if f.action == Allow {
			return ""
		}
	}
	return "the command " + verb + ": " + f.reason
}
