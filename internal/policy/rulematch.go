package policy

import (
	"strings"
)

// applyRules applies the lists and the rules to one call. A call without words stands for the
// redirections of a construct that is not a program.
func (r *evaluation) applyRules(c *call) {
	r.step(1)
	if len(c.words) == 0 {
		for _, i := range r.p.byGlob {
			if l := &r.p.list[i]; l.programs.empty() {
				r.applyRule(l, c, "")
			}
		}
		return
	}
	name := programName(c.words[0].text)
	spoken := r.checkLists(c, name)
	for _, i := range r.p.byName[name] {
		spoken = r.applyRule(&r.p.list[i], c, name) || spoken
	}
	for _, i := range r.p.byGlob {
		if l := &r.p.list[i]; l.programs.empty() || l.programs.match(name) == yes {
			spoken = r.applyRule(l, c, name) || spoken
		}
	}
	if !spoken && !shellBuiltins[name] {
		r.reportDefault(name, c.at)
	}
}

// checkLists applies Rules.Deny and Rules.Allow and reports whether one of them decided.
func (r *evaluation) checkLists(c *call, name string) bool {
	p := r.p
	if !p.deny.empty() && p.deny.match(name) == yes {
		r.report(finding{action: Deny, class: ClassDenyList, rule: "denylist:" + display(name), program: name,
			reason: "it is on the deny list", at: c.at})
		return true
	}
	if p.allow.empty() {
		return false
	}
	if p.allow.match(name) == yes {
		return true
	}
	if !shellBuiltins[name] {
		r.report(finding{action: Deny, class: ClassAllowList, rule: "allowlist:" + display(name), program: name,
			reason: "it is not on the allow list", at: c.at})
	}
	return true
}

// judgeBuiltin applies the rules to a builtin that the parser has a node for.
func (r *evaluation) judgeBuiltin(name string, at span) {
	r.applyRules(&call{words: []field{{text: name, at: at}}, at: at})
}

// shellBuiltins lists builtins that only change their shell. The code or program that they lead to
// is judged separately.
var shellBuiltins = map[string]bool{
	":": true, ".": true, "[": true, "alias": true, "bg": true, "break": true, "builtin": true, "cd": true,
	"command": true, "continue": true,
	"declare": true, "dirs": true, "eval": true, "exec": true, "exit": true, "export": true, "false": true, "fg": true,
	"getopts": true,
	"hash":    true, "jobs": true, "let": true, "local": true, "mapfile": true, "nameref": true, "popd": true,
	"pushd": true, "read": true,
	"readarray": true, "readonly": true, "return": true, "set": true, "shift": true, "shopt": true, "source": true,
	"test":  true,
	"times": true, "trap": true, "true": true, "type": true, "typeset": true, "umask": true, "unalias": true,
	"unset": true, "wait": true,
}

// applyRule applies one rule to a call and reports whether it matches for sure.
func (r *evaluation) applyRule(l *rule, c *call, name string) bool {
	a, at := r.matchRule(l, c)
	switch a {
	case yes:
		r.reportRule(l, name, at)
		return true
	case maybe:
		if l.Action != Allow {
			r.reportUnknown("whether rule "+l.ID+" matches is known only at run time", name, l.Action, at)
		}
	default:
	}
	return false
}

// matchRule reports whether all conditions of a rule hold for a call, and where.
func (r *evaluation) matchRule(l *rule, c *call) (answer, span) {
	at := c.at
	a := yes
	if len(l.Subcommand)+len(l.Flags)+len(l.Operands) > 0 {
		r.step(1 + len(c.words)/2)
		w := r.split(l, c.args())
		a = r.matchSubcommand(l, &w)
		for i := 0; i < len(l.flags) && a != no; i++ {
			a = and(a, r.matchFlag(l.flags[i], &w))
		}
		if a != no && len(l.operands) > 0 {
			a = and(a, r.matchOperand(l, &w))
		}
	}
	if a != no && len(l.writes) > 0 {
		b := no
		for _, f := range r.writtenFiles(c) {
			r.step(1 + len(f.text)/64)
			m := l.writes.match(f.text)
			if f.guess && m == no {
				m = maybe
			}
			if m > b {
				b = m
				if !r.inNested {
					at = f.at
				}
			}
		}
		a = and(a, b)
	}
	return a, at
}

// splitArgs holds the flags and operands of an argument vector, as one rule sees them.
type splitArgs struct {
	flags    []flag
	operands []field
	unknowns int // number of unknown words that may be flags, operands or absent
}

// flag is one flag ("-r" or "--force") with its value.
type flag struct {
	name  string
	value string
	has   bool
}

func (r *evaluation) split(l *rule, args []field) splitArgs {
	var w splitArgs
	for i := 0; i < len(args); i++ {
		s := args[i].text
		switch {
		case args[i].bare && s != "" && s[0] == anyText:
			w.unknowns++
			w.operands = append(w.operands, args[i])
		case s == "--":
			w.operands = append(w.operands, args[i+1:]...)
			return w
		case len(s) < 2 || s[0] != '-':
			w.operands = append(w.operands, args[i])
		case l.valueFlags[s] && i+1 < len(args):
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

// cluster adds the flags of a word such as "-rf" and returns how many following words are its
// value.
func (w *splitArgs) cluster(l *rule, s string, rest []field) int {
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
			w.unknowns++
			return 0
		}
		if l.valueFlags["-"+short] {
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

// matchSubcommand compares the first operands with Rule.Subcommand and removes them.
func (r *evaluation) matchSubcommand(l *rule, w *splitArgs) answer {
	a := yes
	for i := range l.subcommand {
		if i >= len(w.operands) {
			return no
		}
		m := l.subcommand[i].match(w.operands[i].text)
		if m == no && (w.operands[i].bare || w.unknowns > 0 && i > 0 || w.operands[i].guess) {
			m = maybe
		}
		a = and(a, m)
	}
	if a != no {
		w.operands = w.operands[len(l.subcommand):]
	}
	return a
}

// matchFlag reports whether the command has one spelling of a flag.
func (r *evaluation) matchFlag(group []spelling, w *splitArgs) answer {
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
	if best == no && w.unknowns > 0 {
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
	return and(a, s.value.match(f.value))
}

// maxPath is the kernel's limit on a path, in bytes.
const maxPath = 4096

// matchOperand reports whether an operand matches one of the globs.
func (r *evaluation) matchOperand(l *rule, w *splitArgs) answer {
	best := no
	for _, o := range w.operands {
		r.step(1 + min(len(o.text), maxPath)/32)
		if len(o.text) > maxPath {
			r.step(maxPath / 64)
			o.text = o.text[:maxPath] // longer paths do not exist
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
