package policy

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// enter adds a level of nesting.
func (r *evaluation) enter() {
	r.step(1)
	if r.depth++; r.depth > maxDepth {
		r.limit("it is nested too deep")
	}
}

func (r *evaluation) leave() { r.depth-- }

// reportConstruct applies rules with this Construct.
func (r *evaluation) reportConstruct(name string, at span) {
	for _, i := range r.p.byConstruct[name] {
		r.reportRule(&r.p.list[i], "", at)
	}
}

// stmts walks statements in order and returns their output, or a mark. stdin is their standard
// input, nil if unknown.
func (r *evaluation) stmts(sc *scope, list []*syntax.Stmt, stdin *string) string {
	var out string
	for _, s := range list {
		out = r.join(out, r.stmt(sc, s, stdin))
	}
	return out
}

func (r *evaluation) join(a, b string) string {
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

// substitution walks the code of $( ) and <( ) in a subshell.
func (r *evaluation) substitution(sc *scope, list []*syntax.Stmt) string {
	r.enter()
	defer r.leave()
	r.forks++
	defer func() { r.forks-- }()
	return r.stmts(r.fork(sc), list, nil)
}

// redirections collects the effects of the redirections of a statement.
type redirections struct {
	stdin  *string // content of standard input; nil if unknown
	writes []field
	stdout bool     // standard output goes to a file
	feeds  []string // programs that produce stdin
	files  []string // known files that standard output goes to
}

func (r *evaluation) stmt(sc *scope, s *syntax.Stmt, stdin *string) string {
	r.enter()
	defer r.leave()
	if s.Background || s.Coprocess || s.Disown {
		r.reportConstruct("background", r.where(s))
		sc = r.fork(sc)
		r.forks++
		defer func() { r.forks-- }()
	}
	rd := redirections{stdin: stdin}
	for _, d := range s.Redirs {
		r.redirect(sc, d, &rd)
	}
	var out string
	if c, ok := s.Cmd.(*syntax.CallExpr); ok {
		out = r.simpleCommand(sc, c, &rd)
	} else {
		if len(rd.writes) > 0 {
			r.applyRules(&call{writes: rd.writes, at: r.where(s)})
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

func (r *evaluation) redirect(sc *scope, d *syntax.Redirect, rd *redirections) {
	switch d.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		rd.stdin = new(string)
		if d.Hdoc != nil {
			*rd.stdin = r.heredocText(sc, d)
		}
		return
	case syntax.WordHdoc:
		f := r.text(sc, d.Word)
		text := f.text + "\n"
		rd.stdin, rd.feeds = &text, append(rd.feeds, f.feeds...)
		return
	default:
	}
	f := r.text(sc, d.Word)
	f.at = r.where(d)
	switch d.Op {
	case syntax.RdrIn:
		text := r.fileContent(f.text, sc)
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

// heredocText returns the expanded text of a here-document.
func (r *evaluation) heredocText(sc *scope, d *syntax.Redirect) string {
	b := wordBuilder{r: r, sc: sc, at: r.where(d)}
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

func (r *evaluation) command(sc *scope, cmd syntax.Command, stdin *string) string {
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
		r.invalidate(sc, c)
		r.stmts(sc, c.Cond, stdin)
		r.stmts(sc, c.Do, stdin)
		return string(anyText)
	case *syntax.ForClause:
		return r.forClause(sc, c, stdin)
	case *syntax.CaseClause:
		return r.caseClause(sc, c, stdin)
	case *syntax.FuncDecl:
		r.reportConstruct("function", r.where(c))
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
		r.reportConstruct("background", r.where(c))
		r.forks++
		defer func() { r.forks-- }()
		r.stmt(r.fork(sc), c.Stmt, nil)
	default:
		r.reportUnknown("a shell construct is not supported", "", Deny, r.where(cmd))
	}
	return ""
}

// binary walks lists and pipelines. It follows the left side in a loop: both can be very long.
func (r *evaluation) binary(sc *scope, c *syntax.BinaryCmd, stdin *string) string {
	if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
		return r.pipeline(sc, c, stdin)
	}
	chain := []*syntax.BinaryCmd{c}
	for {
		x, ok := chain[len(chain)-1].X.Cmd.(*syntax.BinaryCmd)
		left := chain[len(chain)-1].X
		if !ok || x.Op == syntax.Pipe || x.Op == syntax.PipeAll || len(left.Redirs) > 0 || left.Background ||
			left.Coprocess || left.Disown {
			break
		}
		r.step(1)
		chain = append(chain, x)
	}
	last := len(chain) - 1
	out := r.stmt(sc, chain[last].X, stdin)
	cur := sc
	for i := last; i >= 0; i-- {
		sets := !setsNothing(chain[i].Y)
		if sets && cur == sc {
			cur = r.fork(sc)
		}
		branch := cur
		if sets && chain[i].Op == syntax.OrStmt {
			branch = r.fork(cur)
		}
		out = r.join(out, r.stmt(branch, chain[i].Y, stdin))
		if branch != cur {
			r.merge(cur, branch)
		}
	}
	if cur != sc {
		r.merge(sc, cur)
	}
	return out
}

// setsNothing reports whether a statement cannot set variables, so that it needs no separate scope.
func setsNothing(s *syntax.Stmt) bool {
	c, ok := s.Cmd.(*syntax.CallExpr)
	if !ok || len(c.Args) == 0 {
		return false
	}
	switch c.Args[0].Lit() {
	case "", ".", "source", "eval", "unset", "set", "shift", "alias", "unalias", "read", "printf", "mapfile",
		"readarray", "getopts", "builtin", "command", "shopt":
		return false
	}
	return true
}

// pipeline walks the stages from left to right, each in a subshell.
func (r *evaluation) pipeline(sc *scope, c *syntax.BinaryCmd, stdin *string) string {
	var stages []*syntax.Stmt
	for {
		stages = append(stages, c.Y)
		left := c.X
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
	if !r.inNested {
		at.end = int(stages[0].End().Offset())
	}
	for i := 1; i < len(marks); i++ {
		end := len(r.trace)
		if i+1 < len(marks) {
			end = marks[i+1]
		}
		r.reportPipe(r.trace[marks[0]:marks[i]], r.trace[marks[i]:end], at)
	}
	return out
}

// reportPipe applies pipe rules to the programs from that write to the programs to.
func (r *evaluation) reportPipe(from, to []string, at span) {
	if len(from) == 0 || len(to) == 0 {
		return
	}
	for _, i := range r.p.pipes {
		l := &r.p.list[i]
		r.step((len(from) + len(to)) / 4)
		if f, t := anyOf(&l.from, from), anyOf(&l.to, to); f != "" && t != "" {
			r.reportRule(l, t, at)
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

func (r *evaluation) caseClause(sc *scope, c *syntax.CaseClause, stdin *string) string {
	r.text(sc, c.Word)
	before := r.fork(sc)
	for _, item := range c.Items {
		for _, p := range item.Patterns {
			r.text(sc, p)
		}
		branch := r.fork(before)
		r.stmts(branch, item.Stmts, stdin)
		r.merge(sc, branch)
	}
	return string(anyText)
}

func (r *evaluation) ifClause(sc *scope, c *syntax.IfClause, stdin *string) string {
	rest := sc
	for n := 0; c != nil; n++ {
		r.step(1)
		r.stmts(rest, c.Cond, stdin)
		branch := r.fork(rest)
		r.stmts(branch, c.Then, stdin)
		r.merge(sc, branch)
		c = c.Else
	}
	return string(anyText)
}

func (r *evaluation) forClause(sc *scope, c *syntax.ForClause, stdin *string) string {
	loop, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		if l, ok := c.Loop.(*syntax.CStyleLoop); ok {
			r.invalidate(sc, c)
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
	r.invalidate(sc, c)
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

// invalidate makes the variables unknown that the body of a loop sets: an earlier iteration may
// have changed them.
func (r *evaluation) invalidate(sc *scope, loop syntax.Node) {
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

func (r *evaluation) test(sc *scope, x syntax.TestExpr) {
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
