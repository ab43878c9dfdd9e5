package policy

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"mvdan.cc/sh/v3/syntax"
	"sigs.k8s.io/yaml"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
)

func sane(t *testing.T, command string, v Verdict) {
	t.Helper()
	if v.Action != Allow && v.Action != Ask && v.Action != Deny {
		t.Fatalf("%q: no action: %+v", command, v)
	}
	if v.Rule == unreadable {
		t.Fatalf("%q: a fault", command)
	}
	if v.Action != Allow && (v.Message == "" || v.Class == "" || v.Rule == "") {
		t.Fatalf("%q: says nothing: %+v", command, v)
	}
	if v.At != nil && (v.At.Offset < 0 || v.At.Offset > len(command) || v.At.Line < 1 || v.At.Column < 1 || len(v.At.Text) > maxShown+len("…")) {
		t.Fatalf("%q: place %+v", command, v.At)
	}
	if len(v.Message) > 4096 || len(v.Program) > maxShown+len("…") {
		t.Fatalf("%q: too much is said: %+v", command, v)
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
			sane(t, command, v)
			if again := p.Command(command); !reflect.DeepEqual(v, again) {
				t.Fatalf("%s: %q: %+v, then %+v", name, command, v, again)
			}
			if p.rules.Match == Literal || v.Class != ClassRule && v.Class != ClassDenyList && v.Class != ClassAllowList {
				continue
			}
			for _, w := range wrapped(command) {
				if got := p.Command(w); rank(got.Action) < rank(v.Action) {
					t.Fatalf("%s: %q is %s by %s, but %q is %s by %s", name, command, v.Action, v.Rule, w, got.Action, got.Rule)
				}
			}
		}
	})
}

// wrapped are ways to write a command that run it too.
func wrapped(command string) []string {
	if strings.HasSuffix(command, "\\") || len(command) > MaxCommand/2 {
		return nil
	}
	out := []string{"true; " + command, "(" + " " + command + "\n)", "{ " + command + "\n}", "if true; then " + command + "\nfi", "ls\n" + command}
	file, err := syntax.NewParser().Parse(strings.NewReader(command), "")
	if err != nil || len(file.Stmts) != 1 || len(file.Last) > 0 {
		return out
	}
	call, ok := file.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Assigns) > 0 || len(file.Stmts[0].Redirs) > 0 || file.Stmts[0].Negated || strings.HasPrefix(command, "-") {
		return out
	}
	if name := call.Args[0].Lit(); name != "" && !strings.ContainsAny(name, "=-\\{*?[~") && strings.HasPrefix(command, name) {
		out = append(out, "env "+command, "nice "+command, "timeout 5 "+command)
	}
	return out
}

func FuzzLine(f *testing.F) {
	rules := argv.ReadOnly("/workspace")
	p, err := Compile(Rules{Forbid: []string{";", "|", "&&", "||", "$", "`", ">", "<"}, Argv: &rules})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"ls -la", "rm x", "ls | cat", "cat 'a b'", "cat '", "sed -n 5p a", "find . -delete"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words, v := p.Line(line)
		sane(t, line, v)
		if (v.Action == Deny) != (words == nil) {
			t.Fatalf("%q: %q with %+v", line, words, v)
		}
		if words != nil && (rules.Check(words) != nil || strings.ContainsAny(line, ";|$`<>")) {
			t.Fatalf("%q runs as %q", line, words)
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
			sane(t, strings.Join(v, " "), got)
			if !reflect.DeepEqual(got, p.Argv(v)) {
				t.Fatalf("%q: two answers", v)
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
				t.Fatalf("%v", err)
			}
			return
		}
		sane(t, "rm -rf / | sh", p.Command("rm -rf / | sh"))
	})
}
