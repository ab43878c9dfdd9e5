package policy

import (
	"strings"
)

// wrapper describes a program that runs another program given by its arguments.
type wrapper struct {
	short string   // one-letter flags that take a value
	long  []string // long flags that take the next word as value
	skip  int      // number of operands before the program
}

var wrappers = map[string]wrapper{
	"nice":   {short: "n", long: []string{"--adjustment"}},
	"ionice": {short: "cnpPu", long: []string{"--class", "--classdata"}},
	"chrt": {short: "TPD", skip: 1,
		long: []string{"--sched-runtime", "--sched-period", "--sched-deadline"}},
	"taskset": {skip: 1},
	"timeout": {short: "ks", long: []string{"--kill-after", "--signal"}, skip: 1},
	"nohup":   {},
	"setsid":  {},
	"stdbuf":  {short: "ioe", long: []string{"--input", "--output", "--error"}},
	"time":    {short: "fo", long: []string{"--format", "--output"}},
	"chroot":  {skip: 1, long: []string{"--userspec", "--groups"}},
	"unshare": {short: "RwSGl", long: []string{"--root", "--wd", "--setuid", "--setgid", "--map-user",
		"--map-group", "--map-users", "--map-groups", "--propagation", "--setgroups", "--load-interp", "--monotonic",
		"--boottime"}},
	"nsenter": {short: "tSG", long: []string{"--target", "--setuid", "--setgid"}},
	"strace": {short: "aebIoOpsSuEPUX",
		long: []string{"--output", "--trace", "--env", "--user", "--attach", "--string-limit"}},
	"ltrace":   {short: "aAeDFlnopsuxX"},
	"valgrind": {},
	"fakeroot": {short: "lsibu"},
	"setarch":  {skip: 1},
	"linux32":  {},
	"linux64":  {},
	"i386":     {},
	"x86_64":   {},
	"prlimit":  {short: "po"},
	"choom":    {short: "np"},
	"setpriv": {long: []string{"--reuid", "--regid", "--groups", "--inh-caps", "--ambient-caps",
		"--bounding-set", "--securebits", "--selinux-label", "--apparmor-profile", "--pdeathsig"}},
	"tini":             {short: "pe"},
	"dumb-init":        {short: "r"},
	"gosu":             {skip: 1},
	"su-exec":          {skip: 1},
	"catchsegv":        {},
	"xvfb-run":         {short: "nefpsw"},
	"dbus-run-session": {},
	"unbuffer":         {},
	"rlwrap":           {short: "bcCDefgHlmoOpPqsStwW"},
	"numactl":          {short: "CNmipP"},
	"cgexec":           {short: "g"},
	"systemd-run": {short: "pHMEu", long: []string{"--unit", "--property", "--slice", "--uid", "--gid",
		"--setenv", "--working-directory", "--description", "--machine", "--host"}},
	"systemd-inhibit": {},
	"torsocks":        {},
	"proxychains":     {short: "f"},
	"proxychains4":    {short: "f"},
	"doas":            {short: "uC"},
	"pkexec":          {long: []string{"--user"}},
	"run0": {short: "ugD", long: []string{"--user", "--group", "--chdir", "--setenv", "--unit",
		"--property"}},
	"chpst":      {short: "uUbemdopfcrtnP/"},
	"softlimit":  {short: "acdfmoprst"},
	"firejail":   {},
	"npx":        {short: "pcw", long: []string{"--package", "--call", "--workspace"}},
	"bunx":       {},
	"entr":       {},
	"caffeinate": {short: "tw"},
	"perf":       {skip: 1, short: "eoFpcgt"},
	"ld.so":      {long: []string{"--library-path", "--preload", "--argv0", "--audit"}},
	"runcon":     {short: "turl", skip: 1},
	"sg":         {skip: 1},
	"runuser":    {short: "ugGs", long: []string{"--user", "--group"}},
	"daemonize":  {short: "acepolu"},
	"start-stop-daemon": {short: "axpnucsRKNIPdrgk",
		long: []string{"--exec", "--startas", "--pidfile", "--name", "--user", "--chuid", "--chdir"}},
	"unfs": {},
}

// aliasesOf maps program names to the name under which they are handled.
var aliasesOf = map[string]string{
	"dash": "sh", "bash": "sh", "zsh": "sh", "ksh": "sh", "ksh93": "sh", "mksh": "sh", "ash": "sh", "rbash": "sh",
	"fish": "sh", "yash": "sh", "csh": "sh", "tcsh": "sh", "lksh": "sh", "hush": "sh", "posh": "sh",
	"toybox": "busybox", "mawk": "awk", "gawk": "awk", "nawk": "awk", "original-awk": "awk",
	"nodejs": "node", "bun": "node", "deno": "node", "pypy": "python", "ipython": "python",
	"vi": "vim", "nvim": "vim", "ex": "vim", "view": "vim", "rvim": "vim", "vimdiff": "vim", "gvim": "vim",
	"gtar": "tar", "bsdtar": "tar", "gmake": "make", "gxargs": "xargs", "gfind": "find", "genv": "env", "gsed": "sed",
	"slogin": "ssh", "sem": "parallel",
	"source": ".",
}

// family returns the name under which a program is handled: python3.11 is python.
func family(name string) string {
	if a, ok := aliasesOf[name]; ok {
		return a
	}
	if strings.HasPrefix(name, "ld-linux") || strings.HasPrefix(name, "ld-musl") {
		return "ld.so"
	}
	if n := strings.TrimRight(name, "0123456789.-"); n != name && n != "" {
		if a, ok := aliasesOf[n]; ok {
			return a
		}
		switch n {
		case "python", "perl", "ruby", "node", "php", "lua":
			return n
		}
	}
	return name
}

// follow judges the programs that a call runs in turn. It returns the output of the call, or a
// mark.
func (r *evaluation) follow(sc *scope, c *call) string {
	name := family(programName(c.words[0].text))
	if w, ok := wrappers[name]; ok {
		return r.wrapped(sc, c, w)
	}
	if r.stateBuiltin(sc, name, c) {
		return string(anyText)
	}
	switch name {
	case "echo", "printf", "cat", "tee", ":", "true", "head", "tail", "base64", "tr", "rev":
		return r.output(sc, name, c)
	case "sh":
		return r.shell(sc, c)
	case "env":
		return r.env(sc, c)
	case "sudo":
		return r.sudo(sc, c)
	case "command", "builtin", "exec", "noglob", "nocorrect", "-":
		return r.builtin(sc, name, c)
	case "eval":
		r.reportShellFeeds(c)
		return r.walkCode(sc, joined(c.args()), c.at)
	case ".":
		return r.source(sc, c)
	case "busybox":
		return r.exec(sc, r.directCall(c, skipFlags(c.args(), wrapper{})))
	case "xargs":
		return r.xargs(sc, c)
	case "parallel":
		return r.parallel(sc, c)
	case "find", "fd", "fdfind":
		r.find(sc, c)
	case "su":
		return r.su(sc, c)
	case "ssh":
		return r.ssh(sc, c)
	case "script", "watch", "flock":
		return r.commandFlag(sc, name, c)
	case "gdb":
		r.gdb(sc, c)
	case "git":
		r.git(sc, c)
	case "vim", "less", "more", "man", "ed", "emacs":
		r.editor(sc, name, c)
	case "tar", "rsync", "zip", "scp", "sftp", "sort", "split", "ip", "docker", "podman", "kubectl", "uv", "poetry",
		"pipenv", "npm", "pnpm", "yarn", "bundle", "conda", "capsh", "rg", "bwrap", "run-parts", "at", "batch",
		"crontab", "expect", "make", "socat", "nc", "ncat", "tmux", "screen", "dd", "go", "cargo":
		return r.otherPrograms(sc, name, c)
	case "python", "perl", "ruby", "node", "php", "lua", "awk", "sed", "tclsh", "Rscript", "osascript":
		r.interpreter(sc, name, c)
	}
	return string(anyText)
}

// directCall returns the call that starts at argument i and ignores functions and aliases.
func (r *evaluation) directCall(c *call, i int) *call {
	n := c.from(1 + i)
	n.direct = true
	return n
}

// skipFlags returns the index of the first operand after w.skip operands.
func skipFlags(args []field, w wrapper) int {
	i := 0
	for ; i < len(args); i++ {
		s := args[i].text
		if s == "--" {
			i++
			break
		}
		if len(s) < 2 || s[0] != '-' && !(s[0] == '+' && w.skip < 0) {
			break
		}
		if takesNext(s, w) {
			i++
		}
	}
	for n := 0; n < w.skip && i < len(args); n++ {
		i++
	}
	return min(i, len(args))
}

// takesNext reports whether the word after flag s is its value.
func takesNext(s string, w wrapper) bool {
	if strings.HasPrefix(s, "--") {
		if strings.Contains(s, "=") {
			return false
		}
		for _, l := range w.long {
			if strings.HasPrefix(l, s) {
				return true
			}
		}
		return false
	}
	for i := 1; i < len(s); i++ {
		if strings.IndexByte(w.short, s[i]) >= 0 {
			return i == len(s)-1
		}
	}
	return false
}

func (r *evaluation) wrapped(sc *scope, c *call, w wrapper) string {
	name := family(programName(c.words[0].text))
	if code, ok := flagValue(c.args(), "-c", "--command"); ok && (name == "sg" || name == "runuser" || name == "npx") {
		return r.walkCode(r.newProcess(sc, c), code.text, code.at)
	}
	if name == "start-stop-daemon" {
		if x, ok := flagValue(c.args(), "-x", "--exec"); ok {
			r.exec(sc, &call{words: []field{x}, at: c.at, direct: true})
		}
		if x, ok := flagValue(c.args(), "-a", "--startas"); ok {
			r.exec(sc, &call{words: []field{x}, at: c.at, direct: true})
		}
		return string(anyText)
	}
	return r.exec(sc, r.directCall(c, skipFlags(c.args(), w)))
}

// flagValue returns the value of a flag, in the next word or attached to it.
func flagValue(args []field, flags ...string) (field, bool) {
	for i, a := range args {
		for _, f := range flags {
			switch {
			case a.text == f && i+1 < len(args):
				return args[i+1], true
			case strings.HasPrefix(f, "--") && strings.HasPrefix(a.text, f+"="):
				a.text = a.text[len(f)+1:]
				return a, true
			case !strings.HasPrefix(f, "--") && len(f) == 2 && len(a.text) > 2 && strings.HasPrefix(a.text, f) &&
				f != "-c":
				a.text = a.text[2:]
				return a, true
			}
		}
	}
	return field{}, false
}

// joined returns the words joined by blanks, as eval and ssh do.
func joined(args []field) string {
	var b strings.Builder
	for i, a := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(a.text)
		if b.Len() > maxText {
			return string(anyText)
		}
	}
	return b.String()
}
