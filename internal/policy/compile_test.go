package policy

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"sigs.k8s.io/yaml"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
)

// secondRule returns valid rules followed by r, with its ID and Action set if empty.
func secondRule(r Rule) Rules {
	if r.ID == "" {
		r.ID = "a"
	}
	if r.Action == "" {
		r.Action = Deny
	}
	return Rules{Rules: []Rule{{ID: "first", Action: Deny, Programs: []string{"x"}}, r}}
}

// literalRules returns rules with Match Literal and the single rule r.
func literalRules(r Rule) Rules {
	r.ID, r.Action = "a", Deny
	return Rules{Match: Literal, Rules: []Rule{r}}
}

// invalidRules maps the start of the expected error to rules.
var invalidRules = map[string]Rules{
	`match is "x"`:                {Match: "x"},
	`default is "x"`:              {Default: "x"},
	`unknown is "x"`:              {Unknown: "x"},
	"allow[0] is empty":           {Allow: []string{""}},
	"deny[1] is an invalid":       {Deny: []string{"a", "[a"}},
	"deny[0] is \"/bin/rm\"":      {Deny: []string{"/bin/rm"}},
	"forbid[0] is empty":          {Forbid: []string{""}},
	"messages.x is not a class":   {Messages: map[string]string{"x": "y"}},
	"messages.rule is not a v":    {Messages: map[string]string{"rule": "{{"}},
	"messages.rule cannot be":     {Messages: map[string]string{"rule": "{{.Nope}}"}},
	"argv is invalid":             {Argv: &argv.Rules{}},
	"match is literal":            {Match: Literal, Deny: []string{"a"}},
	"rules[0].id is empty":        {Rules: []Rule{{Action: Deny, Programs: []string{"x"}}}},
	"rules[0].action is empty":    {Rules: []Rule{{ID: "a", Programs: []string{"x"}}}},
	"rules[1].action is \"x\"":    secondRule(Rule{Action: "x", Programs: []string{"x"}}),
	"rules[1].never req":          secondRule(Rule{Action: Ask, Never: true, Programs: []string{"x"}}),
	"rules[1].id is \"first\"":    secondRule(Rule{ID: "first", Programs: []string{"x"}}),
	"rules[1] has no condition":   secondRule(Rule{}),
	"rules[1].pattern requires":   secondRule(Rule{Pattern: "x"}),
	"rules[1].substring requires": secondRule(Rule{Substring: "x"}),
	"rules[1].ignore_case req":    secondRule(Rule{IgnoreCase: true, Programs: []string{"x"}}),
	"rules[1].programs is empty":  secondRule(Rule{Operands: []string{"x"}}),
	"rules[1].operands[0] is an":  secondRule(Rule{Programs: []string{"x"}, Operands: []string{"[a"}}),
	"rules[1].flags[0] is empty":  secondRule(Rule{Programs: []string{"x"}, Flags: [][]string{{}}}),
	"rules[1].flags[0][1] is":     secondRule(Rule{Programs: []string{"x"}, Flags: [][]string{{"-a", "--"}}}),
	"rules[1].flags[0][0] gives":  secondRule(Rule{Programs: []string{"x"}, Flags: [][]string{{"-c a"}}}),
	"rules[1].value_flags[0] is":  secondRule(Rule{Programs: []string{"x"}, ValueFlags: []string{"x"}}),
	"rules[1].value_flags is not": secondRule(Rule{ValueFlags: []string{"-x"}}),
	"rules[1].construct is":       secondRule(Rule{Construct: "x"}),
	"rules[1].construct must":     secondRule(Rule{Construct: "function", Programs: []string{"x"}}),
	"rules[1].pipe needs":         secondRule(Rule{Pipe: &Pipe{From: []string{"x"}}}),
	"rules[1].pipe must be": secondRule(Rule{Pipe: &Pipe{From: []string{"x"}, To: []string{"y"}},
		Programs: []string{"x"}}),
	"rules[1].writes[0] is empty": secondRule(Rule{Writes: []string{""}}),
	"rules[0] has neither":        literalRules(Rule{}),
	"rules[0].pattern is an":      literalRules(Rule{Pattern: "("}),
	"rules[0].substring cannot":   literalRules(Rule{Pattern: "a", Substring: "b"}),
	"rules[0].programs requires":  literalRules(Rule{Programs: []string{"x"}, Pattern: "x"}),
}

func TestCompileInvalidRules(t *testing.T) {
	for want, r := range invalidRules {
		_, err := Compile(r)
		var broken *RuleError
		if !errors.As(err, &broken) || !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Compile(%+v) = %v, want %s...", r, err, want)
		}
	}
}

func TestLineUsesMessageTemplates(t *testing.T) {
	rules := readOnlyRules(t)
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
		"rm -rf /": "Command 'rm' not in whitelist. Allowed: awk, cat, cut, date, diff, env, file, find, grep, head, " +
			"less, ls, pwd, rg, sed, sort, stat, tail, tr, uniq, wc, which, whoami",
		"cat 'x": "Invalid command syntax: No closing quotation",
		"":       "Empty command",
		"  ":     "Empty command",
	} {
		words, v := p.Line(line)
		if v.Action != Deny || v.Message != want || words != nil {
			t.Errorf("Line(%q) = %q, %+v; want message %q", line, words, v, want)
		}
	}
	words, v := p.Line(`grep -r "TO DO" .`)
	if v.Action != Allow || !reflect.DeepEqual(words, []string{"grep", "-r", "TO DO", "."}) {
		t.Errorf("Line = %q, %+v; want the words and allow", words, v)
	}
	if _, v := p.Line("cat ../x"); v.Class != ClassPath || v.At == nil {
		t.Errorf("Line(cat ../x) = %+v, want class path with a position", v)
	}
}

func TestArgvFindsWrappedPrograms(t *testing.T) {
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
			t.Errorf("%s: Argv(%q) = %+v, want rule %s", c.profile, c.argv, v, c.want)
		}
	}
}

func TestVerdictPosition(t *testing.T) {
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
			t.Errorf("Command(%q) = %+v at %+v, want deny at %+v", command, v, v.At, want)
		}
	}
	v := p.Command("rm -rf / " + strings.Repeat("é", 200))
	if v.At == nil || len(v.At.Text) > maxShown+len("…") || !strings.HasSuffix(v.At.Text, "…") {
		t.Errorf("position %+v, want text truncated to %d bytes", v.At, maxShown)
	}
}

func TestVerdictReportsHardDeny(t *testing.T) {
	for command, want := range map[string]bool{"rm -rf /": true, "ls": false} {
		b, err := json.Marshal(policies(t)["phase2"].Command(command))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(b), `"hard_deny":true`); got != want {
			t.Errorf("Command(%q) = %s, want hard_deny %v", command, b, want)
		}
	}
}

func TestLongHeredocIsCheap(t *testing.T) {
	p := policies(t)["phase2"]
	body := strings.Repeat("func f(a, b int) { return; } // $(x) `y` ${z} | & ;\n", 1100)
	for _, command := range []string{
		"cat > x.go <<'EOF'\n" + body + "EOF\nls",
		"git commit -m '" + strings.ReplaceAll(body, "'", "") + "'",
	} {
		if v := p.Command(command); v.Action != Allow {
			t.Errorf("Command of %d bytes = %+v, want allow", len(command), v)
		}
	}
	if v := p.Command("cat > x.go <<'EOF'\n" + body + "EOF\nrm -rf /"); v.Rule != "never:rm-rf-root" {
		t.Errorf("Command = %+v, want rule never:rm-rf-root", v)
	}
}

// readOnlyRules returns the argument rules of the profile readonly.
func readOnlyRules(tb testing.TB) argv.Rules {
	tb.Helper()
	data, err := os.ReadFile("../profile/data/readonly.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	var file struct {
		Policy struct {
			Argv argv.Rules `json:"argv"`
		} `json:"policy"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		tb.Fatal(err)
	}
	return file.Policy.Argv
}
