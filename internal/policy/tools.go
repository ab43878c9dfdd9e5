package policy

import (
	"strings"
)

// xargs runs a program with words of its input.
func (r *run) xargs(sc *scope, c *call) string {
	args := c.args()
	w := wrapper{short: "aEILnPsdR", long: []string{"--arg-file", "--max-lines", "--max-args", "--max-procs", "--max-chars", "--delimiter", "--replace-str"}}
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
		extra = nil
		for _, word := range splitWords(strings.ReplaceAll(*c.stdin, string(anyText), " ")) {
			r.step(1)
			extra = append(extra, field{text: word, at: c.at})
		}
	}
	n := r.plain(c, i)
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
					r.limit("a word of it is too long")
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

// parallel runs code for each of its inputs.
func (r *run) parallel(sc *scope, c *call) string {
	args := c.args()
	i := skipFlags(args, wrapper{short: "jSaILnNPdEpC", long: []string{"--jobs", "--sshlogin", "--arg-file", "--delay", "--timeout", "--joblog", "--results", "--workdir", "--tmpdir", "--colsep"}})
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
			in = "$" + reserved
		}
		text := strings.TrimSpace(command + " " + in)
		if strings.Contains(command, "{}") {
			text = strings.ReplaceAll(command, "{}", in)
		}
		r.code(r.process(sc, c), text, c.at)
	}
	return string(anyText)
}

// find runs what stands behind -exec and its like, for the files it finds.
func (r *run) find(sc *scope, c *call) {
	args := c.args()
	var roots []field
	tests := false
	for i := 0; i < len(args); i++ {
		s := args[i].text
		switch {
		case s == "-exec", s == "-execdir", s == "-ok", s == "-okdir", s == "-x", s == "-X", s == "--exec", s == "--exec-batch":
			end := i + 1
			for end < len(args) && args[end].text != ";" && (args[end].text != "+" || args[end-1].text != "{}") {
				end++
			}
			r.findExec(sc, c, args[i+1:end], roots, tests)
			i = end
		case s == "-delete":
		case s != "" && (s[0] == '-' || s[0] == '!' || s[0] == '('):
			tests = tests || s != "-H" && s != "-L" && s != "-P" && s != "-print" && s != "-print0" && s != "-depth" && s != "-xdev" && s != "-mount"
		case !tests:
			roots = append(roots, args[i])
		}
	}
}

func (r *run) findExec(sc *scope, c *call, words, roots []field, tests bool) {
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
		n.writes, n.plain = nil, true
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

func (r *run) gdb(sc *scope, c *call) {
	args := c.args()
	for i, a := range args {
		switch a.text {
		case "--args", "-args":
			if i+1 < len(args) {
				r.exec(sc, r.plain(c, i+1))
			}
			return
		case "-ex", "--eval-command", "-iex", "-eval-command":
			if i+1 < len(args) {
				r.editorCommand(sc, args[i+1], c)
			}
		}
	}
}

// git runs code that its settings and some of its commands hold.
func (r *run) git(sc *scope, c *call) {
	args := c.args()
	i := 0
	aliases := map[string]string{}
	for ; i < len(args); i++ {
		s := args[i].text
		if len(s) < 2 || s[0] != '-' {
			break
		}
		switch {
		case s == "-c" || s == "--config-env":
			if i++; i < len(args) {
				r.gitSetting(sc, c, args[i], aliases)
			}
		case strings.HasPrefix(s, "-c"):
			f := args[i]
			f.text = s[2:]
			r.gitSetting(sc, c, f, aliases)
		case takesNext(s, wrapper{short: "C", long: []string{"--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source"}}):
			i++
		}
	}
	if i >= len(args) {
		return
	}
	sub, rest := args[i].text, args[i+1:]
	if code, ok := aliases[sub]; ok {
		r.gitAlias(sc, c, code, args[i], rest)
	}
	switch sub {
	case "bisect":
		if len(rest) > 1 && rest[0].text == "run" {
			r.exec(sc, r.plain(c, i+2))
		}
	case "submodule":
		for j, a := range rest {
			if a.text == "foreach" {
				k := skipFlags(rest[j+1:], wrapper{})
				r.code(r.process(sc, c), joined(rest[j+1+k:]), c.at)
				break
			}
		}
	case "rebase":
		if v, ok := flagValue(rest, "-x", "--exec"); ok {
			r.code(r.process(sc, c), v.text, v.at)
		}
	case "filter-branch":
		for j, a := range rest {
			if strings.HasSuffix(a.text, "-filter") && j+1 < len(rest) {
				r.code(r.process(sc, c), rest[j+1].text, rest[j+1].at)
			}
		}
	case "difftool", "mergetool":
		if v, ok := flagValue(rest, "-x", "--extcmd"); ok {
			r.code(r.process(sc, c), v.text, v.at)
		}
	case "grep":
		if v, ok := flagValue(rest, "-O", "--open-files-in-pager"); ok && v.text != "" && !strings.HasPrefix(v.text, "-") {
			r.code(r.process(sc, c), v.text, v.at)
		}
	case "clone", "fetch", "pull", "push", "ls-remote":
		for _, name := range []string{"--upload-pack", "--receive-pack", "--exec", "-u"} {
			if v, ok := flagValue(rest, name); ok && (name != "-u" || sub == "clone") {
				r.code(r.process(sc, c), v.text, v.at)
			}
		}
		for _, a := range rest {
			if code, ok := strings.CutPrefix(a.text, "ext::"); ok {
				r.code(r.process(sc, c), code, a.at)
			}
		}
	case "config":
		r.gitConfig(sc, c, rest)
	}
}

// gitConfig looks at code that is stored for later.
func (r *run) gitConfig(sc *scope, c *call, rest []field) {
	var operands []field
	for _, a := range rest {
		if !strings.HasPrefix(a.text, "-") && a.text != "set" {
			operands = append(operands, a)
		}
	}
	if len(operands) == 2 {
		f := operands[1]
		f.text = operands[0].text + "=" + f.text
		r.gitSetting(sc, c, f, map[string]string{})
	}
}

func (r *run) gitSetting(sc *scope, c *call, f field, aliases map[string]string) {
	name, value, ok := strings.Cut(f.text, "=")
	if !ok {
		return
	}
	name = strings.ToLower(name)
	switch {
	case strings.HasPrefix(name, "alias."):
		aliases[strings.TrimPrefix(name, "alias.")] = value
		if code, shell := strings.CutPrefix(value, "!"); shell {
			r.code(r.process(sc, c), code, f.at)
		}
		return
	case name == "credential.helper", strings.HasPrefix(name, "credential.") && strings.HasSuffix(name, ".helper"):
		code, shell := strings.CutPrefix(value, "!")
		if shell {
			r.code(r.process(sc, c), code, f.at)
		}
		return
	}
	for _, s := range []string{
		"core.pager", "core.editor", "core.sshcommand", "core.askpass", "core.fsmonitor", "core.gitproxy", "sequence.editor", "diff.external", "gpg.program",
		"uploadpack.packobjectshook", "interactive.difffilter", "pager.", "filter.", "diff.", "merge.", "difftool.", "mergetool.", "trailer.", "sendemail.", "gpg.", "man.", "browser.",
	} {
		if name == s || strings.HasSuffix(s, ".") && strings.HasPrefix(name, s) && codeSetting(name) {
			if value != "" && value != "true" && value != "false" {
				r.code(r.process(sc, c), value, f.at)
			}
			return
		}
	}
}

func codeSetting(name string) bool {
	for _, s := range []string{".cmd", ".command", ".clean", ".smudge", ".process", ".driver", ".textconv", ".program", ".path"} {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return strings.HasPrefix(name, "pager.")
}

// gitAlias is a git command by another name.
func (r *run) gitAlias(sc *scope, c *call, code string, sub field, rest []field) {
	if r.nested++; r.nested > maxNested {
		r.limit("it has code within code, too deep")
	}
	defer func() { r.nested-- }()
	if shell, ok := strings.CutPrefix(code, "!"); ok {
		for _, a := range rest {
			shell += " " + quote(a.text)
		}
		r.code(r.process(sc, c), shell, sub.at)
		return
	}
	n := *c
	n.plain = true
	n.words = []field{c.words[0]}
	for _, w := range splitWords(code) {
		n.words = append(n.words, field{text: w, at: sub.at})
	}
	n.words = append(n.words, rest...)
	r.exec(sc, &n)
}

// editor runs "!command" that stands in its flags.
func (r *run) editor(sc *scope, name string, c *call) {
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
			r.code(r.process(sc, c), args[i+1].text, args[i+1].at)
		case name == "man" && strings.HasPrefix(s, "-P") && len(s) > 2:
			r.code(r.process(sc, c), s[2:], a.at)
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

func (r *run) editorCommand(sc *scope, f field, c *call) {
	if at := strings.IndexByte(f.text, '!'); at >= 0 && !strings.ContainsAny(f.text[:at], "/'\"") {
		r.code(r.process(sc, c), f.text[at+1:], f.at)
		return
	}
	if code, ok := strings.CutPrefix(f.text, "shell "); ok {
		r.code(r.process(sc, c), code, f.at)
		return
	}
	r.inline(sc, "vim", f.text, c)
}

// runsOthers are programs that run others by some of their flags, or behind a
// word of their own.
func (r *run) runsOthers(sc *scope, name string, c *call) string {
	args := c.args()
	code := func(flags ...string) {
		for _, f := range flags {
			if v, ok := flagValue(args, f); ok && v.text != "" {
				r.code(r.process(sc, c), v.text, v.at)
			}
		}
	}
	behind := func(words ...string) string {
		for i, a := range args {
			if contains(words, a.text) {
				j := i + 1 + skipFlags(args[i+1:], wrapper{short: "pcwn", long: []string{"--with", "--from", "--package", "--python", "--name"}})
				return r.exec(sc, r.plain(c, j))
			}
		}
		return string(anyText)
	}
	switch name {
	case "tar":
		for _, a := range args {
			if action, ok := strings.CutPrefix(a.text, "--checkpoint-action="); ok {
				if v, ok := strings.CutPrefix(action, "exec="); ok {
					r.code(r.process(sc, c), v, a.at)
				}
			}
		}
		if v, ok := flagValue(args, "--checkpoint-action"); ok {
			r.code(r.process(sc, c), strings.TrimPrefix(v.text, "exec="), v.at)
		}
		code("--to-command", "-I", "--use-compress-program", "--rsh-command", "-F", "--info-script", "--new-volume-script")
	case "rsync":
		code("-e", "--rsh", "--rsync-path")
	case "zip":
		code("-TT", "--unzip-command")
	case "scp", "sftp":
		code("-S")
	case "sort":
		code("--compress-program")
	case "split":
		code("--filter")
	case "rg":
		code("--pre", "--hostname-bin")
	case "ip":
		if len(args) > 3 && args[0].text == "netns" && args[1].text == "exec" {
			return r.exec(sc, r.plain(c, 3))
		}
	case "uv", "poetry", "pipenv", "conda":
		return behind("run")
	case "npm", "pnpm", "yarn", "bundle":
		if v, ok := flagValue(args, "--call"); ok {
			r.code(r.process(sc, c), v.text, v.at)
		}
		return behind("exec", "x", "dlx")
	case "capsh":
		for i, a := range args {
			if a.text == "--" {
				n := r.plain(c, i)
				n.words = append([]field{{text: "bash", at: a.at}}, args[i+1:]...)
				return r.exec(sc, n)
			}
		}
	case "bwrap":
		return behind("--")
	case "at", "batch", "crontab":
		if c.stdin != nil && name != "crontab" {
			return r.code(r.process(sc, c), *c.stdin, c.at)
		}
	case "expect":
		if v, ok := flagValue(args, "-c"); ok {
			r.inline(sc, "tclsh", v.text, c)
		}
	case "make":
		r.makefile(sc, c)
	case "socat":
		for _, a := range args {
			kind, v, _ := strings.Cut(a.text, ":")
			if kind = strings.ToUpper(kind); kind == "EXEC" || kind == "SYSTEM" || kind == "SHELL" {
				v, _, _ = strings.Cut(v, ",")
				r.code(r.process(sc, c), v, a.at)
			}
		}
	case "nc", "ncat":
		code("-e", "-c", "--exec", "--sh-exec")
	case "tmux", "screen":
		r.terminal(sc, c)
	case "go", "cargo":
		code("-exec", "-toolexec", "--config")
	}
	return string(anyText)
}

// terminal is tmux and screen: a new window with a command.
func (r *run) terminal(sc *scope, c *call) {
	args := c.args()
	for i, a := range args {
		switch a.text {
		case "new", "new-session", "neww", "new-window", "splitw", "split-window", "run", "run-shell", "respawn-pane", "-dmS", "-dm":
			j := i + 1 + skipFlags(args[i+1:], wrapper{short: "cneFstxy"})
			if a.text == "-dmS" {
				j = min(i+2, len(args))
			}
			r.code(r.process(sc, c), joined(args[j:]), c.at)
			return
		}
	}
}

// makefile looks at a makefile that is known, recipe by recipe.
func (r *run) makefile(sc *scope, c *call) {
	text, args := "", c.args()
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
		r.unknown("the makefile is made when it runs", "make", Deny, c.at)
		return
	}
	for _, line := range strings.Split(text, "\n") {
		r.step(1)
		recipe, ok := strings.CutPrefix(line, "\t")
		if _, rest, has := strings.Cut(line, ";"); !ok && has {
			recipe, ok = rest, true
		}
		if at := strings.Index(line, "$(shell "); at >= 0 {
			r.code(r.process(sc, c), strings.TrimSuffix(strings.TrimSpace(line[at+8:]), ")"), c.at)
		}
		if ok {
			r.code(r.process(sc, c), strings.ReplaceAll(strings.TrimLeft(recipe, "@-+ "), "$$", "$"), c.at)
		}
	}
}
