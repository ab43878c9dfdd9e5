package policy

import (
	"strings"
)

// inlineFlags are the flags by which interpreters take code.
var inlineFlags = map[string]string{"python": "c", "perl": "eE", "ruby": "e", "node": "ep", "php": "rBRE", "lua": "e", "Rscript": "e", "osascript": "e"}

// interpreter looks into inline code for what it would have a shell run. The
// program is known, its code is not understood: texts that it hands on are.
func (r *run) interpreter(sc *scope, name string, c *call) {
	args := c.args()
	flags := inlineFlags[name]
	inline := false
	for i, a := range args {
		s := a.text
		switch {
		case name == "awk" || name == "sed":
			r.inline(sc, name, s, c)
			inline = true
		case len(s) > 1 && s[0] == '-' && s[1] != '-' && flags != "":
			at := strings.IndexAny(s, flags)
			if at < 1 || name == "python" && strings.ContainsAny(s[:at], "WXm") {
				continue
			}
			inline = true
			if at+1 < len(s) && s[at+1] > ' ' && name != "perl" && name != "ruby" {
				r.inline(sc, name, s[at+1:], c)
			}
			if i+1 < len(args) {
				r.inline(sc, name, args[i+1].text, c)
			}
		case (s == "--eval" || s == "--print" || s == "eval") && name == "node" && i+1 < len(args):
			inline = true
			r.inline(sc, name, args[i+1].text, c)
		case strings.HasPrefix(s, "--eval="), strings.HasPrefix(s, "--print="):
			inline = true
			r.inline(sc, name, s, c)
		}
	}
	if name == "awk" || name == "sed" || inline {
		return
	}
	operand := skipFlags(args, wrapper{short: "WXmI"})
	switch {
	case operand < len(args) && !isStdin(args[operand].text):
		if text, ok := r.files[clean(args[operand].text, sc.cwd)]; ok {
			if !certain(text) {
				r.unknown("the code is made when it runs", name, Deny, c.at)
			}
			r.inline(sc, name, text, c)
		}
	case c.stdin != nil && !hasModule(args):
		if !certain(*c.stdin) {
			r.unknown("the code comes from what runs before", name, Deny, c.at)
		}
		r.inline(sc, name, *c.stdin, c)
	}
}

func hasModule(args []field) bool {
	for _, a := range args {
		if strings.HasPrefix(a.text, "-m") || a.text == "--version" || a.text == "-V" {
			return true
		}
	}
	return false
}

// calls are words of interpreters by which code runs a program.
var calls = []string{
	"system", "popen", "subprocess", "spawn", "exec", "child_process", "qx", "`", "shell", "Command", "pty", "getline", "|", "passthru", "proc_open", "Open3", "!",
}

// inline looks at the code of an interpreter: where it calls a program, every
// text in it is looked at as a command. What is not understood is left to the
// rules about the interpreter itself.
func (r *run) inline(sc *scope, name, code string, c *call) {
	r.step(1 + len(code)/32)
	if name == "sed" {
		r.sed(sc, code, c)
		return
	}
	found := false
	for _, w := range calls {
		if w == "!" && name != "vim" || w == "|" && name != "awk" {
			continue
		}
		found = found || strings.Contains(code, w)
	}
	if !found {
		return
	}
	list := quoted(code)
	r.step(len(list))
	var argv []field
	for _, s := range list[:min(len(list), maxForEach)] {
		if strings.TrimSpace(s) == "" || len(s) > 4096 {
			continue
		}
		argv = append(argv, field{text: s, at: c.at})
		r.maybeCode(sc, s, c)
	}
	if len(argv) > 1 {
		// ["rm", "-rf", "/"]
		for i := range argv {
			if !strings.ContainsAny(argv[i].text, " \t") {
				r.mild(func() { r.exec(r.process(sc, c), &call{words: argv[i:], at: c.at, plain: true}) })
				break
			}
		}
	}
}

// maybeCode looks at a text that may be code.
func (r *run) maybeCode(sc *scope, text string, c *call) {
	r.mild(func() { r.code(r.process(sc, c), text, c.at) })
}

// mild looks at what may not be code at all: only what rules and lists refuse
// in it counts, not what is unknown or on no list.
func (r *run) mild(look func()) {
	best, found, trace := r.best, r.any, r.trace
	r.best, r.any = finding{}, false
	defer func() {
		got, any := r.best, r.any
		r.best, r.any, r.trace = best, found, trace
		if any && got.action != Allow && (got.class == ClassRule || got.class == ClassDenyList || got.class == ClassLimit) {
			r.report(got)
		}
	}()
	look()
}

// quoted finds the string literals of a text, in any of the usual quotes.
func quoted(code string) []string {
	var out []string
	for i := 0; i < len(code); i++ {
		q := code[i]
		if strings.HasPrefix(code[i:], "qx") && i+3 < len(code) && strings.IndexByte("({[/|!", code[i+2]) >= 0 {
			closing := map[byte]byte{'(': ')', '{': '}', '[': ']'}[code[i+2]]
			if closing == 0 {
				closing = code[i+2]
			}
			if end := strings.IndexByte(code[i+3:], closing); end >= 0 {
				out = append(out, code[i+3:i+3+end])
				i += end + 3
				continue
			}
		}
		if q != '\'' && q != '"' && q != '`' {
			continue
		}
		var s strings.Builder
		j := i + 1
		for ; j < len(code) && code[j] != q; j++ {
			if code[j] == '\\' && j+1 < len(code) {
				j++
				if code[j] == 'x' {
					if n, used := digits(code[j+1:], 16, 2); used == 2 {
						s.WriteString(literal(string(rune(n))))
						j += 2
						continue
					}
				}
			}
			s.WriteByte(code[j])
		}
		out = append(out, s.String())
		if len(out) >= maxBraces {
			return out
		}
		i = j
	}
	return out
}

// sed looks for the e command of GNU sed: "1e rm x".
func (r *run) sed(sc *scope, code string, c *call) {
	for _, line := range strings.FieldsFunc(code, func(c rune) bool { return c == '\n' || c == ';' || c == '{' }) {
		line = strings.TrimLeft(line, "0123456789$, \t!+~")
		if strings.HasPrefix(line, "/") {
			if end := strings.IndexByte(line[1:], '/'); end >= 0 {
				line = strings.TrimLeft(line[end+2:], " \t")
			}
		}
		if text, ok := strings.CutPrefix(line, "e "); ok {
			r.maybeCode(sc, text, c)
		}
		if strings.HasPrefix(line, "s") && len(line) > 3 {
			body := strings.ReplaceAll(line[2:], "\\"+line[1:2], "\x7f")
			if parts := strings.Split(body, line[1:2]); len(parts) == 3 && strings.Contains(parts[2], "e") {
				r.maybeCode(sc, strings.ReplaceAll(parts[1], "\x7f", line[1:2]), c)
			}
		}
	}
}
