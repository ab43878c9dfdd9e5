package policy

import (
	"strings"
)

// shell handles sh, bash and similar programs: code by -c, a script file, or standard input.
func (r *evaluation) shell(sc *scope, c *call) string {
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
					r.initFile(sc, args[i], c)
				}
			case strings.HasPrefix(s, "--command"):
				code = true
				if _, v, has := strings.Cut(s, "="); has {
					return r.walkCode(r.newProcess(sc, c), v, args[i].at)
				}
			case strings.HasPrefix(s, "--rcfile="), strings.HasPrefix(s, "--init-file="):
				f := args[i]
				_, f.text, _ = strings.Cut(s, "=")
				r.initFile(sc, f, c)
			}
			continue
		}
		code = code || s[0] == '-' && strings.Contains(s, "c")
		stdin = stdin || s[0] == '-' && strings.Contains(s, "s")
		if !known(s) {
			r.reportUnknown("a flag of a shell is known only at run time", programName(c.words[0].text), Deny, c.at)
			code = true
		}
		if last := s[len(s)-1]; last == 'o' || last == 'O' {
			i++
		}
	}
	rest := args[min(i, len(args)):]
	switch {
	case code && len(rest) > 0:
		n := r.newProcess(sc, c)
		if len(rest) > 1 {
			n.zero = rest[1].text
		}
		if len(rest) > 2 {
			n.params = fieldTexts(rest[2:])
		}
		return r.walkCode(n, rest[0].text, rest[0].at)
	case code:
		return ""
	case len(rest) > 0 && !stdin:
		return r.scriptFile(sc, rest, c)
	}
	return r.codeFromStdin(sc, c, rest)
}

// codeFromStdin handles a shell that reads its code from standard input.
func (r *evaluation) codeFromStdin(sc *scope, c *call, params []field) string {
	if c.stdin == nil {
		r.reportUnknown("the shell reads its code from standard input", programName(c.words[0].text), Deny, c.at)
		return string(anyText)
	}
	n := r.newProcess(sc, c)
	n.params = fieldTexts(params)
	return r.walkCode(n, *c.stdin, c.at)
}

// scriptFile walks a script. Only the content of files that the command itself writes is known; any
// other script counts as an ordinary program.
func (r *evaluation) scriptFile(sc *scope, words []field, c *call) string {
	f := words[0]
	if isStdin(f.text) {
		return r.codeFromStdin(sc, c, words[1:])
	}
	if !certain(f.text) {
		r.reportUnknown("which script runs is known only at run time", programName(c.words[0].text), Deny, c.at)
		return string(anyText)
	}
	if text, ok := r.files[clean(f.text, sc.cwd)]; ok {
		n := r.newProcess(sc, c)
		n.params = fieldTexts(words[1:])
		return r.walkCode(n, text, f.at)
	}
	return string(anyText)
}

func isStdin(name string) bool {
	return name == "/dev/stdin" || name == "/dev/fd/0" || name == "/proc/self/fd/0" || name == "-"
}

// initFile walks a file that a shell reads before its code.
func (r *evaluation) initFile(sc *scope, f field, c *call) {
	if text, ok := r.files[clean(f.text, sc.cwd)]; ok {
		r.walkCode(r.newProcess(sc, c), text, f.at)
	} else if isStdin(f.text) {
		r.codeFromStdin(sc, c, nil)
	} else if !certain(f.text) {
		r.reportUnknown("which file the shell reads is known only at run time", "", Deny, c.at)
	}
}

// reportShellFeeds applies pipe rules to eval and source, which run the text they get as a shell
// does.
func (r *evaluation) reportShellFeeds(c *call) {
	var feeds []string
	for _, a := range c.args() {
		feeds = append(feeds, a.feeds...)
	}
	r.reportPipe(feeds, []string{"sh"}, c.at)
}

func (r *evaluation) source(sc *scope, c *call) string {
	r.reportShellFeeds(c)
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
		return r.walkCode(sc, text, c.at)
	}
	if text, ok := r.files[clean(f.text, sc.cwd)]; ok {
		return r.walkCode(sc, text, f.at)
	}
	if !certain(f.text) {
		r.reportUnknown("which file is read is known only at run time", "source", Deny, c.at)
	}
	return string(anyText)
}

// builtin handles command, builtin and exec.
func (r *evaluation) builtin(sc *scope, name string, c *call) string {
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
	return r.exec(sc, r.directCall(c, i))
}

// env handles a program that runs with other variables.
func (r *evaluation) env(sc *scope, c *call) string {
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
		r.walkEnvCode(name, value, args[i].at)
		n.env[name] = variable{text: value, exported: true}
	}
	if i >= len(args) {
		return string(anyText)
	}
	return r.exec(sc, r.directCall(&n, i))
}

// abbreviates reports whether s is a prefix of a long flag.
func abbreviates(s, flag string) bool { return strings.HasPrefix(flag, s) }

// envSplit handles env -S: a string of words, which may contain arguments of env.
func (r *evaluation) envSplit(sc *scope, c *call, s string, at field, rest []field) string {
	split := splitWords(s)
	words := make([]field, 0, 1+len(split)+len(rest))
	words = append(words, c.words[0])
	for _, w := range split {
		words = append(words, field{text: w, at: at.at})
	}
	r.step(len(words))
	n := *c
	words = append(words, rest...)
	n.words = words
	if r.nested++; r.nested > maxNested {
		r.limit("code within code is nested too deeply")
	}
	defer func() { r.nested-- }()
	return r.env(sc, &n)
}

// splitWords splits s at blanks outside quotes. An open quote extends to the end.
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

func (r *evaluation) sudo(sc *scope, c *call) string {
	args := c.args()
	w := wrapper{short: "ughprtTUDRCc", long: []string{"--user", "--group", "--host", "--prompt", "--role", "--type",
		"--chdir", "--chroot", "--close-from", "--other-user"}}
	i := skipFlags(args, w)
	shell := false
	for _, a := range args[:i] {
		shell = shell || len(a.text) > 1 && a.text[0] == '-' && a.text[1] != '-' && strings.ContainsAny(a.text, "si") ||
			a.text == "--shell" || a.text == "--login"
	}
	for i < len(args) {
		name, value, ok := strings.Cut(args[i].text, "=")
		if !ok || strings.Contains(name, "/") {
			break
		}
		r.walkEnvCode(name, value, args[i].at)
		i++
	}
	if shell {
		if i == len(args) {
			return r.codeFromStdin(sc, c, nil)
		}
		return r.walkCode(r.newProcess(sc, c), joined(args[i:]), c.at)
	}
	return r.exec(sc, r.directCall(c, i))
}

func (r *evaluation) su(sc *scope, c *call) string {
	for i, a := range c.args() {
		s := a.text
		switch {
		case (s == "-c" || s == "--command" || len(s) > 2 && s[0] == '-' && s[1] != '-' && s[len(s)-1] == 'c') &&
			i+2 < len(c.words):
			v := c.words[i+2]
			return r.walkCode(r.newProcess(sc, c), v.text, v.at)
		case strings.HasPrefix(s, "--command="):
			return r.walkCode(r.newProcess(sc, c), s[len("--command="):], a.at)
		case strings.HasPrefix(s, "-c"):
			return r.walkCode(r.newProcess(sc, c), s[2:], a.at)
		}
	}
	if c.stdin != nil {
		return r.codeFromStdin(sc, c, nil)
	}
	return string(anyText)
}

func (r *evaluation) ssh(sc *scope, c *call) string {
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
				r.walkCode(r.newProcess(sc, c), code, a.at)
			}
		}
	}
	if i := skipFlags(args, w); i < len(args) {
		return r.walkCode(newScope(), joined(args[i:]), c.at)
	}
	if c.stdin != nil {
		return r.walkCode(newScope(), *c.stdin, c.at)
	}
	return string(anyText)
}

// commandFlag handles script, watch and flock: code by -c, or a program.
func (r *evaluation) commandFlag(sc *scope, name string, c *call) string {
	args := c.args()
	switch name {
	case "watch":
		i := skipFlags(args, wrapper{short: "nqs", long: []string{"--interval", "--equexit"}})
		for _, a := range args[:i] {
			if a.text == "-x" || a.text == "--exec" {
				return r.exec(sc, r.directCall(c, i))
			}
		}
		return r.walkCode(r.newProcess(sc, c), joined(args[i:]), c.at)
	case "script":
		for i, a := range args {
			if s := a.text; len(s) > 1 && s[0] == '-' && s[1] != '-' {
				if at := strings.IndexByte(s, 'c'); at > 0 && at+1 < len(s) {
					r.walkCode(r.newProcess(sc, c), s[at+1:], a.at)
				} else if at > 0 && i+1 < len(args) {
					r.walkCode(r.newProcess(sc, c), args[i+1].text, args[i+1].at)
				}
			}
		}
		if v, ok := flagValue(args, "--command"); ok {
			r.walkCode(r.newProcess(sc, c), v.text, v.at)
		}
		if i := skipFlags(args, wrapper{short: "cEIBOTmo", long: []string{"--command"}}); i+1 < len(args) {
			return r.exec(sc, r.directCall(c, i+1))
		}
		return string(anyText)
	}
	i := skipFlags(args, wrapper{short: "wE", long: []string{"--wait", "--timeout", "--conflict-exit-code"}, skip: 1})
	if i < len(args) && (args[i].text == "-c" || args[i].text == "--command") && i+1 < len(args) {
		return r.walkCode(r.newProcess(sc, c), args[i+1].text, args[i+1].at)
	}
	if v, ok := flagValue(args[:i], "-c", "--command"); ok {
		r.walkCode(r.newProcess(sc, c), v.text, v.at)
	}
	return r.exec(sc, r.directCall(c, i))
}
