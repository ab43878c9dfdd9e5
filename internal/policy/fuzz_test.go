package policy

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"mvdan.cc/sh/v3/syntax"
	"sigs.k8s.io/yaml"
)

// checkVerdict fails the test if v breaks a guarantee that holds for every verdict.
func checkVerdict(t *testing.T, command string, v Verdict) {
	t.Helper()
	if v.Action != Allow && v.Action != Ask && v.Action != Deny {
		t.Fatalf("Command(%q) = %+v, want a valid action", command, v)
	}
	if v.Rule == ruleUnreadable {
		t.Fatalf("Command(%q) panicked: %+v, want a verdict", command, v)
	}
	if v.Action != Allow && (v.Message == "" || v.Class == "" || v.Rule == "") {
		t.Fatalf("Command(%q) = %+v, want message, class and rule", command, v)
	}
	if v.At != nil && (v.At.Offset < 0 || v.At.Offset > len(command) || v.At.Line < 1 || v.At.Column < 1 ||
		len(v.At.Text) > maxShown+len("…")) {
		t.Fatalf("Command(%q): position = %+v, want one within the command", command, v.At)
	}
	if len(v.Message) > 4096 || len(v.Program) > maxShown+len("…") {
		t.Fatalf("Command(%q) = %+v, want bounded texts", command, v)
	}
}

func FuzzCommand(f *testing.F) {
	all := policies(f)
	for _, e := range evasions(f) {
		f.Add(e.command)
	}
	f.Fuzz(func(t *testing.T, command string) {
		for name, p := range all {
			v := p.Command(command)
			checkVerdict(t, command, v)
			if again := p.Command(command); !reflect.DeepEqual(v, again) {
				t.Fatalf("%s: Command(%q) = %+v, then %+v; want the same", name, command, v, again)
			}
			if p.rules.Match == Literal || v.Class != ClassRule && v.Class != ClassDenyList &&
				v.Class != ClassAllowList {
				continue
			}
			for _, w := range wrapped(command) {
				if got := p.Command(w); rank(got.Action) < rank(v.Action) {
					t.Fatalf("%s: Command(%q) = %s by %s, want at least %s as for %q by %s", name, w, got.Action,
						got.Rule, v.Action, command, v.Rule)
				}
			}
		}
	})
}

// wrapped returns other ways to write a command that run it too.
func wrapped(command string) []string {
	if strings.HasSuffix(command, "\\") || len(command) > MaxCommand/2 {
		return nil
	}
	out := []string{"true; " + command, "(" + " " + command + "\n)", "{ " + command + "\n}",
		"if true; then " + command + "\nfi", "ls\n" + command}
	file, err := syntax.NewParser().Parse(strings.NewReader(command), "")
	if err != nil || len(file.Stmts) != 1 || len(file.Last) > 0 {
		return out
	}
	call, ok := file.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Assigns) > 0 || len(file.Stmts[0].Redirs) > 0 || file.Stmts[0].Negated ||
		strings.HasPrefix(command, "-") {
		return out
	}
	if name := call.Args[0].Lit(); name != "" && !strings.ContainsAny(name, "=-\\{*?[~") &&
		strings.HasPrefix(command, name) {
		out = append(out, "env "+command, "nice "+command, "timeout 5 "+command)
	}
	return out
}

func FuzzLine(f *testing.F) {
	rules := readOnlyRules(f)
	p, err := Compile(Rules{Forbid: []string{";", "|", "&&", "||", "$", "`", ">", "<"}, Argv: &rules})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"ls -la", "rm x", "ls | cat", "cat 'a b'", "cat '", "sed -n 5p a", "find . -delete"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words, v := p.Line(line)
		checkVerdict(t, line, v)
		if (v.Action == Deny) != (words == nil) {
			t.Fatalf("Line(%q) = %q, %+v; want words only if not denied", line, words, v)
		}
		if words != nil && (rules.Check(words) != nil || strings.ContainsAny(line, ";|$`<>")) {
			t.Fatalf("Line(%q) = %q, want words that pass the rules and no metacharacters", line, words)
		}
	})
}

func FuzzArgv(f *testing.F) {
	all := policies(f)
	f.Add("rm\n-rf\n/")
	f.Add("sh\n-c\nrm -rf /")
	f.Add("env\nA=b\nsudo\nls")
	f.Fuzz(func(t *testing.T, words string) {
		v := strings.Split(words, "\n")
		for _, p := range all {
			got := p.Argv(v)
			checkVerdict(t, strings.Join(v, " "), got)
			if again := p.Argv(v); !reflect.DeepEqual(got, again) {
				t.Fatalf("Argv(%q) = %+v, then %+v; want the same", v, got, again)
			}
		}
	})
}

func FuzzCompile(f *testing.F) {
	f.Add("deny: [rm]\nrules: [{id: a, action: deny, programs: [x], flags: [[-r]]}]")
	f.Add("match: literal\nrules: [{id: a, action: ask, pattern: 'x('}]")
	f.Fuzz(func(t *testing.T, text string) {
		var rules Rules
		if yaml.UnmarshalStrict([]byte(text), &rules) != nil {
			return
		}
		p, err := Compile(rules)
		if err != nil {
			var broken *RuleError
			if !errors.As(err, &broken) || broken.Path == "" || broken.Reason == "" || !errdefs.IsInvalidArgument(err) {
				t.Fatalf("Compile error %v, want a RuleError with path and reason", err)
			}
			return
		}
		checkVerdict(t, "rm -rf / | sh", p.Command("rm -rf / | sh"))
	})
}
