package policy

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

func nest(open, inside, end string, n int) string {
	return strings.Repeat(open, n) + inside + strings.Repeat(end, n)
}

// full repeats s up to the maximum length of a command.
func full(s string) string { return strings.Repeat(s, MaxCommand/len(s)) }

// hostileCommands are commands that are expensive to parse or walk, by name.
var hostileCommands = map[string]string{
	"subshells":          nest("(", "ls", ")", 30000),
	"open subshells":     full("("),
	"blocks":             nest("{ ", "ls;", " }", 20000),
	"substitutions":      nest("$(", "ls", ")", 20000),
	"quoted":             nest(`"$(`, "ls", `)"`, 15000),
	"backquotes":         full("`"),
	"parameters":         nest("${x:-", "a", "}", 10000),
	"arithmetic":         "echo $((" + nest("(", "1", ")", 30000) + "))",
	"minus":              "echo $((" + strings.Repeat("- ", 30000) + "1))",
	"sums":               "echo $((1" + strings.Repeat("+1", 30000) + "))",
	"ternary":            "echo $((" + strings.Repeat("1?1:", 15000) + "1))",
	"powers":             "echo $((1" + strings.Repeat("**1", 20000) + "))",
	"tests":              "[[ " + strings.Repeat("! ", 30000) + "x ]]",
	"test and":           "[[ x" + strings.Repeat(" && x", 12000) + " ]]",
	"test parentheses":   "[[ " + nest("( ", "x", " )", 15000) + " ]]",
	"if":                 strings.Repeat("if ls; then ", 5000),
	"while":              strings.Repeat("while ", 10000),
	"case":               strings.Repeat("case x in x) ", 5000),
	"functions in each":  strings.Repeat("f()", 20000) + "{ ls; }",
	"not":                strings.Repeat("! ", 30000) + "ls",
	"time":               strings.Repeat("time ", 12000) + "ls",
	"coproc":             strings.Repeat("coproc ", 9000) + "ls",
	"lists":              full("a;"),
	"lines":              full("a\n"),
	"and":                full("a&&") + "a",
	"pipes":              full("a|") + "a",
	"background":         full("a&"),
	"words":              full("a "),
	"rm words":           "rm -rf " + full("a ")[:60000],
	"rm globs":           "rm -rf " + full("* ")[:60000],
	"rm unknown":         "rm -rf " + full("$a ")[:60000],
	"rm flags":           "rm " + full("-r ")[:60000],
	"rm cluster":         "rm -" + strings.Repeat("r", 60000),
	"git words":          "git push " + full("a ")[:60000],
	"git commit words":   "git commit " + full("-a ")[:60000],
	"long word":          full("a"),
	"long path":          "rm -rf " + strings.Repeat("/a", 30000),
	"long dots":          "rm -rf " + strings.Repeat("../", 20000),
	"stars":              "rm -rf " + strings.Repeat("*", 60000),
	"star slashes":       "rm -rf " + strings.Repeat("*/", 30000),
	"classes":            "rm -rf " + full("[")[:60000],
	"brackets":           full("[a]"),
	"assignments":        full("a=b;"),
	"assignments in one": full("a=b ") + "ls",
	"appends":            full("a+=b;"),
	"arrays":             "a=(" + full("x ")[:60000] + ")",
	"array appends":      full("a+=(x);"),
	"doubling":           doublingAssignments() + "$a",
	"functions":          functionTree() + "fnx",
	"recursion":          "f() { f; f; f; f; }; f",
	"mutual recursion":   "f() { g; g; }; g() { f; f; }; f",
	"aliases":            "alias a='b b' b='a a'; " + full("a;")[:30000],
	"braces":             "echo " + strings.Repeat("{a,b}", 12000),
	"brace range":        "echo {1..1000000000}{1..1000000000}",
	"brace nest":         "echo " + strings.Repeat("{", 60000),
	"brace nest closed":  "echo " + nest("{a,", "b", "}", 15000),
	"brace words":        full("{a,b} "),
	"brace medium":       full("{a,b}{c,d}{e,f} "),
	"brace 60":           full(nest("{a,", "b", "}", 60) + " "),
	"here-documents":     full("cat <<E\nE\n"),
	"a here-document":    "cat <<E\n" + strings.Repeat("$a ", 20000) + "\nE",
	"herestrings":        full("sh<<<a;"),
	"sh -c":              full("sh -c a;"),
	"sh -c nested":       nestedShells(),
	"eval":               full("eval a;"),
	"evals":              strings.Repeat("eval ", 12000) + "ls",
	"env":                strings.Repeat("env ", 15000) + "ls",
	"env -S":             strings.Repeat("env -S ", 9000) + "ls",
	"nice":               strings.Repeat("nice ", 12000) + "ls",
	"command":            strings.Repeat("command ", 8000) + "ls",
	"xargs":              strings.Repeat("xargs ", 10000) + "ls",
	"busybox":            strings.Repeat("busybox ", 8000) + "ls",
	"find":               "find " + full("-exec ls ; ")[:60000],
	"find exec nested":   strings.Repeat("find . -exec ", 4600) + "ls",
	"find roots":         "find " + full("/ ")[:30000] + strings.Repeat("-exec rm {} + ", 2000),
	"find replace":       "find " + strings.Repeat("a", 20000) + " -exec ls " + strings.Repeat("{}", 15000) + " ;",
	"python":             "python3 -c '" + strings.Repeat(`os.system("ls");`, 3500) + "'",
	"awk":                "awk '" + strings.Repeat(`system("ls");`, 4500) + "'",
	"sed":                "sed '" + full("e x;")[:60000] + "'",
	"for":                "for i in " + full("a ")[:30000] + "; do ls; done",
	"for nested":         strings.Repeat("for i in a b c d e f g h; do ", 40) + "ls" + strings.Repeat("; done", 40),
	"for many":           full("for i in a b c d e f g h i j k l m n; do ls; done;"),
	"printf":             "printf '" + strings.Repeat("%s", 20000) + "' " + full("a ")[:20000],
	"printf repeat":      "printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaa%s' " + full("a ")[:60000],
	"replace":            "a=" + strings.Repeat("a", 20000) + ";" + full("b=${a//a/aaaa};")[:30000],
	"subshell scopes":    full("a=1;b=2;(a);")[:20000] + full("(a);")[:40000],
	"many variables":     manyVariables(),
	"substitution words": full("$(a) "),
	"process subst":      full("<(a) "),
	"redirections":       full(">a "),
	"writes":             full("a>/etc/x;"),
	"tilde":              full("~ "),
	"quotes":             full(`""`),
	"dollar quotes":      full(`$'\x41'`),
	"escapes":            full(`\a`),
	"git aliases":        "git " + strings.Repeat("-c alias.a=a ", 4000) + "a",
	"parallel":           "parallel ls ::: " + full("a ")[:60000],
	"trap":               full("trap a 0;"),
	"case items":         "case x in " + full("a) b;; ")[:60000] + " esac",
	"elif":               "if a; then b; " + full("elif a; then b; ")[:60000] + "fi",
	"local":              full("local a=b;"),
	"params":             "set -- " + full("a ")[:30000] + ";" + full("ls $@;")[:30000],
	"spaces":             full(" "),
	"comments":           full("#a\n"),
	"semicolons":         full(";"),
	"dollars":            full("$"),
	"make":               "make --eval='" + full("\ta\n")[:60000] + "'",
	"make substitution":  full("a=${a:-${b:-${c}}} "),
	"too long":           strings.Repeat("a", 100<<20),
}

// nestedShells returns sh -c in sh -c, quoted again at each level.
func nestedShells() string {
	command := "rm -rf /"
	for range 8 {
		command = "sh -c " + quote(command)
	}
	return command
}

// doublingAssignments returns assignments that each make a variable four times as long.
func doublingAssignments() string {
	return "a=xxxxxxxxxxxxxxxx;" + strings.Repeat("a=$a$a$a$a;", 40)
}

// functionTree returns functions that each call the previous one four times.
func functionTree() string {
	name := func(i int) string { return string(rune('a'+i%26)) + strings.Repeat("x", i/26) }
	var b strings.Builder
	b.WriteString("f0() { ls; };")
	for i := range 40 {
		call := "f" + name(i+25)
		b.WriteString("f" + name(i+26) + "() { " + strings.Repeat(call+"; ", 4) + "};")
	}
	return b.String()
}

func manyVariables() string {
	var b strings.Builder
	for i := range 3000 {
		b.WriteString("v" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) +
			string(rune('a'+i/676)) + "=1;")
	}
	return b.String() + strings.Repeat("(a);", 5000)
}

// Bounds for the verdict on any command.
const (
	maxBytes = 16 << 20
	maxTime  = 5 * time.Millisecond
	// allowed tolerates a busy machine.
	maxBusyTime = 100 * maxTime
)

func TestHostileCommandsAreBounded(t *testing.T) {
	all := policies(t)
	for name, command := range hostileCommands {
		for _, profile := range []string{"phase2", "universal", "writer"} {
			p := all[profile]
			p.Command(command)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			v := p.Command(command)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > maxBytes {
				t.Errorf("%s with %s: allocated %d KiB, want at most %d (%s %s)", name, profile, n>>10, maxBytes>>10,
					v.Action, v.Rule)
			}
			if raceEnabled || testing.Short() {
				continue
			}
			best := time.Hour
			for i := 0; i < 20 && best > maxTime; i++ {
				start := time.Now()
				p.Command(command)
				best = min(best, time.Since(start))
			}
			if best > maxTime {
				t.Logf("%s with %s: best time %v, over %v (the limit on an idle machine)", name, profile, best, maxTime)
			}
			if best > maxBusyTime {
				t.Errorf("%s with %s: best time %v, want at most %v (%s %s)", name, profile, best, maxBusyTime,
					v.Action, v.Rule)
			}
		}
	}
}
