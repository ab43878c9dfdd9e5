package policy

import (
	"errors"
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// call is one program that would run.
type call struct {
	words  []field  // the program, and its arguments
	writes []field  // targets of redirections
	stdin  *string  // text on its standard input; nil if unknown
	feeds  []string // programs that produce its standard input
	at     span
	// plain: functions and aliases do not apply.
	direct bool
	// env holds the variables set before the program or by env.
	env map[string]variable
	// bareEnv: the program gets no inherited variables (env -i).
	bareEnv bool
}

func (c *call) args() []field { return c.words[1:] }

// from returns the call whose program is word i.
func (c *call) from(i int) *call {
	n := *c
	n.words = c.words[i:]
	n.writes = nil
	if len(n.words) > 0 {
		n.at.start = max(n.at.start, n.words[0].at.start)
	}
	return &n
}

// simpleCommand walks a simple command and returns its output.
func (r *evaluation) simpleCommand(sc *scope, c *syntax.CallExpr, rd *redirections) string {
	if len(c.Args) == 0 {
		for _, a := range c.Assigns {
			r.assign(sc, a)
		}
		if len(rd.writes) > 0 {
			r.applyRules(&call{writes: rd.writes, at: rd.writes[0].at})
		}
		return ""
	}
	words := r.fields(sc, c.Args)
	n := &call{words: words, writes: rd.writes, stdin: rd.stdin, feeds: rd.feeds, at: r.where(c)}
	if len(c.Assigns) > 0 {
		if !r.inNested && len(words) > 0 {
			n.at.start = words[0].at.start
		}
		tmp := r.fork(sc)
		n.env = map[string]variable{}
		for _, a := range c.Assigns {
			r.assign(tmp, a)
			if a.Name != nil {
				v := tmp.vars[a.Name.Value]
				v.exported = true
				n.env[a.Name.Value] = v
			}
		}
	}
	if len(words) == 0 {
		if len(rd.writes) > 0 {
			r.applyRules(&call{writes: rd.writes, at: n.at})
		}
		return ""
	}
	return r.exec(sc, n)
}

// exec judges a call and every program that it would run in turn. It returns the output of the
// call, or a mark.
func (r *evaluation) exec(sc *scope, c *call) string {
	r.enter()
	defer r.leave()
	for len(c.words) > 0 && (c.words[0].text == "--" || c.words[0].bare && c.words[0].text == "") {
		c = c.from(1)
	}
	if len(c.words) == 0 {
		return ""
	}
	r.step(len(c.words))
	if !r.inNested {
		r.current = c.at
	}
	p := c.words[0]
	if p.guess || !known(p.text) {
		r.execUnknown(sc, c)
		return string(anyText)
	}
	if p.text == "" {
		return ""
	}
	if !c.direct && !strings.Contains(p.text, "/") {
		if out, done := r.callNamed(sc, c); done {
			return out
		}
	}
	r.trace = append(r.trace, programName(p.text))
	r.reportFeeds(c)
	r.cwd = sc.cwd
	r.applyRules(c)
	if text, ok := r.files[clean(p.text, sc.cwd)]; ok && strings.Contains(p.text, "/") {
		return r.script(sc, text, c.args(), c)
	}
	return r.follow(sc, c)
}

// reportFeeds applies pipe rules to programs whose output the call gets by substitutions.
func (r *evaluation) reportFeeds(c *call) {
	if len(r.p.pipes) == 0 {
		return
	}
	to := r.trace[len(r.trace)-1:]
	r.reportPipe(c.feeds, to, c.at)
	for i := range c.words {
		r.reportPipe(c.words[i].feeds, to, c.at)
	}
}

// programName returns the base name of a program path.
func programName(p string) string {
	if len(p) > maxPath {
		p = p[len(p)-maxPath:]
	}
	if i := strings.LastIndexByte(p, '/'); i >= 0 && i < len(p)-1 {
		p = path.Base(p) // a path that ends in a slash is not a program
	}
	return p
}

// execUnknown handles a call whose program is not known for sure. It reports the call as unknown
// and also judges the most likely program.
func (r *evaluation) execUnknown(sc *scope, c *call) {
	p := c.words[0]
	r.reportUnknown("which program runs is known only at run time", programName(p.text), Deny, c.at)
	r.trace = append(r.trace, "")
	n := *c
	n.words = append([]field(nil), c.words...)
	text := strings.ReplaceAll(p.text, string(anyText), "")
	if !known(text) {
		if list := r.couldBe(programName(text)); list != "" {
			r.report(finding{action: r.p.rules.Unknown, class: ClassUnknown, rule: ClassUnknown, program: list,
				reason: "it may be " + list, at: c.at})
		}
		r.followUnknown(sc, c)
		return
	}
	if text == "" {
		if len(c.words) > 1 {
			r.speculative(func() { r.exec(sc, c.from(1)) })
		}
		return
	}
	n.words[0].text, n.words[0].guess = text, false
	r.speculative(func() { r.exec(sc, &n) })
}

// couldBe returns the first denied program that an unknown name may stand for, or "".
func (r *evaluation) couldBe(name string) string {
	r.step(len(r.p.deny.names) / 8)
	g := glob{}
	for i := 0; i < len(name); i++ {
		switch name[i] {
		case anyName, anyText:
			g.tokens = append(g.tokens, token{kind: '*'})
		case anyByte:
			g.tokens = append(g.tokens, token{kind: '?'})
		default:
			g.tokens = append(g.tokens, token{kind: 'c', c: name[i]})
		}
	}
	best := ""
	for n := range r.p.deny.names {
		if g.match(n) == yes && (best == "" || n < best) {
			best = n
		}
	}
	return best
}

// followUnknown judges the arguments of a program whose name may be empty.
func (r *evaluation) followUnknown(sc *scope, c *call) {
	if len(c.words) > 1 && c.words[0].bare {
		r.speculative(func() { r.exec(sc, c.from(1)) })
	}
}

// callNamed runs a function or an alias. The bool reports that the call is done.
func (r *evaluation) callNamed(sc *scope, c *call) (string, bool) {
	name := c.words[0].text
	if text, ok := sc.aliases[name]; ok && !contains(r.expand, name) {
		r.expand = append(r.expand, name)
		defer func() { r.expand = r.expand[:len(r.expand)-1] }()
		code := text
		for _, a := range c.args() {
			code += " " + quote(a.text)
			if len(code) > maxText {
				r.limit("the expansion of an alias is too long")
			}
		}
		r.walkCode(sc, code, c.words[0].at)
		// Go on with the name: without the option expand_aliases, the alias does not apply.
		return "", false
	}
	f, ok := sc.funcs[name]
	if !ok || f.Body == nil {
		return "", false
	}
	for _, a := range r.active {
		if a == f {
			if r.forks > 0 {
				r.reportConstruct("fork_bomb", c.at)
			}
			return string(anyText), true
		}
	}
	if len(r.active) >= maxNested {
		r.limit("function calls are nested too deeply")
	}
	if r.called == nil {
		r.called = map[*syntax.FuncDecl]bool{}
	}
	r.called[f] = true
	r.active = append(r.active, f)
	forks := r.forks
	r.forks = 0
	params := sc.params
	sc.params = fieldTexts(c.args())
	out := r.stmt(sc, f.Body, c.stdin)
	sc.params = params
	r.forks = forks
	r.active = r.active[:len(r.active)-1]
	if len(c.writes) > 0 {
		r.applyRules(&call{writes: c.writes, at: c.at})
	}
	return out, true
}

// walkUncalled walks functions that the command does not call by name: a trap or a handler may.
func (r *evaluation) walkUncalled() {
	for i := 0; i < len(r.decls); i++ {
		if f := r.decls[i]; !r.called[f] && f.Body != nil {
			sc := newScope()
			sc.params = []string{string(anyText)}
			r.active = append(r.active[:0], f)
			r.stmt(sc, f.Body, nil)
		}
	}
}

func fieldTexts(fields []field) []string {
	out := make([]string, len(fields))
	for i, f := range fields {
		out[i] = f.text
	}
	return out
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// quote returns s as one shell word. Text with marks stays as it is.
func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n'\"\\$`&|;<>(){}*?[]#~!="+marks) {
		return s
	}
	if !known(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// unknownVar is the variable that stands for unknown text in nested code.
const unknownVar = "__unknown__"

// codeCost is the cost of one more piece of code, in steps.
const codeCost = 150

// walkCode walks text as shell code in the scope sc and returns its output. at is the outer word
// that contains it.
func (r *evaluation) walkCode(sc *scope, text string, at span) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	if r.nested++; r.nested > maxNested {
		r.limit("code within code is nested too deeply")
	}
	if r.parsed += len(text); r.parsed > maxParsed {
		r.limit("there is too much code within code")
	}
	r.step(codeCost + len(text)/16)
	defer func() { r.nested-- }()
	if !certain(text) {
		r.reportUnknown("a part of the code to run is known only at run time", "", Deny, at)
		if strings.Trim(text, "\x00 \t\n") == "" {
			return string(anyText)
		}
		text = strings.ReplaceAll(text, string(anyText), "${"+unknownVar+"}")
	}
	if !known(text) {
		text = strings.NewReplacer(string(anyName), "*", string(anyByte), "?").Replace(text)
	}
	file, err := parse(text)
	if err != nil {
		if errors.Is(err, errTooDeep) || errors.Is(err, errTooLarge) {
			r.limit("nested code is too complex to evaluate: " + err.Error())
		}
		r.reportUnknown("the code to run does not parse", "", Deny, at)
		return string(anyText)
	}
	fixed, here := r.inNested, r.current
	if !fixed {
		r.inNested, r.current = true, at
	}
	out := r.stmts(sc, file.Stmts, nil)
	r.inNested, r.current = fixed, here
	return out
}

// newProcess returns the scope of a new process: only exported variables are passed on.
func (r *evaluation) newProcess(sc *scope, c *call) *scope {
	n := r.fork(sc)
	n.params, n.ifs, n.aliases, n.loops = nil, " \t\n", nil, 0
	for name, v := range n.vars {
		if !v.exported || c.bareEnv {
			delete(n.vars, name)
		}
	}
	for name, v := range c.env {
		n.set(name, v)
	}
	delete(n.vars, "IFS")
	n.ifs = " \t\n"
	return n
}

// script walks a file with known text, by the interpreter of its #! line.
func (r *evaluation) script(sc *scope, text string, args []field, c *call) string {
	if strings.HasPrefix(text, "#!") {
		line, _, _ := strings.Cut(text, "\n")
		if !strings.Contains(line, "sh") {
			r.walkInlineCode(sc, programName(strings.TrimSpace(line[2:])), text, c)
			return string(anyText)
		}
	}
	n := r.newProcess(sc, c)
	n.params = fieldTexts(args)
	return r.walkCode(n, text, c.words[0].at)
}

// setFile records the content of a file that the command writes.
func (r *evaluation) setFile(name, text string) {
	if r.files == nil {
		r.files = map[string]string{}
	}
	if len(r.files) < 64 {
		r.files[name] = text
	}
}

// processFile records text as a /dev/fd file and returns its name.
func (r *evaluation) processFile(text string) string {
	r.fds++
	name := "/dev/fd/" + string(rune('a'+r.fds%26)) + strings.Repeat("z", min(r.fds/26, 64))
	r.setFile(name, text)
	return name
}

// fileContent returns the text of a file if it is known, else a mark.
func (r *evaluation) fileContent(name string, sc *scope) string {
	if text, ok := r.files[clean(name, sc.cwd)]; ok {
		return text
	}
	if name == "/dev/null" {
		return ""
	}
	return string(anyText)
}
