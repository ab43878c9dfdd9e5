package policy

import (
	"strings"
)

// inlineFlags maps interpreters to the one-letter flags that take code.
var inlineFlags = map[string]string{"python": "c", "perl": "eE", "ruby": "e", "node": "ep", "php": "rBRE", "lua": "e",
	"Rscript": "e", "osascript": "e"}

// interpreter walks code given to an interpreter. It does not parse the language; it judges the
// texts that the code passes to a shell.
func (r *evaluation) interpreter(sc *scope, name string, c *call) {
	args := c.args()
	flags := inlineFlags[name]
	inline := false
	for i, a := range args {
		s := a.text
		switch {
		case name == "awk" || name == "sed":
			r.walkInlineCode(sc, name, s, c)
			inline = true
		case len(s) > 1 && s[0] == '-' && s[1] != '-' && flags != "":
			at := strings.IndexAny(s, flags)
			if at < 1 || name == "python" && strings.ContainsAny(s[:at], "WXm") {
				continue
			}
			inline = true
			if at+1 < len(s) && s[at+1] > ' ' && name != "perl" && name != "ruby" {
				r.walkInlineCode(sc, name, s[at+1:], c)
			}
			if i+1 < len(args) {
				r.walkInlineCode(sc, name, args[i+1].text, c)
			}
		case (s == "--eval" || s == "--print" || s == "eval") && name == "node" && i+1 < len(args):
			inline = true
			r.walkInlineCode(sc, name, args[i+1].text, c)
		case strings.HasPrefix(s, "--eval="), strings.HasPrefix(s, "--print="):
			inline = true
			r.walkInlineCode(sc, name, s, c)
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
				r.reportUnknown("the code to run is known only at run time", name, Deny, c.at)
			}
			r.walkInlineCode(sc, name, text, c)
		}
	case c.stdin != nil && !hasModule(args):
		if !certain(*c.stdin) {
			r.reportUnknown("the code is the output of another program", name, Deny, c.at)
		}
		r.walkInlineCode(sc, name, *c.stdin, c)
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

// callWords lists words of programming languages that run a program.
var callWords = []string{
	"system", "popen", "subprocess", "spawn", "exec", "child_process", "qx", "`", "shell", "Command", "pty",
	"getline", "|", "passthru", "proc_open", "Open3", "!",
}

// walkInlineCode handles code of an interpreter. If it contains one of callWords, every string
// literal is judged as a command. All other code is left to the rules about the interpreter.
func (r *evaluation) walkInlineCode(sc *scope, name, code string, c *call) {
	r.step(1 + len(code)/32)
	if name == "sed" {
		r.sed(sc, code, c)
		return
	}
	found := false
	for _, w := range callWords {
		if w == "!" && name != "vim" || w == "|" && name != "awk" {
			continue
		}
		found = found || strings.Contains(code, w)
	}
	if !found {
		return
	}
	list := stringLiterals(code)
	r.step(len(list))
	var argv []field
	for _, s := range list[:min(len(list), maxForEach)] {
		if strings.TrimSpace(s) == "" || len(s) > 4096 {
			continue
		}
		argv = append(argv, field{text: s, at: c.at})
		r.tryCode(sc, s, c)
	}
	if len(argv) > 1 {
		// A list such as ["rm", "-rf", "/"].
		for i := range argv {
			if !strings.ContainsAny(argv[i].text, " \t") {
				r.speculative(func() { r.exec(r.newProcess(sc, c), &call{words: argv[i:], at: c.at, direct: true}) })
				break
			}
		}
	}
}

// tryCode walks text that may be shell code.
func (r *evaluation) tryCode(sc *scope, text string, c *call) {
	r.speculative(func() { r.walkCode(r.newProcess(sc, c), text, c.at) })
}

// speculative runs look on text that may not be code. Only findings by rules, the deny list and
// limits count, not unknown text or programs outside the allow list.
func (r *evaluation) speculative(look func()) {
	best, found, trace := r.best, r.found, r.trace
	r.best, r.found = finding{}, false
	defer func() {
		got, any := r.best, r.found
		r.best, r.found, r.trace = best, found, trace
		if any && got.action != Allow && (got.class == ClassRule || got.class == ClassDenyList ||
			got.class == ClassLimit) {
			r.report(got)
		}
	}()
	look()
}

// stringLiterals returns the string literals in code of any language.
func stringLiterals(code string) []string {
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

// sed finds the e command and flag of GNU sed, such as "1e rm x".
func (r *evaluation) sed(sc *scope, code string, c *call) {
	for _, line := range strings.FieldsFunc(code, func(c rune) bool { return c == '\n' || c == ';' || c == '{' }) {
		line = strings.TrimLeft(line, "0123456789$, \t!+~")
		if strings.HasPrefix(line, "/") {
			if end := strings.IndexByte(line[1:], '/'); end >= 0 {
				line = strings.TrimLeft(line[end+2:], " \t")
			}
		}
		if text, ok := strings.CutPrefix(line, "e "); ok {
			r.tryCode(sc, text, c)
		}
		if strings.HasPrefix(line, "s") && len(line) > 3 {
			body := strings.ReplaceAll(line[2:], "\\"+line[1:2], "\x7f")
			if parts := strings.Split(body, line[1:2]); len(parts) == 3 && strings.Contains(parts[2], "e") {
				r.tryCode(sc, strings.ReplaceAll(parts[1], "\x7f", line[1:2]), c)
			}
		}
	}
}
