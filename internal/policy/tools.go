package policy

import (
	"strings"
)

// xargs handles a program that gets words of standard input as arguments.
func (r *evaluation) xargs(sc *scope, c *call) string {
	args := c.args()
	w := wrapper{short: "aEILnPsdR", long: []string{"--arg-file", "--max-lines", "--max-args", "--max-procs",
		"--max-chars", "--delimiter", "--replace-str"}}
	i := skipFlags(args, w)
	replace, ok := flagValue(args[:i], "-I", "--replace")
	if !ok {
		for _, a := range args[:i] {
			if a.text == "-i" || a.text == "--replace" {
				replace, ok = field{text: "{}"}, true
			}
		}
	}
	extra := []field{{text: string(anyText), at: c.at, bare: true}}
	if c.stdin != nil && certain(*c.stdin) {
		split := splitWords(strings.ReplaceAll(*c.stdin, string(anyText), " "))
		extra = make([]field, 0, len(split))
		for _, word := range split {
			r.step(1)
			extra = append(extra, field{text: word, at: c.at})
		}
	}
	n := r.directCall(c, i)
	n.stdin = nil
	if i >= len(args) {
		n.words = []field{{text: "echo", at: c.at}}
	}
	words := append([]field(nil), n.words...)
	if ok {
		text := ""
		for j, e := range extra {
			if j > 0 {
				text += " "
			}
			text += e.text
		}
		for j := range words {
			if replace.text != "" && strings.Contains(words[j].text, replace.text) {
				whole := words[j].text == replace.text
				words[j].text = strings.ReplaceAll(words[j].text, replace.text, text)
				if len(words[j].text) > maxText {
					r.limit("a word is too long")
				}
				words[j].bare = whole && !certain(text)
			}
		}
	} else {
		words = append(words, extra...)
	}
	n.words = words
	return r.exec(sc, n)
}

// parallel handles code that runs for each input.
func (r *evaluation) parallel(sc *scope, c *call) string {
	args := c.args()
	i := skipFlags(args, wrapper{short: "jSaILnNPdEpC",
		long: []string{"--jobs", "--sshlogin", "--arg-file", "--delay", "--timeout", "--joblog", "--results",
			"--workdir", "--tmpdir", "--colsep"}})
	end := i
	for end < len(args) && !strings.HasPrefix(args[end].text, ":::") {
		end++
	}
	command := joined(args[i:end])
	inputs := []string{string(anyText)}
	if end < len(args) {
		inputs = inputs[:0]
		for _, a := range args[end:] {
			if !strings.HasPrefix(a.text, ":::") && len(inputs) < maxForEach {
				inputs = append(inputs, a.text)
			}
		}
	} else if c.stdin != nil && certain(*c.stdin) {
		inputs = strings.Split(strings.TrimSuffix(*c.stdin, "\n"), "\n")
		inputs = inputs[:min(len(inputs), maxForEach)]
	}
	for _, in := range inputs {
		if in == string(anyText) && command != "" {
			in = "$" + unknownVar
		}
		text := strings.TrimSpace(command + " " + in)
		if strings.Contains(command, "{}") {
			text = strings.ReplaceAll(command, "{}", in)
		}
		r.walkCode(r.newProcess(sc, c), text, c.at)
	}
	return string(anyText)
}

// find judges the commands of -exec and similar flags, with the files as arguments.
func (r *evaluation) find(sc *scope, c *call) {
	args := c.args()
	var roots []field
	tests := false
	for i := 0; i < len(args); i++ {
		s := args[i].text
		switch {
		case s == "-exec", s == "-execdir", s == "-ok", s == "-okdir", s == "-x", s == "-X", s == "--exec",
			s == "--exec-batch":
			end := i + 1
			for end < len(args) && args[end].text != ";" && (args[end].text != "+" || args[end-1].text != "{}") {
				end++
			}
			r.findExec(sc, c, args[i+1:end], roots, tests)
			i = end
		case s == "-delete":
		case s != "" && (s[0] == '-' || s[0] == '!' || s[0] == '('):
			tests = tests || s != "-H" && s != "-L" && s != "-P" && s != "-print" && s != "-print0" && s != "-depth" &&
				s != "-xdev" && s != "-mount"
		case !tests:
			roots = append(roots, args[i])
		}
	}
}

func (r *evaluation) findExec(sc *scope, c *call, words, roots []field, tests bool) {
	if len(words) == 0 {
		return
	}
	if len(roots) == 0 {
		roots = []field{{text: "."}}
	}
	for _, root := range roots[:min(len(roots), maxForEach)] {
		path := root.text
		if tests {
			path = strings.TrimSuffix(path, "/") + "/" + string(anyText)
		}
		n := *c
		n.words = append([]field(nil), words...)
		n.writes, n.direct = nil, true
		whole := false
		for i := range n.words {
			whole = whole || n.words[i].text == "{}"
			n.words[i].text = strings.ReplaceAll(n.words[i].text, "{}", path)
		}
		if !whole && words[0].text != "" && strings.HasPrefix(programName(c.words[0].text), "fd") {
			n.words = append(n.words, field{text: path, at: c.at})
		}
		n.at = words[0].at
		r.step(len(n.words))
		r.exec(sc, &n)
	}
}

func (r *evaluation) gdb(sc *scope, c *call) {
	args := c.args()
	for i, a := range args {
		switch a.text {
		case "--args", "-args":
			if i+1 < len(args) {
				r.exec(sc, r.directCall(c, i+1))
			}
			return
		case "-ex", "--eval-command", "-iex", "-eval-command":
			if i+1 < len(args) {
				r.editorCommand(sc, args[i+1], c)
			}
		}
	}
}

// editor walks commands such as "!cmd" in the flags of editors and pagers.
func (r *evaluation) editor(sc *scope, name string, c *call) {
	args := c.args()
	for i, a := range args {
		s := a.text
		switch {
		case (s == "-c" || s == "--cmd" || s == "--eval" || s == "-eval") && i+1 < len(args):
			r.editorCommand(sc, args[i+1], c)
		case strings.HasPrefix(s, "+"):
			a.text = s[1:]
			r.editorCommand(sc, a, c)
		case strings.HasPrefix(s, "--eval="):
			a.text = s[len("--eval="):]
			r.editorCommand(sc, a, c)
		case name == "man" && (s == "-P" || s == "--pager") && i+1 < len(args):
			r.walkCode(r.newProcess(sc, c), args[i+1].text, args[i+1].at)
		case name == "man" && strings.HasPrefix(s, "-P") && len(s) > 2:
			r.walkCode(r.newProcess(sc, c), s[2:], a.at)
		}
	}
	if c.stdin != nil && certain(*c.stdin) {
		for _, line := range strings.Split(*c.stdin, "\n") {
			r.step(1)
			if strings.HasPrefix(strings.TrimLeft(line, ": "), "!") {
				r.editorCommand(sc, field{text: line, at: c.at}, c)
			}
		}
	}
}

func (r *evaluation) editorCommand(sc *scope, f field, c *call) {
	if at := strings.IndexByte(f.text, '!'); at >= 0 && !strings.ContainsAny(f.text[:at], "/'\"") {
		r.walkCode(r.newProcess(sc, c), f.text[at+1:], f.at)
		return
	}
	if code, ok := strings.CutPrefix(f.text, "shell "); ok {
		r.walkCode(r.newProcess(sc, c), code, f.at)
		return
	}
	r.walkInlineCode(sc, "vim", f.text, c)
}

// codeFlags lists, by program, the flags whose value is shell code.
var codeFlags = map[string][]string{
	"tar": {"--to-command", "-I", "--use-compress-program", "--rsh-command", "-F", "--info-script",
		"--new-volume-script"},
	"rsync":  {"-e", "--rsh", "--rsync-path"},
	"zip":    {"-TT", "--unzip-command"},
	"scp":    {"-S"},
	"sftp":   {"-S"},
	"sort":   {"--compress-program"},
	"split":  {"--filter"},
	"rg":     {"--pre", "--hostname-bin"},
	"npm":    {"--call"},
	"pnpm":   {"--call"},
	"yarn":   {"--call"},
	"bundle": {"--call"},
	"nc":     {"-e", "-c", "--exec", "--sh-exec"},
	"ncat":   {"-e", "-c", "--exec", "--sh-exec"},
	"go":     {"-exec", "-toolexec", "--config"},
	"cargo":  {"-exec", "-toolexec", "--config"},
}

// execWords lists, by program, the words after which another program stands.
var execWords = map[string][]string{
	"uv": {"run"}, "poetry": {"run"}, "pipenv": {"run"}, "conda": {"run"},
	"npm": {"exec", "x", "dlx"}, "pnpm": {"exec", "x", "dlx"}, "yarn": {"exec", "x", "dlx"},
	"bundle": {"exec", "x", "dlx"},
	"bwrap":  {"--"},
}

// otherPrograms handles programs that run others given by some of their flags, or after a certain
// word.
func (r *evaluation) otherPrograms(sc *scope, name string, c *call) string {
	args := c.args()
	if name == "tar" {
		r.tarCheckpoint(sc, c)
	}
	for _, f := range codeFlags[name] {
		if v, ok := flagValue(args, f); ok && v.text != "" {
			r.walkCode(r.newProcess(sc, c), v.text, v.at)
		}
	}
	for i, a := range args {
		if contains(execWords[name], a.text) {
			j := i + 1 + skipFlags(args[i+1:],
				wrapper{short: "pcwn", long: []string{"--with", "--from", "--package", "--python", "--name"}})
			return r.exec(sc, r.directCall(c, j))
		}
	}
	switch name {
	case "ip":
		if len(args) > 3 && args[0].text == "netns" && args[1].text == "exec" {
			return r.exec(sc, r.directCall(c, 3))
		}
	case "capsh":
		for i, a := range args {
			if a.text == "--" {
				n := r.directCall(c, i)
				n.words = append([]field{{text: "bash", at: a.at}}, args[i+1:]...)
				return r.exec(sc, n)
			}
		}
	case "at", "batch":
		if c.stdin != nil {
			return r.walkCode(r.newProcess(sc, c), *c.stdin, c.at)
		}
	case "expect":
		if v, ok := flagValue(args, "-c"); ok {
			r.walkInlineCode(sc, "tclsh", v.text, c)
		}
	case "make":
		r.makefile(sc, c)
	case "socat":
		r.socat(sc, c)
	case "tmux", "screen":
		r.multiplexer(sc, c)
	}
	return string(anyText)
}

// tarCheckpoint walks the code of --checkpoint-action.
func (r *evaluation) tarCheckpoint(sc *scope, c *call) {
	args := c.args()
	for _, a := range args {
		if action, ok := strings.CutPrefix(a.text, "--checkpoint-action="); ok {
			if v, ok := strings.CutPrefix(action, "exec="); ok {
				r.walkCode(r.newProcess(sc, c), v, a.at)
			}
		}
	}
	if v, ok := flagValue(args, "--checkpoint-action"); ok {
		r.walkCode(r.newProcess(sc, c), strings.TrimPrefix(v.text, "exec="), v.at)
	}
}

// socat walks the code in the addresses of socat.
func (r *evaluation) socat(sc *scope, c *call) {
	for _, a := range c.args() {
		kind, v, _ := strings.Cut(a.text, ":")
		if kind = strings.ToUpper(kind); kind == "EXEC" || kind == "SYSTEM" || kind == "SHELL" {
			v, _, _ = strings.Cut(v, ",")
			r.walkCode(r.newProcess(sc, c), v, a.at)
		}
	}
}

// multiplexer handles tmux and screen commands that start a program.
func (r *evaluation) multiplexer(sc *scope, c *call) {
	args := c.args()
	for i, a := range args {
		switch a.text {
		case "new", "new-session", "neww", "new-window", "splitw", "split-window", "run", "run-shell", "respawn-pane",
			"-dmS", "-dm":
			j := i + 1 + skipFlags(args[i+1:], wrapper{short: "cneFstxy"})
			if a.text == "-dmS" {
				j = min(i+2, len(args))
			}
			r.walkCode(r.newProcess(sc, c), joined(args[j:]), c.at)
			return
		}
	}
}

// makefile walks the recipes of a makefile with known content.
func (r *evaluation) makefile(sc *scope, c *call) {
	var text string
	args := c.args()
	v, ok := flagValue(args, "-f", "--file", "--makefile")
	switch {
	case ok && isStdin(v.text) && c.stdin != nil:
		text = *c.stdin
	case ok && isStdin(v.text):
		text = string(anyText)
	case ok:
		text = r.files[clean(v.text, sc.cwd)]
	default:
		text = r.files["Makefile"]
	}
	for i, a := range args {
		if s, ok := strings.CutPrefix(a.text, "--eval="); ok {
			text += "\n" + s
		} else if a.text == "--eval" && i+1 < len(args) {
			text += "\n" + args[i+1].text
		}
	}
	if !certain(text) {
		r.reportUnknown("the makefile is known only at run time", "make", Deny, c.at)
		return
	}
	for _, line := range strings.Split(text, "\n") {
		r.step(1)
		recipe, ok := strings.CutPrefix(line, "\t")
		if _, rest, has := strings.Cut(line, ";"); !ok && has {
			recipe, ok = rest, true
		}
		if at := strings.Index(line, "$(shell "); at >= 0 {
			r.walkCode(r.newProcess(sc, c), strings.TrimSuffix(strings.TrimSpace(line[at+8:]), ")"), c.at)
		}
		if ok {
			r.walkCode(r.newProcess(sc, c), strings.ReplaceAll(strings.TrimLeft(recipe, "@-+ "), "$$", "$"), c.at)
		}
	}
}
