package policy

import (
	"strings"
)

func (r *run) trap(sc *scope, c *call) {
	args := c.args()
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	if len(args) > 1 && args[0].text != "-" && !strings.HasPrefix(args[0].text, "-") {
		r.code(r.fork(sc), args[0].text, args[0].at)
	}
}

// given looks at the code that a builtin gets by a flag of one letter.
func (r *run) given(sc *scope, c *call, flag byte) {
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
		r.code(r.fork(sc), a.text, a.at)
		return
	}
}

func (r *run) chdir(sc *scope, c *call) {
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

func (r *run) alias(sc *scope, c *call) {
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

// declareWords is export and its like where the grammar did not know them:
// behind command or builtin, or named by a variable.
func (r *run) declareWords(sc *scope, c *call) {
	for _, a := range c.args() {
		name, text, ok := strings.Cut(a.text, "=")
		switch {
		case strings.HasPrefix(a.text, "-"):
		case ok && known(name):
			r.environment(sc, name, text, a.at)
			sc.set(name, variable{text: text, exported: true})
		default:
			if v, set := sc.vars[name]; set {
				v.exported = true
				sc.set(name, v)
			}
		}
	}
}

func (r *run) unset(sc *scope, c *call) {
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

func (r *run) set(sc *scope, c *call) {
	args := c.args()
	for i, a := range args {
		switch {
		case a.text == "--":
			sc.params = texts(args[i+1:])
			return
		case a.text == "-a" || a.text == "-o" && i+1 < len(args) && args[i+1].text == "allexport":
			sc.exports = true
		case !strings.HasPrefix(a.text, "-") && !strings.HasPrefix(a.text, "+") && (i == 0 || args[i-1].text != "-o" && args[i-1].text != "+o"):
			sc.params = texts(args[i:])
			return
		}
	}
}

func (r *run) shift(sc *scope, c *call) {
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

// read sets variables from what it reads, if that is known.
func (r *run) read(sc *scope, name string, c *call) {
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

// environment looks at variables by which programs find code to run.
func (r *run) environment(sc *scope, name, value string, at span) {
	switch name {
	case "BASH_ENV", "ENV":
		if text, ok := r.files[value]; ok {
			r.code(newScope(), text, at)
		}
		return
	case "PROMPT_COMMAND", "PAGER", "GIT_PAGER", "MANPAGER", "EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_SSH_COMMAND", "GIT_SSH",
		"GIT_EXTERNAL_DIFF", "GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS", "GIT_PROXY_COMMAND", "BROWSER", "RSYNC_RSH", "TAR_OPTIONS":
	case "LESSOPEN", "LESSCLOSE":
		value = strings.TrimLeft(value, "|-")
	default:
		return
	}
	if value != "" && certain(value) {
		r.code(newScope(), value, at)
	}
}

// written are the files that a call writes, by redirections and by what its
// program does with its arguments.
func (r *run) written(c *call) []field {
	out := c.writes
	if len(c.words) == 0 {
		return out
	}
	program := family(programName(c.words[0].text))
	if !writers[program] {
		return out
	}
	args := c.args()
	r.step(len(args) / 2)
	var operands []field
	for i := 0; i < len(args); i++ {
		if s := args[i].text; s == "--" {
			operands = append(operands, args[i+1:]...)
			break
		} else if len(s) < 2 || s[0] != '-' {
			operands = append(operands, args[i])
		}
	}
	add := func(fields ...field) {
		for _, f := range fields {
			f.text = clean(f.text, r.cwd)
			out = append(out[:len(out):len(out)], f)
		}
	}
	switch program {
	case "tee", "truncate", "touch", "sponge", "mkdir":
		add(operands...)
	case "cp", "mv", "install", "ln", "rsync", "scp":
		if f, ok := flagValue(args, "-t", "--target-directory"); ok {
			f.text = strings.TrimSuffix(f.text, "/") + "/" + string(anyName)
			add(f)
		} else if len(operands) > 1 {
			f := operands[len(operands)-1]
			if strings.HasSuffix(f.text, "/") || f.text == "/etc" {
				// Into a folder: by the names that the files have.
				f.text = strings.TrimSuffix(f.text, "/") + "/" + programName(operands[0].text)
			}
			add(f)
		}
	case "dd":
		for _, o := range operands {
			if name, ok := strings.CutPrefix(o.text, "of="); ok {
				o.text = name
				add(o)
			}
		}
	case "sed", "perl":
		for _, a := range args {
			if strings.HasPrefix(a.text, "-i") || strings.HasPrefix(a.text, "--in-place") || strings.HasPrefix(a.text, "-pi") || strings.HasPrefix(a.text, "-ni") {
				add(operands...)
				break
			}
		}
	case "curl":
		if f, ok := flagValue(args, "-o", "--output"); ok {
			add(f)
		}
	case "wget":
		if f, ok := flagValue(args, "-O", "--output-document"); ok {
			add(f)
		}
	case "sort":
		if f, ok := flagValue(args, "-o", "--output"); ok {
			add(f)
		}
	}
	return out
}

// writers are the programs that written knows.
var writers = map[string]bool{
	"tee": true, "truncate": true, "touch": true, "sponge": true, "mkdir": true, "cp": true, "mv": true, "install": true, "ln": true, "rsync": true,
	"scp": true, "dd": true, "sed": true, "perl": true, "curl": true, "wget": true, "sort": true,
}
