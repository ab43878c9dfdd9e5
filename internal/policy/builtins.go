package policy

import (
	"strings"
)

// stateBuiltin handles builtins that change the state of their shell. It returns false for other
// programs.
func (r *evaluation) stateBuiltin(sc *scope, name string, c *call) bool {
	switch name {
	case "trap":
		r.trap(sc, c)
	case "cd", "pushd", "chdir":
		r.chdir(sc, c)
	case "alias":
		r.alias(sc, c)
	case "unalias":
		sc.aliases = nil
	case "export", "declare", "typeset", "readonly", "local":
		r.declareWords(sc, c)
	case "unset":
		r.unset(sc, c)
	case "set":
		r.set(sc, c)
	case "shift":
		r.shift(sc, c)
	case "read", "getopts":
		r.read(sc, name, c)
	case "mapfile", "readarray":
		r.walkFlagCode(sc, c, 'C')
		r.read(sc, name, c)
	case "compgen":
		r.walkFlagCode(sc, c, 'C')
	case "hash":
		r.walkFlagCode(sc, c, 'p') // hash -p makes a name stand for another program
	default:
		return false
	}
	return true
}

func (r *evaluation) trap(sc *scope, c *call) {
	args := c.args()
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	if len(args) > 1 && args[0].text != "-" && !strings.HasPrefix(args[0].text, "-") {
		r.walkCode(r.fork(sc), args[0].text, args[0].at)
	}
}

// walkFlagCode walks the code that a builtin takes by a one-letter flag.
func (r *evaluation) walkFlagCode(sc *scope, c *call, flag byte) {
	args := c.args()
	for i, a := range args {
		at := strings.IndexByte(a.text, flag)
		if at < 1 || a.text[0] != '-' || a.text[1] == '-' {
			continue
		}
		if a.text = a.text[at+1:]; a.text == "" {
			if i+1 == len(args) {
				return
			}
			a = args[i+1]
		}
		r.walkCode(r.fork(sc), a.text, a.at)
		return
	}
}

// chdir updates the directory of sc.
func (r *evaluation) chdir(sc *scope, c *call) {
	args := c.args()
	i := skipFlags(args, wrapper{})
	switch {
	case len(args) == 0:
		sc.cwd = "~"
	case i >= len(args):
		sc.cwd = string(anyText)
	case args[i].text == "-" || args[i].bare || !certain(args[i].text):
		sc.cwd = string(anyText)
	default:
		sc.cwd = clean(args[i].text, sc.cwd)
		if sc.cwd == "." {
			sc.cwd = ""
		}
	}
}

func (r *evaluation) alias(sc *scope, c *call) {
	for _, a := range c.args() {
		if name, text, ok := strings.Cut(a.text, "="); ok {
			sc.aliases = cloneInto(sc.aliases, name, text)
		}
	}
}

func cloneInto(m map[string]string, k, v string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[k] = v
	return m
}

// declareWords handles export and similar builtins where the parser did not recognise them: after
// command or builtin, or named by a variable.
func (r *evaluation) declareWords(sc *scope, c *call) {
	for _, a := range c.args() {
		name, text, ok := strings.Cut(a.text, "=")
		switch {
		case strings.HasPrefix(a.text, "-"):
		case ok && known(name):
			r.walkEnvCode(name, text, a.at)
			sc.set(name, variable{text: text, exported: true})
		default:
			if v, set := sc.vars[name]; set {
				v.exported = true
				sc.set(name, v)
			}
		}
	}
}

func (r *evaluation) unset(sc *scope, c *call) {
	for _, a := range c.args() {
		switch {
		case a.text == "IFS":
			delete(sc.vars, "IFS")
			sc.ifs = " \t\n"
		case known(a.text) && !strings.HasPrefix(a.text, "-"):
			sc.set(a.text, variable{})
			delete(sc.funcs, a.text)
		}
	}
}

func (r *evaluation) set(sc *scope, c *call) {
	args := c.args()
	for i, a := range args {
		switch {
		case a.text == "--":
			sc.params = fieldTexts(args[i+1:])
			return
		case a.text == "-a" || a.text == "-o" && i+1 < len(args) && args[i+1].text == "allexport":
			sc.exports = true
		case !strings.HasPrefix(a.text, "-") && !strings.HasPrefix(a.text, "+") &&
			(i == 0 || args[i-1].text != "-o" && args[i-1].text != "+o"):
			sc.params = fieldTexts(args[i:])
			return
		}
	}
}

func (r *evaluation) shift(sc *scope, c *call) {
	n := 1
	if len(c.words) > 1 {
		if n = len(sc.params); c.words[1].text != "" && c.words[1].text[0] >= '0' && c.words[1].text[0] <= '9' {
			n = 0
			for _, d := range c.words[1].text {
				n = min(n*10+int(d-'0'), len(sc.params))
			}
		}
	}
	sc.params = sc.params[min(max(n, 0), len(sc.params)):]
}

// read sets variables from standard input, if it is known.
func (r *evaluation) read(sc *scope, name string, c *call) {
	text := string(anyText)
	if c.stdin != nil && name == "read" {
		text, _, _ = strings.Cut(*c.stdin, "\n")
	}
	args := c.args()
	var names []string
	list := name != "read"
	for i := 0; i < len(args); i++ {
		s := args[i].text
		switch {
		case len(s) > 1 && s[0] == '-':
			if strings.Contains(s, "a") && name == "read" {
				list = true
				continue
			}
			if takesNext(s, wrapper{short: "dinNptuOsC"}) && s != "-s" {
				i++
			}
		case known(s) && s != "":
			names = append(names, s)
		}
	}
	if len(names) == 0 {
		names = []string{"REPLY", "MAPFILE"}
	}
	for i, n := range names {
		v := strings.TrimLeft(text, " \t")
		if i+1 < len(names) && certain(text) {
			v, text, _ = strings.Cut(v, " ")
		} else {
			v = strings.TrimSpace(v)
		}
		if list {
			sc.set(n, variable{isList: true, list: []string{string(anyText)}})
			if name == "read" && known(text) {
				sc.set(n, variable{isList: true, list: strings.Fields(text)})
			}
			continue
		}
		sc.set(n, variable{text: v})
	}
}

// walkEnvCode walks the values of variables that make programs run code.
func (r *evaluation) walkEnvCode(name, value string, at span) {
	switch name {
	case "BASH_ENV", "ENV":
		if text, ok := r.files[value]; ok {
			r.walkCode(newScope(), text, at)
		}
		return
	case "PROMPT_COMMAND", "PAGER", "GIT_PAGER", "MANPAGER", "EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR",
		"GIT_SSH_COMMAND", "GIT_SSH",
		"GIT_EXTERNAL_DIFF", "GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS", "GIT_PROXY_COMMAND", "BROWSER", "RSYNC_RSH",
		"TAR_OPTIONS":
	case "LESSOPEN", "LESSCLOSE":
		value = strings.TrimLeft(value, "|-")
	default:
		return
	}
	if value != "" && certain(value) {
		r.walkCode(newScope(), value, at)
	}
}
