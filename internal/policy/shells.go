package policy

import (
	"encoding/base64"
	"strings"
)

// shell is sh, bash and their like: code by -c, a script, or standard input.
func (r *run) shell(sc *scope, c *call) string {
	args := c.args()
	code, stdin := false, false
	i := 0
	for ; i < len(args); i++ {
		s := args[i].text
		if s == "--" || s == "-" {
			i++
			break
		}
		if len(s) < 2 || s[0] != '-' && s[0] != '+' {
			break
		}
		if strings.HasPrefix(s, "--") {
			switch {
			case s == "--rcfile", s == "--init-file", s == "--init-command", s == "-C":
				i++
				if i < len(args) {
					r.sourced(sc, args[i], c)
				}
			case strings.HasPrefix(s, "--command"):
				code = true
				if _, v, has := strings.Cut(s, "="); has {
					return r.code(r.process(sc, c), v, args[i].at)
				}
			case strings.HasPrefix(s, "--rcfile="), strings.HasPrefix(s, "--init-file="):
				f := args[i]
				_, f.text, _ = strings.Cut(s, "=")
				r.sourced(sc, f, c)
			}
			continue
		}
		code = code || s[0] == '-' && strings.Contains(s, "c")
		stdin = stdin || s[0] == '-' && strings.Contains(s, "s")
		if !known(s) {
			r.unknown("a flag of a shell is known only when it runs", programName(c.words[0].text), Deny, c.at)
			code = true
		}
		if last := s[len(s)-1]; last == 'o' || last == 'O' {
			i++
		}
	}
	rest := args[min(i, len(args)):]
	switch {
	case code && len(rest) > 0:
		n := r.process(sc, c)
		if len(rest) > 1 {
			n.zero = rest[1].text
		}
		if len(rest) > 2 {
			n.params = texts(rest[2:])
		}
		return r.code(n, rest[0].text, rest[0].at)
	case code:
		return ""
	case len(rest) > 0 && !stdin:
		return r.scriptFile(sc, rest, c)
	}
	return r.stdinCode(sc, c, rest)
}

// stdinCode is a shell that reads what to run.
func (r *run) stdinCode(sc *scope, c *call, params []field) string {
	if c.stdin == nil {
		r.unknown("the shell takes its code from its input", programName(c.words[0].text), Deny, c.at)
		return string(anyText)
	}
	n := r.process(sc, c)
	n.params = texts(params)
	return r.code(n, *c.stdin, c.at)
}

// scriptFile runs a file: one that the command has made is known, others are
// programs like any other.
func (r *run) scriptFile(sc *scope, words []field, c *call) string {
	f := words[0]
	if isStdin(f.text) {
		return r.stdinCode(sc, c, words[1:])
	}
	if !certain(f.text) {
		r.unknown("which script runs is known only when it runs", programName(c.words[0].text), Deny, c.at)
		return string(anyText)
	}
	if text, ok := r.files[clean(f.text, sc.cwd)]; ok {
		n := r.process(sc, c)
		n.params = texts(words[1:])
		return r.code(n, text, f.at)
	}
	return string(anyText)
}

func isStdin(name string) bool {
	return name == "/dev/stdin" || name == "/dev/fd/0" || name == "/proc/self/fd/0" || name == "-"
}

// sourced is a file that a shell reads first.
func (r *run) sourced(sc *scope, f field, c *call) {
	if text, ok := r.files[clean(f.text, sc.cwd)]; ok {
		r.code(r.process(sc, c), text, f.at)
	} else if isStdin(f.text) {
		r.stdinCode(sc, c, nil)
	} else if !certain(f.text) {
		r.unknown("which file the shell reads is known only when it runs", "", Deny, c.at)
	}
}

// shellTo: eval and source are shells to rules about pipelines.
func (r *run) shellTo(c *call) {
	var feeds []string
	for _, a := range c.args() {
		feeds = append(feeds, a.feeds...)
	}
	r.piped(feeds, []string{"sh"}, c.at)
}

func (r *run) source(sc *scope, c *call) string {
	r.shellTo(c)
	args := c.args()
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return ""
	}
	f := args[0]
	if isStdin(f.text) && f.text != "-" {
		text := string(anyText)
		if c.stdin != nil {
			text = *c.stdin
		}
		return r.code(sc, text, c.at)
	}
	if text, ok := r.files[clean(f.text, sc.cwd)]; ok {
		return r.code(sc, text, f.at)
	}
	if !certain(f.text) {
		r.unknown("which file is read is known only when it runs", "source", Deny, c.at)
	}
	return string(anyText)
}

// builtin is command, builtin and exec.
func (r *run) builtin(sc *scope, name string, c *call) string {
	args := c.args()
	w := wrapper{}
	if name == "exec" {
		w.short = "a"
	}
	i := skipFlags(args, w)
	if name == "command" {
		for _, a := range args[:i] {
			if strings.HasPrefix(a.text, "-") && strings.ContainsAny(a.text, "vV") {
				return string(anyText)
			}
		}
	}
	return r.exec(sc, r.plain(c, i))
}

// env runs a program with other variables.
func (r *run) env(sc *scope, c *call) string {
	args := c.args()
	n := *c
	n.env = map[string]variable{}
	for k, v := range c.env {
		n.env[k] = v
	}
	i := 0
	for ; i < len(args); i++ {
		s := args[i].text
		long := strings.HasPrefix(s, "--")
		switch {
		case s == "--":
			continue
		case s == "-", s == "-i":
			n.bareEnv = true
			continue
		case long && strings.HasPrefix(s, "--split-string="):
			return r.envSplit(sc, &n, s[len("--split-string="):], args[i], args[i+1:])
		case long && len(s) > 3 && abbreviates(s, "--split-string") && i+1 < len(args):
			return r.envSplit(sc, &n, args[i+1].text, args[i+1], args[i+2:])
		case long && len(s) > 3 && abbreviates(s, "--ignore-environment"):
			n.bareEnv = true
			continue
		case long:
			if takesNext(s, wrapper{long: []string{"--unset", "--chdir"}}) {
				i++
			}
			continue
		case len(s) > 1 && s[0] == '-':
			if at := strings.IndexByte(s, 'S'); at > 0 && !strings.ContainsAny(s[:at], "uC") {
				if at+1 < len(s) {
					return r.envSplit(sc, &n, s[at+1:], args[i], args[i+1:])
				}
				if i+1 < len(args) {
					return r.envSplit(sc, &n, args[i+1].text, args[i+1], args[i+2:])
				}
			}
			n.bareEnv = n.bareEnv || strings.Contains(s, "i")
			if takesNext(s, wrapper{short: "uCa"}) {
				i++
			}
			continue
		}
		name, value, ok := strings.Cut(s, "=")
		if !ok || !known(name) {
			break
		}
		r.environment(sc, name, value, args[i].at)
		n.env[name] = variable{text: value, exported: true}
	}
	if i >= len(args) {
		return string(anyText)
	}
	return r.exec(sc, r.plain(&n, i))
}

// abbreviates says whether s is short for a long flag.
func abbreviates(s, flag string) bool { return strings.HasPrefix(flag, s) }

// envSplit is env -S: a string of words, some of which may be env's own.
func (r *run) envSplit(sc *scope, c *call, s string, at field, rest []field) string {
	words := []field{c.words[0]}
	for _, w := range splitWords(s) {
		words = append(words, field{text: w, at: at.at})
	}
	r.step(len(words))
	n := *c
	words = append(words, rest...)
	n.words = words
	if r.nested++; r.nested > maxNested {
		r.limit("it has code within code, too deep")
	}
	defer func() { r.nested-- }()
	return r.env(sc, &n)
}

// splitWords splits by blanks, with quotes; what is left open ends the text.
func splitWords(s string) []string {
	var out []string
	var cur strings.Builder
	has, quote := false, byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(s):
			i++
			has = true
			cur.WriteByte(s[i])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, has = c, true
		case quote == 0 && strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			if has {
				out = append(out, cur.String())
			}
			cur.Reset()
			has = false
		default:
			has = true
			cur.WriteByte(c)
		}
	}
	if has {
		out = append(out, cur.String())
	}
	return out
}

func (r *run) sudo(sc *scope, c *call) string {
	args := c.args()
	w := wrapper{short: "ughprtTUDRCc", long: []string{"--user", "--group", "--host", "--prompt", "--role", "--type", "--chdir", "--chroot", "--close-from", "--other-user"}}
	i := skipFlags(args, w)
	shell := false
	for _, a := range args[:i] {
		shell = shell || len(a.text) > 1 && a.text[0] == '-' && a.text[1] != '-' && strings.ContainsAny(a.text, "si") || a.text == "--shell" || a.text == "--login"
	}
	for i < len(args) {
		name, value, ok := strings.Cut(args[i].text, "=")
		if !ok || strings.Contains(name, "/") {
			break
		}
		r.environment(sc, name, value, args[i].at)
		i++
	}
	if shell {
		if i == len(args) {
			return r.stdinCode(sc, c, nil)
		}
		return r.code(r.process(sc, c), joined(args[i:]), c.at)
	}
	return r.exec(sc, r.plain(c, i))
}

func (r *run) su(sc *scope, c *call) string {
	for i, a := range c.args() {
		s := a.text
		switch {
		case (s == "-c" || s == "--command" || len(s) > 2 && s[0] == '-' && s[1] != '-' && s[len(s)-1] == 'c') && i+2 < len(c.words):
			v := c.words[i+2]
			return r.code(r.process(sc, c), v.text, v.at)
		case strings.HasPrefix(s, "--command="):
			return r.code(r.process(sc, c), s[len("--command="):], a.at)
		case strings.HasPrefix(s, "-c"):
			return r.code(r.process(sc, c), s[2:], a.at)
		}
	}
	if c.stdin != nil {
		return r.stdinCode(sc, c, nil)
	}
	return string(anyText)
}

func (r *run) ssh(sc *scope, c *call) string {
	args := c.args()
	w := wrapper{short: "bcDEeFIiJLlmOopQRSWwB", skip: 1}
	for i, a := range args {
		s := a.text
		if strings.HasPrefix(s, "-o") {
			v := s[2:]
			if v == "" && i+1 < len(args) {
				v = args[i+1].text
			}
			name, code, ok := strings.Cut(v, "=")
			if !ok {
				name, code, _ = strings.Cut(v, " ")
			}
			switch strings.ToLower(name) {
			case "proxycommand", "localcommand", "knownhostscommand":
				r.code(r.process(sc, c), code, a.at)
			}
		}
	}
	if i := skipFlags(args, w); i < len(args) {
		return r.code(newScope(), joined(args[i:]), c.at)
	}
	if c.stdin != nil {
		return r.code(newScope(), *c.stdin, c.at)
	}
	return string(anyText)
}

// codeFlag is script, watch and flock: code by -c, or a program.
func (r *run) codeFlag(sc *scope, name string, c *call) string {
	args := c.args()
	switch name {
	case "watch":
		i := skipFlags(args, wrapper{short: "nqs", long: []string{"--interval", "--equexit"}})
		for _, a := range args[:i] {
			if a.text == "-x" || a.text == "--exec" {
				return r.exec(sc, r.plain(c, i))
			}
		}
		return r.code(r.process(sc, c), joined(args[i:]), c.at)
	case "script":
		for i, a := range args {
			if s := a.text; len(s) > 1 && s[0] == '-' && s[1] != '-' {
				if at := strings.IndexByte(s, 'c'); at > 0 && at+1 < len(s) {
					r.code(r.process(sc, c), s[at+1:], a.at)
				} else if at > 0 && i+1 < len(args) {
					r.code(r.process(sc, c), args[i+1].text, args[i+1].at)
				}
			}
		}
		if v, ok := flagValue(args, "--command"); ok {
			r.code(r.process(sc, c), v.text, v.at)
		}
		if i := skipFlags(args, wrapper{short: "cEIBOTmo", long: []string{"--command"}}); i+1 < len(args) {
			return r.exec(sc, r.plain(c, i+1))
		}
		return string(anyText)
	}
	i := skipFlags(args, wrapper{short: "wE", long: []string{"--wait", "--timeout", "--conflict-exit-code"}, skip: 1})
	if i < len(args) && (args[i].text == "-c" || args[i].text == "--command") && i+1 < len(args) {
		return r.code(r.process(sc, c), args[i+1].text, args[i+1].at)
	}
	if v, ok := flagValue(args[:i], "-c", "--command"); ok {
		r.code(r.process(sc, c), v.text, v.at)
	}
	return r.exec(sc, r.plain(c, i))
}

// produce gives the output of programs that only pass text on.
func (r *run) produce(sc *scope, name string, c *call) string {
	args := c.args()
	switch name {
	case ":", "true":
		return ""
	case "echo":
		return echo(args)
	case "printf":
		return r.printf(sc, args)
	case "tee":
		for _, f := range r.written(c) {
			if c.stdin != nil && certain(f.text) {
				r.setFile(f.text, *c.stdin)
			}
		}
	case "cat":
		out := ""
		operands := 0
		for _, a := range args {
			if len(a.text) > 1 && a.text[0] == '-' {
				if strings.Trim(a.text, "-u") != "" {
					return string(anyText)
				}
				continue
			}
			operands++
			switch {
			case a.text == "-" && c.stdin != nil:
				out = r.join(out, *c.stdin)
			case a.text == "-" || a.bare:
				return string(anyText)
			default:
				out = r.join(out, r.content(a.text, sc))
			}
		}
		if operands > 0 {
			return out
		}
	case "base64":
		if c.stdin != nil && known(*c.stdin) && len(args) == 1 && (args[0].text == "-d" || args[0].text == "--decode" || args[0].text == "-D") {
			if b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(*c.stdin), "")); err == nil {
				return literal(strings.ToValidUTF8(string(b), "\x7f"))
			}
		}
		return string(anyText)
	default:
		return string(anyText)
	}
	if c.stdin != nil {
		return *c.stdin
	}
	return string(anyText)
}

func echo(args []field) string {
	end, escapes := "\n", false
	for len(args) > 0 && len(args[0].text) > 1 && args[0].text[0] == '-' && strings.Trim(args[0].text[1:], "neE") == "" {
		escapes = escapes || strings.Contains(args[0].text, "e")
		if strings.Contains(args[0].text, "n") {
			end = ""
		}
		args = args[1:]
	}
	text := joined(args)
	if escapes && known(text) {
		text = literal(ansi(text, true))
	}
	return text + end
}

// printf fills in a format: %s, %b, %d, %q and %%.
func (r *run) printf(sc *scope, args []field) string {
	if len(args) > 1 && args[0].text == "-v" {
		name := args[1].text
		if v := r.printf(sc, args[2:]); known(name) && name != "" {
			sc.set(name, variable{text: v})
		}
		return ""
	}
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return ""
	}
	if !known(args[0].text) {
		return string(anyText)
	}
	format := args[0].text
	args = args[1:]
	var b strings.Builder
	for first := true; first || len(args) > 0; first = false {
		before := len(args)
		for i := 0; i < len(format); i++ {
			if format[i] != '%' || i+1 == len(format) {
				next := strings.IndexByte(format[i+1:], '%')
				if next < 0 {
					next = len(format) - i - 1
				}
				b.WriteString(literal(ansi(format[i:i+1+next], true)))
				i += next
				continue
			}
			i++
			if format[i] == '%' {
				b.WriteByte('%')
				continue
			}
			arg := ""
			if len(args) > 0 {
				arg, args = args[0].text, args[1:]
			}
			switch format[i] {
			case 's', 'd', 'i', 'u', 'c':
				b.WriteString(arg)
			case 'b':
				b.WriteString(literal(ansi(arg, true)))
			case 'q':
				b.WriteString(quote(arg))
			default:
				return string(anyText)
			}
		}
		r.step(1 + b.Len()/256)
		if b.Len() > maxText {
			return string(anyText)
		}
		if len(args) == before {
			break
		}
	}
	return b.String()
}
