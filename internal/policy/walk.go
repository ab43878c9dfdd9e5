package policy

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// enter counts a construct within a construct.
func (r *run) enter() {
	r.step(1)
	if r.depth++; r.depth > maxDepth {
		r.limit("it is nested too deep")
	}
}

func (r *run) leave() { r.depth-- }

// construct reports rules about a part of the language.
func (r *run) construct(name string, at span) {
	for _, i := range r.p.builds[name] {
		r.rule(&r.p.list[i], "", at)
	}
}

// stmts walks statements in their order and returns what they write to their
// output, as far as it is known. stdin is what they read, nil if nothing gives
// it to them.
func (r *run) stmts(sc *scope, list []*syntax.Stmt, stdin *string) string {
	var out string
	for _, s := range list {
		out = r.join(out, r.stmt(sc, s, stdin))
	}
	return out
}

func (r *run) join(a, b string) string {
	switch {
	case a == "":
		return b
	case b == "":
		return a
	case len(a)+len(b) > maxText:
		return string(anyText)
	}
	r.step((len(a) + len(b)) / 64)
	return a + b
}

// substitution walks the code of $( ) and <( ), in a shell of its own.
func (r *run) substitution(sc *scope, list []*syntax.Stmt) string {
	r.enter()
	defer r.leave()
	r.forks++
	defer func() { r.forks-- }()
	return r.stmts(r.fork(sc), list, nil)
}

// redirected is what the redirections of a statement do.
type redirected struct {
	stdin  *string
	writes []field
	stdout bool // goes to a file
	feeds  []string
	files  []string
}

func (r *run) stmt(sc *scope, s *syntax.Stmt, stdin *string) string {
	r.enter()
	defer r.leave()
	if s.Background || s.Coprocess || s.Disown {
		r.construct("background", r.where(s))
		sc = r.fork(sc)
		r.forks++
		defer func() { r.forks-- }()
	}
	rd := redirected{stdin: stdin}
	for _, d := range s.Redirs {
		r.redirect(sc, d, &rd)
	}
	var out string
	if c, ok := s.Cmd.(*syntax.CallExpr); ok {
		out = r.simple(sc, c, &rd)
	} else {
		if len(rd.writes) > 0 {
			r.judge(&call{writes: rd.writes, at: r.where(s)})
		}
		if s.Cmd != nil {
			out = r.command(sc, s.Cmd, rd.stdin)
		}
	}
	if rd.stdout {
		for _, f := range rd.files {
			r.setFile(f, out)
		}
		return ""
	}
	return out
}

func (r *run) redirect(sc *scope, d *syntax.Redirect, rd *redirected) {
	switch d.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		rd.stdin = new(string)
		if d.Hdoc != nil {
			*rd.stdin = r.document(sc, d)
		}
		return
	case syntax.WordHdoc:
		f := r.text(sc, d.Word)
		text := f.text + "\n"
		rd.stdin, rd.feeds = &text, append(rd.feeds, f.feeds...)
		return
	}
	f := r.text(sc, d.Word)
	f.at = r.where(d)
	switch d.Op {
	case syntax.RdrIn:
		text := r.content(f.text, sc)
		rd.stdin, rd.feeds = &text, append(rd.feeds, f.feeds...)
	case syntax.DplIn:
	case syntax.DplOut:
		if _, err := strconv.Atoi(strings.TrimSuffix(f.text, "-")); err == nil || f.text == "-" {
			if d.N == nil || d.N.Value == "1" {
				rd.stdout = rd.stdout || f.text != "1"
			}
			return
		}
		fallthrough
	default:
		f.text = clean(f.text, sc.cwd)
		rd.writes = append(rd.writes, f)
		if d.Op == syntax.RdrInOut || d.N != nil && d.N.Value != "1" {
			return
		}
		rd.stdout = true
		if certain(f.text) {
			rd.files = append(rd.files, f.text)
		}
	}
}

// document is the text of a here-document.
func (r *run) document(sc *scope, d *syntax.Redirect) string {
	b := builder{r: r, sc: sc, at: r.where(d)}
	for _, p := range d.Hdoc.Parts {
		b.part(p, true)
	}
	text := string(b.cur)
	if d.Op == syntax.DashHdoc {
		lines := strings.Split(text, "\n")
		for i := range lines {
			lines[i] = strings.TrimLeft(lines[i], "\t")
		}
		text = strings.Join(lines, "\n")
	}
	return text
}

func (r *run) command(sc *scope, cmd syntax.Command, stdin *string) string {
	switch c := cmd.(type) {
	case *syntax.Block:
		return r.stmts(sc, c.Stmts, stdin)
	case *syntax.Subshell:
		r.forks++
		defer func() { r.forks-- }()
		return r.stmts(r.fork(sc), c.Stmts, stdin)
	case *syntax.BinaryCmd:
		return r.binary(sc, c, stdin)
	case *syntax.IfClause:
		return r.ifClause(sc, c, stdin)
	case *syntax.WhileClause:
		r.forget(sc, c)
		r.stmts(sc, c.Cond, stdin)
		r.stmts(sc, c.Do, stdin)
		return string(anyText)
	case *syntax.ForClause:
		return r.forClause(sc, c, stdin)
	case *syntax.CaseClause:
		r.text(sc, c.Word)
		before := r.fork(sc)
		for _, item := range c.Items {
			for _, p := range item.Patterns {
				r.text(sc, p)
			}
			way := r.fork(before)
			r.stmts(way, item.Stmts, stdin)
			r.merge(sc, way)
		}
		return string(anyText)
	case *syntax.FuncDecl:
		r.construct("function", r.where(c))
		r.decls = append(r.decls, c)
		if c.Name != nil {
			sc.define(c.Name.Value, c)
		}
	case *syntax.ArithmCmd:
		r.arithm(sc, c.X)
	case *syntax.LetClause:
		for _, x := range c.Exprs {
			r.arithm(sc, x)
		}
	case *syntax.TestClause:
		r.test(sc, c.X)
	case *syntax.DeclClause:
		r.declare(sc, c)
	case *syntax.TimeClause:
		if c.Stmt != nil {
			return r.stmt(sc, c.Stmt, stdin)
		}
	case *syntax.CoprocClause:
		r.construct("background", r.where(c))
		r.forks++
		defer func() { r.forks-- }()
		r.stmt(r.fork(sc), c.Stmt, nil)
	default:
		r.unknown("a construct that is not known here", "", Deny, r.where(cmd))
	}
	return ""
}

// binary walks lists and pipelines. Both can be very long: the left side is
// followed in a loop.
func (r *run) binary(sc *scope, c *syntax.BinaryCmd, stdin *string) string {
	if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
		return r.pipeline(sc, c, stdin)
	}
	chain := []*syntax.BinaryCmd{c}
	for {
		x, ok := chain[len(chain)-1].X.Cmd.(*syntax.BinaryCmd)
		left := chain[len(chain)-1].X
		if !ok || x.Op == syntax.Pipe || x.Op == syntax.PipeAll || len(left.Redirs) > 0 || left.Background || left.Coprocess || left.Disown {
			break
		}
		r.step(1)
		chain = append(chain, x)
	}
	last := len(chain) - 1
	out := r.stmt(sc, chain[last].X, stdin)
	cur := sc
	for i := last; i >= 0; i-- {
		sets := !plainly(chain[i].Y)
		if sets && cur == sc {
			cur = r.fork(sc)
		}
		way := cur
		if sets && chain[i].Op == syntax.OrStmt {
			way = r.fork(cur)
		}
		out = r.join(out, r.stmt(way, chain[i].Y, stdin))
		if way != cur {
			r.merge(cur, way)
		}
	}
	if cur != sc {
		r.merge(sc, cur)
	}
	return out
}

// plainly: a statement that sets no variable, so that no other way needs to be
// followed.
func plainly(s *syntax.Stmt) bool {
	c, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(c.Args) == 0 {
		return false
	}
	switch c.Args[0].Lit() {
	case "", ".", "source", "eval", "unset", "set", "shift", "alias", "unalias", "read", "printf", "mapfile", "readarray", "getopts", "builtin", "command", "shopt":
		return false
	}
	return true
}

// pipeline walks the stages from left to right, each in a shell of its own.
func (r *run) pipeline(sc *scope, c *syntax.BinaryCmd, stdin *string) string {
	var stages []*syntax.Stmt
	for left := (*syntax.Stmt)(nil); ; {
		stages = append(stages, c.Y)
		left = c.X
		x, ok := left.Cmd.(*syntax.BinaryCmd)
		if !ok || x.Op != syntax.Pipe && x.Op != syntax.PipeAll || len(left.Redirs) > 0 {
			stages = append(stages, left)
			break
		}
		r.step(1)
		c = x
	}
	r.forks++
	defer func() { r.forks-- }()
	var out string
	var marks []int
	for i := len(stages) - 1; i >= 0; i-- {
		marks = append(marks, len(r.trace))
		out = r.stmt(r.fork(sc), stages[i], stdin)
		text := out
		stdin = &text
	}
	first := stages[len(stages)-1]
	at := r.where(first)
	if !r.fixed {
		at.end = int(stages[0].End().Offset())
	}
	for i := 1; i < len(marks); i++ {
		end := len(r.trace)
		if i+1 < len(marks) {
			end = marks[i+1]
		}
		r.piped(r.trace[marks[0]:marks[i]], r.trace[marks[i]:end], at)
	}
	return out
}

// piped reports rules about what from writes into to.
func (r *run) piped(from, to []string, at span) {
	if len(from) == 0 || len(to) == 0 {
		return
	}
	for _, i := range r.p.pipes {
		l := &r.p.list[i]
		r.step((len(from) + len(to)) / 4)
		if f, t := anyOf(&l.from, from), anyOf(&l.to, to); f != "" && t != "" {
			r.rule(l, t, at)
		}
	}
}

func anyOf(p *programs, names []string) string {
	for _, n := range names {
		if p.match(n) == yes {
			return n
		}
	}
	return ""
}

func (r *run) ifClause(sc *scope, c *syntax.IfClause, stdin *string) string {
	rest := sc
	for n := 0; c != nil; n++ {
		r.step(1)
		r.stmts(rest, c.Cond, stdin)
		way := r.fork(rest)
		r.stmts(way, c.Then, stdin)
		r.merge(sc, way)
		c = c.Else
	}
	return string(anyText)
}

func (r *run) forClause(sc *scope, c *syntax.ForClause, stdin *string) string {
	loop, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		if l, ok := c.Loop.(*syntax.CStyleLoop); ok {
			r.forget(sc, c)
			r.arithm(sc, l.Init)
			r.arithm(sc, l.Cond)
			r.arithm(sc, l.Post)
		}
		r.stmts(sc, c.Do, stdin)
		return string(anyText)
	}
	var items []field
	if loop.InPos.IsValid() {
		items = r.fields(sc, loop.Items)
	} else {
		for _, p := range sc.params {
			items = append(items, field{text: p})
		}
	}
	most := maxForEach
	if sc.loops > 0 {
		most = 2
	}
	sc.loops++
	defer func() { sc.loops-- }()
	r.forget(sc, c)
	if len(items) > most || c.Select {
		items = []field{{text: string(anyText)}}
	}
	var out string
	for _, it := range items {
		sc.set(loop.Name.Value, variable{text: it.text})
		out = r.join(out, r.stmts(sc, c.Do, stdin))
	}
	return out
}

// forget takes away what is known of the variables that a loop's body sets: they
// may have it from an earlier round.
func (r *run) forget(sc *scope, loop syntax.Node) {
	if sc.vars == nil && sc.cwd == "" {
		return
	}
	syntax.Walk(loop, func(n syntax.Node) bool {
		r.step(1)
		if a, ok := n.(*syntax.Assign); ok && a.Name != nil {
			if _, set := sc.vars[a.Name.Value]; set {
				sc.set(a.Name.Value, variable{text: string(anyText)})
			}
		}
		return true
	})
}

func (r *run) test(sc *scope, x syntax.TestExpr) {
	r.enter()
	defer r.leave()
	switch x := x.(type) {
	case *syntax.BinaryTest:
		r.test(sc, x.X)
		r.test(sc, x.Y)
	case *syntax.UnaryTest:
		r.test(sc, x.X)
	case *syntax.ParenTest:
		r.test(sc, x.X)
	case *syntax.Word:
		r.text(sc, x)
	}
}

// arithm looks at the code within arithmetic; what it assigns is unknown.
func (r *run) arithm(sc *scope, x syntax.ArithmExpr) {
	if x == nil {
		return
	}
	r.enter()
	defer r.leave()
	switch x := x.(type) {
	case *syntax.BinaryArithm:
		r.assigned(sc, x.X)
		r.arithm(sc, x.X)
		r.arithm(sc, x.Y)
	case *syntax.UnaryArithm:
		r.assigned(sc, x.X)
		r.arithm(sc, x.X)
	case *syntax.ParenArithm:
		r.arithm(sc, x.X)
	case *syntax.FlagsArithm:
		r.arithm(sc, x.X)
	case *syntax.Word:
		if x != nil {
			r.text(sc, x)
		}
	}
}

func (r *run) assigned(sc *scope, x syntax.ArithmExpr) {
	if w, ok := x.(*syntax.Word); ok && w != nil {
		if name := w.Lit(); name != "" {
			if _, set := sc.vars[name]; set {
				sc.set(name, variable{text: string(anyName)})
			}
		}
	}
}

// assign carries out an assignment.
func (r *run) assign(sc *scope, a *syntax.Assign) {
	if a.Index != nil {
		r.arithm(sc, a.Index)
	}
	if a.Name == nil {
		if a.Value != nil {
			r.text(sc, a.Value)
		}
		return
	}
	name := a.Name.Value
	old := sc.vars[name]
	v := variable{exported: old.exported}
	switch {
	case a.Array != nil:
		v.isList = true
		if a.Append {
			v.list = append(v.list, old.list...)
		}
		for _, e := range a.Array.Elems {
			if e.Index != nil {
				r.arithm(sc, e.Index)
			}
			if e.Value == nil {
				continue
			}
			for _, f := range r.word(sc, e.Value, nil) {
				v.list = append(v.list, f.text)
			}
		}
		r.step(len(v.list))
	case a.Index != nil:
		r.text(sc, a.Value)
		v.isList, v.list = true, []string{string(anyText)}
	default:
		if a.Naked && a.Value == nil {
			return
		}
		v.text = r.text(sc, a.Value).text
		if a.Append {
			if old.isList {
				v.isList, v.list = true, slices.Concat(old.list, []string{v.text})
			} else if v.text = old.text + v.text; len(v.text) > maxText {
				v.text = string(anyText)
			}
			r.step(len(v.text) / 64)
		}
	}
	r.environment(sc, name, v.text, r.where(a))
	sc.set(name, v)
}

// declare is export, declare, local and their like.
func (r *run) declare(sc *scope, c *syntax.DeclClause) {
	exports := c.Variant.Value == "export"
	reference := c.Variant.Value == "nameref"
	r.judgeBuiltin(c.Variant.Value, r.where(c))
	for _, a := range c.Args {
		if a.Naked && a.Name == nil {
			flag := r.text(sc, a.Value).text
			exports = exports || strings.HasPrefix(flag, "-") && strings.Contains(flag, "x")
			reference = reference || strings.HasPrefix(flag, "-") && strings.ContainsAny(flag, "nulc")
			continue
		}
		r.assign(sc, a)
		if a.Name == nil {
			continue
		}
		if v, ok := sc.vars[a.Name.Value]; ok {
			v.exported = v.exported || exports
			if reference {
				v = variable{text: string(anyText), exported: v.exported}
			}
			sc.set(a.Name.Value, v)
		}
	}
}
