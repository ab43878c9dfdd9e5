package policy

import (
	"strings"
)

// judge asks the lists and the rules about one call. A call without words is a
// redirection of something that is no program.
func (r *run) judge(c *call) {
	r.step(1)
	if len(c.words) == 0 {
		for _, i := range r.p.byGlob {
			if l := &r.p.list[i]; l.programs.empty() {
				r.apply(l, c, "")
			}
		}
		return
	}
	name := programName(c.words[0].text)
	spoken := r.lists(c, name)
	for _, i := range r.p.byName[name] {
		spoken = r.apply(&r.p.list[i], c, name) || spoken
	}
	for _, i := range r.p.byGlob {
		if l := &r.p.list[i]; l.programs.empty() || l.programs.match(name) == yes {
			spoken = r.apply(l, c, name) || spoken
		}
	}
	if !spoken && !neutral[name] {
		r.byDefault(name, c.at)
	}
}

// lists asks Deny and Allow, and says whether one of them spoke.
func (r *run) lists(c *call, name string) bool {
	p := r.p
	if !p.deny.empty() && p.deny.match(name) == yes {
		r.report(finding{action: Deny, class: ClassDenyList, rule: "denylist:" + show(name), program: name, reason: "it is on the deny list", at: c.at})
		return true
	}
	if p.allow.empty() {
		return false
	}
	if p.allow.match(name) == yes {
		return true
	}
	if !neutral[name] {
		r.report(finding{action: Deny, class: ClassAllowList, rule: "allowlist:" + show(name), program: name, reason: "it is not on the allow list", at: c.at})
	}
	return true
}

// judgeBuiltin judges a builtin that the grammar knows.
func (r *run) judgeBuiltin(name string, at span) {
	r.judge(&call{words: []field{{text: name, at: at}}, at: at})
}

// neutral are builtins that run no program of their own and change nothing but
// their shell: what they lead to is judged by itself.
var neutral = map[string]bool{
	":": true, ".": true, "[": true, "alias": true, "bg": true, "break": true, "builtin": true, "cd": true, "command": true, "continue": true,
	"declare": true, "dirs": true, "eval": true, "exec": true, "exit": true, "export": true, "false": true, "fg": true, "getopts": true,
	"hash": true, "jobs": true, "let": true, "local": true, "mapfile": true, "nameref": true, "popd": true, "pushd": true, "read": true,
	"readarray": true, "readonly": true, "return": true, "set": true, "shift": true, "shopt": true, "source": true, "test": true,
	"times": true, "trap": true, "true": true, "type": true, "typeset": true, "umask": true, "unalias": true, "unset": true, "wait": true,
}

// apply asks one rule and says whether it spoke.
func (r *run) apply(l *rule, c *call, name string) bool {
	a, at := r.holds(l, c)
	switch a {
	case yes:
		r.rule(l, name, at)
		return true
	case maybe:
		if l.Action != Allow {
			r.unknown("whether the rule "+l.ID+" holds is known only when it runs", name, l.Action, at)
		}
	}
	return false
}

// holds says whether all conditions of a rule hold for a call, and where.
func (r *run) holds(l *rule, c *call) (answer, span) {
	at := c.at
	a := yes
	if len(l.Subcommand)+len(l.Flags)+len(l.Operands) > 0 {
		r.step(1 + len(c.words)/2)
		w := r.split(l, c.args())
		a = r.subcommand(l, &w)
		for i := 0; i < len(l.flags) && a != no; i++ {
			a = both(a, r.flag(l.flags[i], &w))
		}
		if a != no && len(l.operands) > 0 {
			a = both(a, r.operand(l, &w))
		}
	}
	if a != no && len(l.writes) > 0 {
		b := no
		for _, f := range r.written(c) {
			r.step(1 + len(f.text)/64)
			m := l.writes.match(f.text)
			if f.guess && m == no {
				m = maybe
			}
			if m > b {
				b = m
				if !r.fixed {
					at = f.at
				}
			}
		}
		a = both(a, b)
	}
	return a, at
}

// split is an argument vector in its parts, by a rule's view of it.
type split struct {
	flags    []flag
	operands []field
	loose    int // unknown words that may be flags, operands or nothing
}

// flag is one flag: "-r" or "--force", with the value that stands with it.
type flag struct {
	name  string
	value string
	has   bool
}

func (r *run) split(l *rule, args []field) split {
	var w split
	for i := 0; i < len(args); i++ {
		s := args[i].text
		switch {
		case args[i].bare && s != "" && s[0] == anyText:
			w.loose++
			w.operands = append(w.operands, args[i])
		case s == "--":
			w.operands = append(w.operands, args[i+1:]...)
			return w
		case len(s) < 2 || s[0] != '-':
			w.operands = append(w.operands, args[i])
		case l.values[s] && i+1 < len(args):
			w.flags = append(w.flags, flag{s, args[i+1].text, true})
			i++
		case s[1] == '-':
			name, value, has := strings.Cut(s, "=")
			w.flags = append(w.flags, flag{name, value, has})
		default:
			i += w.cluster(l, s, args[i+1:])
		}
	}
	return w
}

// cluster takes "-rf", and says how many words after it are its value.
func (w *split) cluster(l *rule, s string, rest []field) int {
	name, value, has := strings.Cut(s, "=")
	w.flags = append(w.flags, flag{name, value, has})
	var seen [256]bool
	for i := 1; i < len(s); i++ {
		if seen[s[i]] {
			continue
		}
		seen[s[i]] = true
		short := s[i : i+1]
		if s[i] <= anyByte {
			w.loose++
			return 0
		}
		if l.values["-"+short] {
			if i+1 < len(s) {
				w.flags = append(w.flags, flag{"-" + short, s[i+1:], true})
			} else if len(rest) > 0 {
				w.flags = append(w.flags, flag{"-" + short, rest[0].text, true})
				return 1
			}
			return 0
		}
		if len(s) > 2 {
			w.flags = append(w.flags, flag{name: "-" + short})
		}
	}
	return 0
}

// subcommand compares the first operands.
func (r *run) subcommand(l *rule, w *split) answer {
	a := yes
	for i := range l.subcommand {
		if i >= len(w.operands) {
			return no
		}
		m := l.subcommand[i].match(w.operands[i].text)
		if m == no && (w.operands[i].bare || w.loose > 0 && i > 0 || w.operands[i].guess) {
			m = maybe
		}
		a = both(a, m)
	}
	if a != no {
		w.operands = w.operands[len(l.subcommand):]
	}
	return a
}

// flag looks for one of the spellings of a flag.
func (r *run) flag(group []spelling, w *split) answer {
	best := no
	for i := range group {
		s := &group[i]
		if s.operand {
			for _, o := range w.operands {
				best = max(best, s.glob.match(o.text))
			}
			continue
		}
		for j := range w.flags {
			best = max(best, s.match(&w.flags[j]))
		}
	}
	if best == no && w.loose > 0 {
		return maybe
	}
	return best
}

// match compares a spelling with a flag of the command.
func (s *spelling) match(f *flag) answer {
	name := f.name == s.text
	if !name && strings.HasPrefix(s.text, "--") && len(f.name) > 2 && strings.HasPrefix(s.text, f.name) {
		name = true
	}
	a := no
	switch {
	case name:
		a = yes
	case !known(f.name):
		text := f.name[:strings.IndexAny(f.name, marks)]
		if strings.HasPrefix(s.text, text) || strings.HasPrefix(text, s.text) {
			a = maybe
		}
	}
	if a == no || s.value == nil {
		return a
	}
	return both(a, s.value.match(f.value))
}

// maxPath is the system's.
const maxPath = 4096

// operand looks for an operand that one of the globs matches.
func (r *run) operand(l *rule, w *split) answer {
	best := no
	for _, o := range w.operands {
		r.step(1 + min(len(o.text), maxPath)/32)
		if len(o.text) > maxPath {
			r.step(maxPath / 64)
			o.text = o.text[:maxPath] // no path is longer
		}
		m := l.operands.match(o.text)
		if m != yes {
			if p := clean(o.text, r.cwd); p != o.text {
				m = max(m, l.operands.match(p))
			}
		}
		if m == no && (o.bare || o.guess) {
			m = maybe
		}
		if best = max(best, m); best == yes {
			return yes
		}
	}
	return best
}
