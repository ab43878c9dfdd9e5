package policy

import (
	"strings"
)

// git walks the code in settings and arguments of git.
func (r *evaluation) git(sc *scope, c *call) {
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
		case takesNext(s,
			wrapper{short: "C", long: []string{"--git-dir", "--work-tree", "--namespace", "--super-prefix",
				"--attr-source"}}):
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
	r.gitSubcommand(sc, c, i, sub, rest)
}

// gitSubcommand walks the code in the arguments of a git command. at is the index of the subcommand
// in the arguments of c.
func (r *evaluation) gitSubcommand(sc *scope, c *call, at int, sub string, rest []field) {
	switch sub {
	case "bisect":
		if len(rest) > 1 && rest[0].text == "run" {
			r.exec(sc, r.directCall(c, at+2))
		}
	case "submodule":
		for j, a := range rest {
			if a.text == "foreach" {
				k := skipFlags(rest[j+1:], wrapper{})
				r.walkCode(r.newProcess(sc, c), joined(rest[j+1+k:]), c.at)
				break
			}
		}
	case "rebase":
		if v, ok := flagValue(rest, "-x", "--exec"); ok {
			r.walkCode(r.newProcess(sc, c), v.text, v.at)
		}
	case "filter-branch":
		for j, a := range rest {
			if strings.HasSuffix(a.text, "-filter") && j+1 < len(rest) {
				r.walkCode(r.newProcess(sc, c), rest[j+1].text, rest[j+1].at)
			}
		}
	case "difftool", "mergetool":
		if v, ok := flagValue(rest, "-x", "--extcmd"); ok {
			r.walkCode(r.newProcess(sc, c), v.text, v.at)
		}
	case "grep":
		if v, ok := flagValue(rest, "-O", "--open-files-in-pager"); ok && v.text != "" &&
			!strings.HasPrefix(v.text, "-") {
			r.walkCode(r.newProcess(sc, c), v.text, v.at)
		}
	case "clone", "fetch", "pull", "push", "ls-remote":
		for _, name := range []string{"--upload-pack", "--receive-pack", "--exec", "-u"} {
			if v, ok := flagValue(rest, name); ok && (name != "-u" || sub == "clone") {
				r.walkCode(r.newProcess(sc, c), v.text, v.at)
			}
		}
		for _, a := range rest {
			if code, ok := strings.CutPrefix(a.text, "ext::"); ok {
				r.walkCode(r.newProcess(sc, c), code, a.at)
			}
		}
	case "config":
		r.gitConfig(sc, c, rest)
	}
}

// gitConfig walks code that git config stores.
func (r *evaluation) gitConfig(sc *scope, c *call, rest []field) {
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

func (r *evaluation) gitSetting(sc *scope, c *call, f field, aliases map[string]string) {
	name, value, ok := strings.Cut(f.text, "=")
	if !ok {
		return
	}
	name = strings.ToLower(name)
	switch {
	case strings.HasPrefix(name, "alias."):
		aliases[strings.TrimPrefix(name, "alias.")] = value
		if code, shell := strings.CutPrefix(value, "!"); shell {
			r.walkCode(r.newProcess(sc, c), code, f.at)
		}
		return
	case name == "credential.helper", strings.HasPrefix(name, "credential.") && strings.HasSuffix(name, ".helper"):
		code, shell := strings.CutPrefix(value, "!")
		if shell {
			r.walkCode(r.newProcess(sc, c), code, f.at)
		}
		return
	}
	for _, s := range []string{
		"core.pager", "core.editor", "core.sshcommand", "core.askpass", "core.fsmonitor", "core.gitproxy",
		"sequence.editor", "diff.external", "gpg.program",
		"uploadpack.packobjectshook", "interactive.difffilter", "pager.", "filter.", "diff.", "merge.", "difftool.",
		"mergetool.", "trailer.", "sendemail.", "gpg.", "man.", "browser.",
	} {
		if name == s || strings.HasSuffix(s, ".") && strings.HasPrefix(name, s) && codeSetting(name) {
			if value != "" && value != "true" && value != "false" {
				r.walkCode(r.newProcess(sc, c), value, f.at)
			}
			return
		}
	}
}

func codeSetting(name string) bool {
	for _, s := range []string{".cmd", ".command", ".clean", ".smudge", ".process", ".driver", ".textconv", ".program",
		".path"} {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return strings.HasPrefix(name, "pager.")
}

// gitAlias walks the git or shell command of an alias.
func (r *evaluation) gitAlias(sc *scope, c *call, code string, sub field, rest []field) {
	if r.nested++; r.nested > maxNested {
		r.limit("code within code is nested too deeply")
	}
	defer func() { r.nested-- }()
	if shell, ok := strings.CutPrefix(code, "!"); ok {
		for _, a := range rest {
			shell += " " + quote(a.text)
		}
		r.walkCode(r.newProcess(sc, c), shell, sub.at)
		return
	}
	n := *c
	n.direct = true
	n.words = []field{c.words[0]}
	for _, w := range splitWords(code) {
		n.words = append(n.words, field{text: w, at: sub.at})
	}
	n.words = append(n.words, rest...)
	r.exec(sc, &n)
}
