package policy

import (
	"errors"
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// call is one program that would run.
type call struct {
	words  []field // the program, and its arguments
	writes []field // by redirections
	stdin  *string // what it reads, nil if nothing here gives it
	feeds  []string
	at     span
	// plain: neither functions nor aliases are asked.
	plain bool
	// env are variables that stand before the program, or that env sets.
	env map[string]variable
	// bareEnv: env -i.
	bareEnv bool
}

func (c *call) args() []field { return c.words[1:] }

// with is the call of what stands at i of the words.
func (c *call) with(i int) *call {
	n := *c
	n.words = c.words[i:]
	n.writes = nil
	if len(n.words) > 0 {
		n.at.start = max(n.at.start, n.words[0].at.start)
	}
	return &n
}

// simple walks a simple command.
func (r *run) simple(sc *scope, c *syntax.CallExpr, rd *redirected) string {
	if len(c.Args) == 0 {
		for _, a := range c.Assigns {
			r.assign(sc, a)
		}
		if len(rd.writes) > 0 {
			r.judge(&call{writes: rd.writes, at: rd.writes[0].at})
		}
		return ""
	}
	words := r.fields(sc, c.Args)
	n := &call{words: words, writes: rd.writes, stdin: rd.stdin, feeds: rd.feeds, at: r.where(c)}
	if len(c.Assigns) > 0 {
		if !r.fixed && len(words) > 0 {
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
			r.judge(&call{writes: rd.writes, at: n.at})
		}
		return ""
	}
	return r.exec(sc, n)
}

// exec looks at one call and at what it would call, and returns what it writes
// to its output.
func (r *run) exec(sc *scope, c *call) string {
	r.enter()
	defer r.leave()
	for len(c.words) > 0 && (c.words[0].text == "--" || c.words[0].bare && c.words[0].text == "") {
		c = c.with(1)
	}
	if len(c.words) == 0 {
		return ""
	}
	r.step(len(c.words))
	if !r.fixed {
		r.here = c.at
	}
	p := c.words[0]
	if p.guess || !known(p.text) {
		return r.guessed(sc, c)
	}
	if p.text == "" {
		return ""
	}
	if !c.plain && !strings.Contains(p.text, "/") {
		if out, done := r.named(sc, c); done {
			return out
		}
	}
	r.trace = append(r.trace, programName(p.text))
	r.fed(c)
	r.cwd = sc.cwd
	r.judge(c)
	if text, ok := r.files[clean(p.text, sc.cwd)]; ok && strings.Contains(p.text, "/") {
		return r.script(sc, text, c.args(), c)
	}
	return r.behind(sc, c)
}

// fed reports rules about pipelines for what a call gets by substitutions.
func (r *run) fed(c *call) {
	if len(r.p.pipes) == 0 {
		return
	}
	to := r.trace[len(r.trace)-1:]
	r.piped(c.feeds, to, c.at)
	for i := range c.words {
		r.piped(c.words[i].feeds, to, c.at)
	}
}

// programName is the name that counts.
func programName(p string) string {
	if len(p) > maxPath {
		p = p[len(p)-maxPath:]
	}
	if i := strings.LastIndexByte(p, '/'); i >= 0 && i < len(p)-1 {
		p = path.Base(p) // what ends in a slash is no program
	}
	return p
}

// guessed looks at a call whose program is not known for sure: it is unknown,
// and whatever it most likely is counts too.
func (r *run) guessed(sc *scope, c *call) string {
	p := c.words[0]
	r.unknown("which program runs is known only when it runs", programName(p.text), Deny, c.at)
	r.trace = append(r.trace, "")
	n := *c
	n.words = append([]field(nil), c.words...)
	text := strings.ReplaceAll(p.text, string(anyText), "")
	if !known(text) {
		if list := r.couldBe(programName(text)); list != "" {
			r.report(finding{action: r.p.rules.Unknown, class: ClassUnknown, rule: ClassUnknown, program: list, reason: "it may be " + list, at: c.at})
		}
		r.behindUnknown(sc, c)
		return string(anyText)
	}
	if text == "" {
		if len(c.words) > 1 {
			r.mild(func() { r.exec(sc, c.with(1)) })
		}
		return string(anyText)
	}
	n.words[0].text, n.words[0].guess = text, false
	r.mild(func() { r.exec(sc, &n) })
	return string(anyText)
}

// couldBe finds a program of the rules that a glob may stand for.
func (r *run) couldBe(name string) string {
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

// behindUnknown looks for programs among the arguments of an unknown one.
func (r *run) behindUnknown(sc *scope, c *call) {
	if len(c.words) > 1 && c.words[0].bare {
		r.mild(func() { r.exec(sc, c.with(1)) })
	}
}

// named runs functions and aliases.
func (r *run) named(sc *scope, c *call) (string, bool) {
	name := c.words[0].text
	if text, ok := sc.aliases[name]; ok && !contains(r.expand, name) {
		r.expand = append(r.expand, name)
		defer func() { r.expand = r.expand[:len(r.expand)-1] }()
		code := text
		for _, a := range c.args() {
			code += " " + quote(a.text)
			if len(code) > maxText {
				r.limit("an alias of it is too long")
			}
		}
		r.code(sc, code, c.words[0].at)
		// Without expand_aliases the name is what runs.
		return "", false
	}
	f, ok := sc.funcs[name]
	if !ok || f.Body == nil {
		return "", false
	}
	for _, a := range r.active {
		if a == f {
			if r.forks > 0 {
				r.construct("fork_bomb", c.at)
			}
			return string(anyText), true
		}
	}
	if len(r.active) >= maxNested {
		r.limit("its functions call each other too deep")
	}
	if r.called == nil {
		r.called = map[*syntax.FuncDecl]bool{}
	}
	r.called[f] = true
	r.active = append(r.active, f)
	forks := r.forks
	r.forks = 0
	params := sc.params
	sc.params = texts(c.args())
	out := r.stmt(sc, f.Body, c.stdin)
	sc.params = params
	r.forks = forks
	r.active = r.active[:len(r.active)-1]
	if len(c.writes) > 0 {
		r.judge(&call{writes: c.writes, at: c.at})
	}
	return out, true
}

// uncalled looks at functions that nothing calls by name: a trap or a handler
// may.
func (r *run) uncalled() {
	for i := 0; i < len(r.decls); i++ {
		if f := r.decls[i]; !r.called[f] && f.Body != nil {
			sc := newScope()
			sc.params = []string{string(anyText)}
			r.active = append(r.active[:0], f)
			r.stmt(sc, f.Body, nil)
		}
	}
}

func texts(fields []field) []string {
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

// quote writes a text as a shell word; what is unknown stays a mark.
func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\n'\"\\$`&|;<>(){}*?[]#~!="+marks) {
		return s
	}
	if !known(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// reserved is the variable that stands for unknown text in nested code.
const reserved = "__unknown__"

// codeCost is what one more piece of code counts in steps.
const codeCost = 150

// code walks a text that a shell would run, in the scope sc. at is the outer
// word that holds it.
func (r *run) code(sc *scope, text string, at span) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	if r.nested++; r.nested > maxNested {
		r.limit("it has code within code, too deep")
	}
	if r.parsed += len(text); r.parsed > maxParsed {
		r.limit("it has too much code within code")
	}
	r.step(codeCost + len(text)/16)
	defer func() { r.nested-- }()
	if !certain(text) {
		r.unknown("a part of the code that it runs is made when it runs", "", Deny, at)
		if strings.Trim(text, "\x00 \t\n") == "" {
			return string(anyText)
		}
		text = strings.ReplaceAll(text, string(anyText), "${"+reserved+"}")
	}
	if !known(text) {
		text = strings.NewReplacer(string(anyName), "*", string(anyByte), "?").Replace(text)
	}
	file, err := parse(text)
	if err != nil {
		if errors.Is(err, errDeep) || errors.Is(err, errMuch) {
			r.limit("code in it cannot be looked at: " + err.Error())
		}
		r.unknown("the code that it runs does not parse", "", Deny, at)
		return string(anyText)
	}
	fixed, here := r.fixed, r.here
	if !fixed {
		r.fixed, r.here = true, at
	}
	out := r.stmts(sc, file.Stmts, nil)
	r.fixed, r.here = fixed, here
	return out
}

// process is the scope of a new shell process: it knows what is exported.
func (r *run) process(sc *scope, c *call) *scope {
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

// script runs known text as a script.
func (r *run) script(sc *scope, text string, args []field, c *call) string {
	if strings.HasPrefix(text, "#!") {
		line, _, _ := strings.Cut(text, "\n")
		if !strings.Contains(line, "sh") {
			r.inline(sc, programName(strings.TrimSpace(line[2:])), text, c)
			return string(anyText)
		}
	}
	n := r.process(sc, c)
	n.params = texts(args)
	return r.code(n, text, c.words[0].at)
}

// setFile and content follow files that the command writes itself.
func (r *run) setFile(name, text string) {
	if r.files == nil {
		r.files = map[string]string{}
	}
	if len(r.files) < 64 {
		r.files[name] = text
	}
}

func (r *run) newFile(text string) string {
	r.fds++
	name := "/dev/fd/" + string(rune('a'+r.fds%26)) + strings.Repeat("z", min(r.fds/26, 64))
	r.setFile(name, text)
	return name
}

// content is the text of a file, as far as it is known.
func (r *run) content(name string, sc *scope) string {
	if text, ok := r.files[clean(name, sc.cwd)]; ok {
		return text
	}
	if name == "/dev/null" {
		return ""
	}
	return string(anyText)
}
