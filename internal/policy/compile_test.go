package policy

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
)

func TestBrokenRulesAreNamedByTheirPath(t *testing.T) {
	rule := func(r Rule) Rules {
		if r.ID == "" {
			r.ID = "a"
		}
		if r.Action == "" {
			r.Action = Deny
		}
		return Rules{Rules: []Rule{{ID: "first", Action: Deny, Programs: []string{"x"}}, r}}
	}
	literal := func(r Rule) Rules {
		r.ID, r.Action = "a", Deny
		return Rules{Match: Literal, Rules: []Rule{r}}
	}
	for want, r := range map[string]Rules{
		`match is "x"`:                {Match: "x"},
		`default is "x"`:              {Default: "x"},
		`unknown is "x"`:              {Unknown: "x"},
		"allow[0] is empty":           {Allow: []string{""}},
		"deny[1] is no glob":          {Deny: []string{"a", "[a"}},
		"deny[0] is \"/bin/rm\"":      {Deny: []string{"/bin/rm"}},
		"forbid[0] is empty":          {Forbid: []string{""}},
		"messages.x is no class":      {Messages: map[string]string{"x": "y"}},
		"messages.rule is no templ":   {Messages: map[string]string{"rule": "{{"}},
		"messages.rule cannot be":     {Messages: map[string]string{"rule": "{{.Nope}}"}},
		"argv cannot be used":         {Argv: &argv.Rules{}},
		"match is literal":            {Match: Literal, Deny: []string{"a"}},
		"rules[0].id is empty":        {Rules: []Rule{{Action: Deny, Programs: []string{"x"}}}},
		"rules[0].action is empty":    {Rules: []Rule{{ID: "a", Programs: []string{"x"}}}},
		"rules[1].action is \"x\"":    rule(Rule{Action: "x", Programs: []string{"x"}}),
		"rules[1].never is for":       rule(Rule{Action: Ask, Never: true, Programs: []string{"x"}}),
		"rules[1].id is \"first\"":    rule(Rule{ID: "first", Programs: []string{"x"}}),
		"rules[1] has no condition":   rule(Rule{}),
		"rules[1].pattern is for":     rule(Rule{Pattern: "x"}),
		"rules[1].substring is for":   rule(Rule{Substring: "x"}),
		"rules[1].ignore_case is for": rule(Rule{IgnoreCase: true, Programs: []string{"x"}}),
		"rules[1].programs is empty":  rule(Rule{Operands: []string{"x"}}),
		"rules[1].operands[0] is no":  rule(Rule{Programs: []string{"x"}, Operands: []string{"[a"}}),
		"rules[1].flags[0] is empty":  rule(Rule{Programs: []string{"x"}, Flags: [][]string{{}}}),
		"rules[1].flags[0][1] is":     rule(Rule{Programs: []string{"x"}, Flags: [][]string{{"-a", "--"}}}),
		"rules[1].flags[0][0] gives":  rule(Rule{Programs: []string{"x"}, Flags: [][]string{{"-c a"}}}),
		"rules[1].value_flags[0] is":  rule(Rule{Programs: []string{"x"}, ValueFlags: []string{"x"}}),
		"rules[1].value_flags is no":  rule(Rule{ValueFlags: []string{"-x"}}),
		"rules[1].construct is":       rule(Rule{Construct: "x"}),
		"rules[1].construct stands":   rule(Rule{Construct: "function", Programs: []string{"x"}}),
		"rules[1].pipe needs":         rule(Rule{Pipe: &Pipe{From: []string{"x"}}}),
		"rules[1].pipe stands alone":  rule(Rule{Pipe: &Pipe{From: []string{"x"}, To: []string{"y"}}, Programs: []string{"x"}}),
		"rules[1].writes[0] is empty": rule(Rule{Writes: []string{""}}),
		"rules[0] has neither":        literal(Rule{}),
		"rules[0].pattern is no":      literal(Rule{Pattern: "("}),
		"rules[0].substring and":      literal(Rule{Pattern: "a", Substring: "b"}),
		"rules[0].programs is for":    literal(Rule{Programs: []string{"x"}, Pattern: "x"}),
	} {
		_, err := Compile(r)
		var broken *RuleError
		if !errors.As(err, &broken) || !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestReadonlyLinesAreAnsweredInTheSourcesWords(t *testing.T) {
	rules := argv.ReadOnly("/workspace")
	p, err := Compile(Rules{
		Forbid: []string{";", "|", "&&", "||", "$", "`", "$(", "${", ">", "<", ">>"}, Argv: &rules,
		Messages: map[string]string{
			ClassForbidden: "Blocked: shell metacharacter '{{.Text}}' not allowed",
			ClassAllowList: "Command '{{.Program}}' not in whitelist. Allowed: {{.Allowed}}",
			ClassSyntax:    "Invalid command syntax: {{.Reason}}",
			ClassEmpty:     "Empty command",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"ls | cat":                "Blocked: shell metacharacter '|' not allowed",
		"ls; rm x":                "Blocked: shell metacharacter ';' not allowed",
		"ls && x":                 "Blocked: shell metacharacter '&&' not allowed",
		"echo `x`":                "Blocked: shell metacharacter '`' not allowed",
		"echo $(cat /etc/passwd)": "Blocked: shell metacharacter '$' not allowed",
		"rm -rf /":                "Command 'rm' not in whitelist. Allowed: awk, cat, cut, date, diff, env, file, find, grep, head, less, ls, pwd, rg, sed, sort, stat, tail, tr, uniq, wc, which, whoami",
		"cat 'x":                  "Invalid command syntax: No closing quotation",
		"":                        "Empty command",
		"  ":                      "Empty command",
	} {
		words, v := p.Line(line)
		if v.Action != Deny || v.Message != want || words != nil {
			t.Errorf("%q: %q, %+v; want %q", line, words, v, want)
		}
	}
	words, v := p.Line(`grep -r "TO DO" .`)
	if v.Action != Allow || !reflect.DeepEqual(words, []string{"grep", "-r", "TO DO", "."}) {
		t.Errorf("%q, %+v", words, v)
	}
	if _, v := p.Line("cat ../x"); v.Class != ClassPath || v.At == nil {
		t.Errorf("%+v", v)
	}
}

func TestArgumentVectorsAreSeenThroughToo(t *testing.T) {
	all := policies(t)
	for _, c := range []struct {
		profile, want string
		argv          []string
	}{
		{"phase2", "never:rm-rf-root", []string{"rm", "-rf", "/"}},
		{"phase2", "never:rm-rf-root", []string{"sh", "-c", "rm -rf /"}},
		{"phase2", "never:rm-rf-root", []string{"env", "A=b", "nice", "rm", "-fr", "//"}},
		{"phase2", "never:rm-rf-root", []string{"xargs", "bash", "-c", "rm -rf /"}},
		{"universal", "denylist:sudo", []string{"/usr/bin/sudo", "ls"}},
		{"universal", "default", []string{"sudo; ls"}},
		{"universal", "default", []string{"ls", "; sudo x", "$(sudo)", "|", "sudo"}},
		{"writer", "allowlist:command; rm -rf /", []string{"command; rm -rf /"}},
		{"phase2", "empty", nil},
		{"phase2", "empty", []string{""}},
		{"phase2", "syntax", []string{"ls", "a\x00"}},
		{"phase2", "limit", []string{"ls", strings.Repeat("a", MaxCommand)}},
	} {
		if v := all[c.profile].Argv(c.argv); v.Rule != c.want {
			t.Errorf("%s: %q: %+v; want %s", c.profile, c.argv, v, c.want)
		}
	}
}

func TestAVerdictNamesThePlace(t *testing.T) {
	p := policies(t)["phase2"]
	for command, want := range map[string]Position{
		"ls\n  rm -rf / && x":  {Offset: 5, Line: 2, Column: 3, Text: "rm -rf /"},
		"ls; sh -c 'rm -rf /'": {Offset: 10, Line: 1, Column: 11, Text: "'rm -rf /'"},
		"ls > x; ls > /etc/x":  {Offset: 11, Line: 1, Column: 12, Text: "> /etc/x"},
		"a \xff":               {Offset: 2, Line: 1, Column: 3},
		"ls \x00":              {Offset: 3, Line: 1, Column: 4, Text: "\x00"},
		"ls )":                 {Offset: 3, Line: 1, Column: 4, Text: ")"},
	} {
		v := p.Command(command)
		if v.At == nil || *v.At != want || v.Action != Deny {
			t.Errorf("%q: %+v at %+v; want %+v", command, v, v.At, want)
		}
	}
	v := p.Command("rm -rf / " + strings.Repeat("é", 200))
	if v.At == nil || len(v.At.Text) > maxShown+len("…") || !strings.HasSuffix(v.At.Text, "…") {
		t.Errorf("%+v", v.At)
	}
}

func TestALongFileInAHereDocumentIsNoBurden(t *testing.T) {
	p := policies(t)["phase2"]
	body := strings.Repeat("func f(a, b int) { return; } // $(x) `y` ${z} | & ;\n", 1100)
	for _, command := range []string{
		"cat > x.go <<'EOF'\n" + body + "EOF\nls",
		"git commit -m '" + strings.ReplaceAll(body, "'", "") + "'",
	} {
		if v := p.Command(command); v.Action != Allow {
			t.Errorf("%d bytes: %+v", len(command), v)
		}
	}
	if v := p.Command("cat > x.go <<'EOF'\n" + body + "EOF\nrm -rf /"); v.Rule != "never:rm-rf-root" {
		t.Errorf("%+v", v)
	}
}
