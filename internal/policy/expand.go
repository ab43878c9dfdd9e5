package policy

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// literal replaces the characters of s that would be taken for marks.
func literal(s string) string {
	if known(s) {
		return s
	}
	return strings.Map(func(c rune) rune {
		if c <= anyByte {
			return 0x7f
		}
		return c
	}, s)
}

// wordBuilder builds the fields of one word.
type wordBuilder struct {
	r    *evaluation
	sc   *scope
	out  []field
	cur  []byte
	has  bool // cur is a word, even if it is empty
	bare bool
	// guess and feeds have the meaning of the fields of field.
	guess bool
	feeds []string
	at    span
}

func (b *wordBuilder) flush() {
	if b.has {
		b.out = append(b.out, field{text: string(b.cur), at: b.at, bare: b.bare, guess: b.guess, feeds: b.feeds})
	}
	b.cur, b.has, b.bare, b.guess, b.feeds = b.cur[:0], false, false, false, nil
}

func (b *wordBuilder) add(s string) {
	b.has = true
	if len(b.cur)+len(s) > maxText {
		b.r.limit("a word is too long")
	}
	b.r.step(len(s) / 64)
	b.cur = append(b.cur, s...)
}

// where returns the position of a node in the outer command.
func (r *evaluation) where(n syntax.Node) span {
	if r.inNested {
		return r.current
	}
	return span{int(n.Pos().Offset()), int(n.End().Offset())}
}

// fields expands words. It runs no code.
func (r *evaluation) fields(sc *scope, list []*syntax.Word) []field {
	out := make([]field, 0, len(list))
	for _, w := range list {
		out = r.word(sc, w, out)
	}
	return out
}

func (r *evaluation) word(sc *scope, w *syntax.Word, out []field) []field {
	r.step(1)
	if len(w.Parts) == 1 {
		if lit, ok := w.Parts[0].(*syntax.Lit); ok && !strings.ContainsAny(lit.Value, "\\*?[{~"+marks) {
			return append(out, field{text: lit.Value, at: r.where(w)})
		}
	}
	b := wordBuilder{r: r, sc: sc, out: out, at: r.where(w)}
	if !r.braces(w, func(parts []syntax.WordPart) {
		b.parts(parts, true)
		b.flush()
	}) {
		b.out = append(b.out, field{text: string(anyText), at: b.at, bare: true})
	}
	return b.out
}

// text expands a word to one text, as in an assignment or a redirection.
func (r *evaluation) text(sc *scope, w *syntax.Word) field {
	if w == nil {
		return field{}
	}
	r.step(1)
	b := wordBuilder{r: r, sc: sc, at: r.where(w)}
	b.quotedParts(w.Parts)
	return field{text: string(b.cur), at: b.at, guess: b.guess, feeds: b.feeds}
}

// quotedParts expands parts that are not split into words but may contain quotes.
func (b *wordBuilder) quotedParts(parts []syntax.WordPart) {
	for i, p := range parts {
		if lit, ok := p.(*syntax.Lit); ok {
			b.literalPart(lit.Value, i == 0, true)
			continue
		}
		b.part(p, true)
	}
}

// braces expands {a,b} and {1..3} and calls emit for every resulting word. It returns false if
// there are too many.
func (r *evaluation) braces(w *syntax.Word, emit func([]syntax.WordPart)) bool {
	open := 0
	split := false
	for _, p := range w.Parts {
		switch p := p.(type) {
		case *syntax.Lit:
			open += strings.Count(p.Value, "{")
		case *syntax.BraceExp:
			split = true
		}
	}
	if open > maxBraces || len(w.Parts) > 1000 && open > 0 {
		r.visit(w.Parts)
		return false
	}
	all := w.Parts
	if open > 0 {
		// Work on a copy: SplitBraces drops the positions.
		c := &syntax.Word{Parts: slices.Clone(all)}
		split = syntax.SplitBraces(c) || split
		all = c.Parts
	}
	if !split {
		emit(all)
		return true
	}
	words := r.alternatives(all)
	if words == nil {
		r.visit(w.Parts)
		return false
	}
	for _, parts := range words {
		emit(parts)
	}
	return true
}

// visit walks the code in parts whose text does not matter.
func (r *evaluation) visit(parts []syntax.WordPart) {
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.BraceExp:
			for _, e := range p.Elems {
				r.visit(e.Parts)
			}
		case *syntax.CmdSubst, *syntax.ProcSubst, *syntax.DblQuoted, *syntax.ParamExp, *syntax.ArithmExp:
			b := wordBuilder{r: r, sc: newScope()}
			b.part(p, true)
		}
	}
}

// alternatives returns the words that braces expand to, or nil if there are too many.
func (r *evaluation) alternatives(parts []syntax.WordPart) [][]syntax.WordPart {
	words := [][]syntax.WordPart{nil}
	for _, p := range parts {
		brace, ok := p.(*syntax.BraceExp)
		var options [][]syntax.WordPart
		switch {
		case !ok:
			options = [][]syntax.WordPart{{p}}
		case brace.Sequence:
			options = sequence(brace)
		default:
			for _, e := range brace.Elems {
				inner := r.alternatives(e.Parts)
				if inner == nil || len(options)+len(inner) > maxBraces {
					return nil
				}
				options = append(options, inner...)
			}
		}
		if options == nil || len(words)*len(options) > maxBraces {
			return nil
		}
		next := make([][]syntax.WordPart, 0, len(words)*len(options))
		for _, w := range words {
			r.step(1 + len(w)/8)
			for _, o := range options {
				next = append(next, append(w[:len(w):len(w)], o...))
			}
		}
		words = next
	}
	return words
}

// parts expands the parts of an unquoted word.
func (b *wordBuilder) parts(parts []syntax.WordPart, first bool) {
	for i, p := range parts {
		if lit, ok := p.(*syntax.Lit); ok {
			b.literalPart(lit.Value, first && i == 0, false)
			continue
		}
		b.part(p, false)
	}
}

// literalPart adds an unquoted literal: backslashes quote, and globs become marks. In an
// assignment, globs are plain text.
func (b *wordBuilder) literalPart(s string, first, assign bool) {
	b.has = true
	if first && strings.HasPrefix(s, "~") {
		s = b.tilde(s)
	} else if first && !assign && len(s) > 1 && s[0] == '\\' && s[1] == '~' {
		b.add("./")
	}
	if !strings.ContainsAny(s, "\\*?["+marks) {
		b.add(s)
		return
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && i+1 < len(s):
			i++
			if s[i] != '\n' {
				b.add(literal(s[i : i+1]))
			}
		case assign || c > anyByte && c != '*' && c != '?' && c != '[':
			b.add(literal(s[i : i+1]))
		case c == '*':
			b.add(string(anyName))
		case c == '?':
			b.add(string(anyByte))
		case c == '[':
			i += b.class(s[i:])
		default:
			b.add("\x7f")
		}
	}
}

// class adds "[r]" as r and any other class as a mark. It returns how many bytes it used after the
// first.
func (b *wordBuilder) class(s string) int {
	end := strings.IndexByte(s, ']')
	if end == 1 || end == 2 && (s[1] == '!' || s[1] == '^') {
		if next := strings.IndexByte(s[end+1:], ']'); next >= 0 {
			end += 1 + next
		} else {
			end = -1
		}
	}
	switch {
	case end < 0:
		b.add("[")
		return 0
	case end == 2:
		b.add(literal(s[1:2]))
	default:
		b.add(string(anyByte))
	}
	return end
}

// tilde expands "~" at the start of a word.
func (b *wordBuilder) tilde(s string) string {
	name, rest, slash := strings.Cut(s, "/")
	if slash {
		rest = "/" + rest
	}
	switch name {
	case "~+":
		cwd, _ := b.sc.lookup("PWD")
		b.add(cwd.text)
		return rest
	case "~-":
		b.add(string(anyText))
		return rest
	}
	b.add("~")
	return name[1:] + rest
}

func (b *wordBuilder) part(p syntax.WordPart, quoted bool) {
	switch p := p.(type) {
	case *syntax.Lit:
		b.inQuotes(p.Value)
	case *syntax.SglQuoted:
		s := p.Value
		if p.Dollar {
			s = ansi(s, false)
		}
		b.protectTilde(s)
		b.add(literal(s))
	case *syntax.DblQuoted:
		b.has = true
		for i, q := range p.Parts {
			if lit, ok := q.(*syntax.Lit); ok {
				if i == 0 {
					b.protectTilde(lit.Value)
				}
				b.inQuotes(lit.Value)
				continue
			}
			b.part(q, true)
		}
	case *syntax.ParamExp:
		b.param(p, quoted)
	case *syntax.CmdSubst:
		b.reportConstruct("command_substitution", p)
		from := len(b.r.trace)
		out := b.r.substitution(b.sc, p.Stmts)
		b.feeds = append(b.feeds, b.r.trace[min(from, len(b.r.trace)):]...)
		b.value(strings.TrimRight(out, "\n"), quoted)
	case *syntax.ProcSubst:
		b.reportConstruct("process_substitution", p)
		b.procSubst(p)
	case *syntax.ArithmExp:
		b.r.arithm(b.sc, p.X)
		b.add(string(anyName))
	case *syntax.ExtGlob:
		b.add(string(anyText))
	case *syntax.BraceExp:
		for _, e := range p.Elems {
			b.r.visit(e.Parts)
		}
		b.add(string(anyText))
	}
}

// protectTilde prevents a quoted ~ at the start of a word from meaning the home directory.
func (b *wordBuilder) protectTilde(s string) {
	if len(b.cur) == 0 && strings.HasPrefix(s, "~") {
		b.add("./")
	}
}

// inQuotes adds a literal inside double quotes or a here-document.
func (b *wordBuilder) inQuotes(s string) {
	if strings.IndexByte(s, '\\') < 0 {
		b.add(literal(s))
		return
	}
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("\\$`\"\n", s[i+1]) >= 0 {
			i++
			if s[i] == '\n' {
				continue
			}
		}
		b.add(literal(s[i : i+1]))
	}
}

// value adds the text of an expansion. Unquoted text is split into words, and globs become marks.
func (b *wordBuilder) value(s string, quoted bool) {
	if quoted {
		b.add(s)
		return
	}
	if !strings.ContainsAny(s, " \t\n*?[") && certain(s) && b.sc.ifs == " \t\n" {
		if s != "" {
			b.add(s)
		}
		return
	}
	if !certain(b.sc.ifs) {
		s = string(anyText)
	}
	b.r.step(len(s) / 16)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == anyText:
			b.add(s[i : i+1])
			b.bare = true
		case strings.IndexByte(b.sc.ifs, c) >= 0:
			b.flush()
			b.r.step(1)
		case c == '*':
			b.add(string(anyName))
		case c == '?' || c == '[' && strings.IndexByte(s[i:], ']') > 0:
			if c == '[' {
				i += b.class(s[i:])
			} else {
				b.add(string(anyByte))
			}
		default:
			b.add(s[i : i+1])
		}
	}
}

func (b *wordBuilder) reportConstruct(name string, n syntax.Node) {
	b.r.reportConstruct(name, b.r.where(n))
}

// procSubst adds a path in /dev/fd and records its content.
func (b *wordBuilder) procSubst(p *syntax.ProcSubst) {
	from := len(b.r.trace)
	out := b.r.substitution(b.sc, p.Stmts)
	name := b.r.processFile(out)
	if p.Op == syntax.CmdIn {
		b.feeds = append(b.feeds, b.r.trace[min(from, len(b.r.trace)):]...)
	}
	b.add(name)
}
