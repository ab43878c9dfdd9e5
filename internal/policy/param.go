package policy

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// sequence expands {1..3} and {a..c}. It returns nil if there are too many words.
func sequence(br *syntax.BraceExp) [][]syntax.WordPart {
	from, to := br.Elems[0].Lit(), br.Elems[1].Lit()
	a, errA := strconv.Atoi(from)
	z, errZ := strconv.Atoi(to)
	letters := errA != nil || errZ != nil
	if letters {
		if len(from) != 1 || len(to) != 1 {
			return nil
		}
		a, z = int(from[0]), int(to[0])
	}
	by := 1
	if len(br.Elems) > 2 {
		by, _ = strconv.Atoi(br.Elems[2].Lit())
		by = max(by, -by, 1)
	}
	if a > z && a-z < 0 || z > a && z-a < 0 || max(a-z, z-a)/by >= maxBraces {
		return nil
	}
	var out [][]syntax.WordPart
	for i := a; ; {
		s := strconv.Itoa(i)
		if letters {
			s = string(rune(i))
		}
		out = append(out, []syntax.WordPart{&syntax.Lit{Value: s}})
		if i == z || a < z && i+by > z || a > z && i-by < z {
			return out
		}
		if a < z {
			i += by
		} else {
			i -= by
		}
	}
}

// param expands $x, ${x} and their variants.
func (b *wordBuilder) param(p *syntax.ParamExp, quoted bool) {
	if p.Index != nil {
		b.r.arithm(b.sc, p.Index)
	}
	if p.Slice != nil {
		b.r.arithm(b.sc, p.Slice.Offset)
		b.r.arithm(b.sc, p.Slice.Length)
	}
	if p.Param == nil {
		b.unknown(quoted)
		return
	}
	name := p.Param.Value
	if list, ok := b.list(p, name); ok {
		b.elements(list, quoted && !starred(p, name), quoted)
		return
	}
	v, set := b.scalar(p, name)
	if p.Excl && p.Names == 0 && set && certain(v) && v != "" {
		inner, ok := b.sc.lookup(v)
		v, set = inner.text, ok
	} else if p.Excl {
		v, set = "", false
	}
	v, set = b.operate(p, v, set)
	if !set {
		b.unknown(quoted)
		return
	}
	b.value(v, quoted)
}

func (b *wordBuilder) unknown(quoted bool) {
	b.add(string(anyText))
	b.bare = b.bare || !quoted
}

// starred reports whether p is "$*" or "${a[*]}", which quotes join to one word.
func starred(p *syntax.ParamExp, name string) bool { return name == "*" || index(p) == "*" }

func index(p *syntax.ParamExp) string {
	if w, ok := p.Index.(*syntax.Word); ok {
		return w.Lit()
	}
	return ""
}

// list returns the words of $@, $* or ${a[@]}.
func (b *wordBuilder) list(p *syntax.ParamExp, name string) ([]string, bool) {
	if p.Length || p.Excl || p.Repl != nil || p.Exp != nil {
		return nil, false
	}
	var list []string
	switch i := index(p); {
	case name == "@" || name == "*":
		list = b.sc.params
	case i == "@" || i == "*":
		v, ok := b.sc.vars[name]
		switch {
		case ok && !v.isList:
			list = []string{v.text}
		case !ok:
			return nil, false
		default:
			list = v.list
		}
	default:
		return nil, false
	}
	if p.Slice != nil {
		from, ok := number(p.Slice.Offset)
		n, okn := number(p.Slice.Length)
		if name == "@" || name == "*" {
			from--
		}
		if !ok || p.Slice.Length != nil && !okn || from < 0 {
			return []string{string(anyText)}, true
		}
		list = list[min(from, len(list)):]
		if p.Slice.Length != nil && n >= 0 {
			list = list[:min(n, len(list))]
		}
	}
	return list, true
}

func number(x syntax.ArithmExpr) (int, bool) {
	w, ok := x.(*syntax.Word)
	if !ok || w == nil {
		return 0, false
	}
	n, err := strconv.Atoi(w.Lit())
	return n, err == nil
}

// elements adds the elements of a list, as separate words or, quoted with *, as one.
func (b *wordBuilder) elements(list []string, words, quoted bool) {
	if quoted && !words {
		sep := " "
		if b.sc.ifs == "" {
			sep = ""
		} else if certain(b.sc.ifs) {
			sep = b.sc.ifs[:1]
		}
		b.add(strings.Join(list, sep))
		return
	}
	for i, e := range list {
		b.r.step(1)
		if i > 0 {
			b.flush()
		}
		b.value(e, quoted)
		if e == string(anyText) {
			b.bare = true
		}
	}
}

// scalar returns the value of a parameter before its operators apply.
func (b *wordBuilder) scalar(p *syntax.ParamExp, name string) (string, bool) {
	if name[0] >= '0' && name[0] <= '9' {
		n, err := strconv.Atoi(name)
		switch {
		case err != nil || n > len(b.sc.params):
			return "", err == nil
		case n == 0:
			if b.sc.zero != "" {
				return b.sc.zero, true
			}
			return "bash", true
		}
		return b.sc.params[n-1], true
	}
	switch name {
	case "@", "*":
		return strings.Join(b.sc.params, " "), true
	case "#", "?", "$", "!", "-", "RANDOM", "LINENO", "SECONDS", "UID", "EUID", "PPID", "BASHPID", "EPOCHSECONDS",
		"SRANDOM":
		return string(anyName), true
	}
	v, ok := b.sc.lookup(name)
	if !ok || !v.isList {
		if ok && p.Index != nil && index(p) != "0" && index(p) != "@" && index(p) != "*" {
			return string(anyText), true
		}
		return v.text, ok
	}
	i := 0
	if p.Index != nil {
		var fine bool
		if i, fine = number(p.Index); !fine {
			if s := index(p); s == "@" || s == "*" {
				return strings.Join(v.list, " "), true
			}
			return string(anyText), true
		}
	}
	if i < 0 {
		i += len(v.list)
	}
	if i < 0 || i >= len(v.list) {
		return "", true
	}
	return v.list[i], true
}

// operate applies the operators of ${...}: defaults, substrings, replacements.
func (b *wordBuilder) operate(p *syntax.ParamExp, v string, set bool) (string, bool) {
	switch {
	case p.Length, p.Width, p.IsSet:
		return string(anyName), true
	case p.Names != 0, p.Flags != nil, p.NestedParam != nil, len(p.Modifiers) > 0:
		return "", false
	case p.Slice != nil:
		return b.slice(p, v, set)
	case p.Repl != nil:
		return b.replace(p.Repl, v, set)
	case p.Exp != nil:
		return b.expansion(p, v, set)
	}
	return v, set
}

func (b *wordBuilder) slice(p *syntax.ParamExp, v string, set bool) (string, bool) {
	from, ok := number(p.Slice.Offset)
	if !set || !ok || !known(v) {
		return "", false
	}
	v = v[min(from, len(v)):]
	if p.Slice.Length == nil {
		return v, true
	}
	n, ok := number(p.Slice.Length)
	if !ok || n < 0 {
		return "", false
	}
	return v[:min(n, len(v))], true
}

func (b *wordBuilder) replace(r *syntax.Replace, v string, set bool) (string, bool) {
	old := b.inner(r.Orig)
	with := b.inner(r.With)
	if !set || !known(v) || old.text == "" || !known(old.text) || strings.ContainsAny(old.text, "*?[#%") {
		return "", false
	}
	n := 1
	if r.All {
		n = -1
	}
	if len(v)*(1+len(with.text)) > maxText {
		return "", false
	}
	return strings.Replace(v, old.text, with.text, n), true
}

// inner expands a word inside an expansion and walks its code.
func (b *wordBuilder) inner(w *syntax.Word) field {
	f := b.r.text(b.sc, w)
	b.feeds = append(b.feeds, f.feeds...)
	return f
}

func (b *wordBuilder) expansion(p *syntax.ParamExp, v string, set bool) (string, bool) {
	w := b.inner(p.Exp.Word).text
	empty := set && v == ""
	_, here := b.sc.vars[p.Param.Value]
	switch p.Exp.Op {
	case syntax.DefaultUnset, syntax.AssignUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnsetOrNull:
		null := p.Exp.Op == syntax.DefaultUnsetOrNull || p.Exp.Op == syntax.AssignUnsetOrNull
		if set && (!null || !empty) {
			return v, true
		}
		b.guess = b.guess || !here && !positional(p.Param.Value)
		if p.Exp.Op == syntax.AssignUnset || p.Exp.Op == syntax.AssignUnsetOrNull {
			b.sc.set(p.Param.Value, variable{text: w})
		}
		return w, true
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		if !set {
			b.guess = true
			return w, true
		}
		if empty && p.Exp.Op == syntax.AlternateUnsetOrNull {
			return "", true
		}
		return w, true
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		return v, set
	default:
	}
	if !set || !known(v) || !known(w) || strings.ContainsAny(w, "*?[") {
		return "", false
	}
	switch p.Exp.Op {
	case syntax.RemSmallSuffix, syntax.RemLargeSuffix:
		return strings.TrimSuffix(v, w), true
	case syntax.RemSmallPrefix, syntax.RemLargePrefix:
		return strings.TrimPrefix(v, w), true
	case syntax.UpperAll:
		return strings.ToUpper(v), w == ""
	case syntax.LowerAll:
		return strings.ToLower(v), w == ""
	case syntax.LowerFirst:
		return strings.ToLower(v[:min(1, len(v))]) + v[min(1, len(v)):], w == ""
	case syntax.UpperFirst:
		return strings.ToUpper(v[:min(1, len(v))]) + v[min(1, len(v)):], w == ""
	default:
		return "", false
	}
}

func positional(name string) bool { return name != "" && name[0] >= '0' && name[0] <= '9' }

// ansi decodes the escapes of $'...' and, with echo, those of echo -e and printf (\0NNN).
func ansi(s string, echo bool) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case 'a', 'b', 'e', 'E', 'f', 'n', 'r', 't', 'v':
			out.WriteByte("\a\b\x1b\x1b\f\n\r\t\v"[strings.IndexByte("abeEfnrtv", c)])
		case 'x', 'u', 'U':
			n, used := digits(s[i+1:], 16, map[byte]int{'x': 2, 'u': 4, 'U': 8}[c])
			switch {
			case used == 0:
				out.WriteByte('\\')
				out.WriteByte(c)
			case c == 'x':
				out.WriteByte(byte(n))
			default:
				out.WriteRune(rune(n))
			}
			i += used
		case '0', '1', '2', '3', '4', '5', '6', '7':
			most := 3
			if echo && c == '0' {
				most = 4
			}
			n, used := digits(s[i:], 8, most)
			out.WriteByte(byte(n))
			i += used - 1
		case 'c':
			if i+1 < len(s) {
				i++
				out.WriteByte(s[i] & 0x1f)
				if echo {
					return out.String() // \c ends the output of echo
				}
			}
		case '\\', '\'', '"', '?':
			out.WriteByte(c)
		default:
			out.WriteByte('\\')
			out.WriteByte(c)
		}
	}
	return out.String()
}

func digits(s string, base, most int) (n, used int) {
	for used < most && used < len(s) {
		d := strings.IndexByte("0123456789abcdef", s[used]|0x20)
		if s[used] >= '0' && s[used] <= '9' {
			d = int(s[used] - '0')
		}
		if d < 0 || d >= base {
			break
		}
		n = n*base + d
		used++
	}
	return n, used
}
