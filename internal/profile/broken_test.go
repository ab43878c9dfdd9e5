package profile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// bomb returns YAML with n levels of aliases, each of which doubles the number of values.
func bomb(n int) string {
	var b strings.Builder
	b.WriteString("description: &a0 [x, x]\n")
	for i := 1; i < n; i++ {
		b.WriteString("x" + string(rune('a'+i)) + ": &a" + string(rune('a'+i)) + " [*a" +
			map[bool]string{true: "0", false: string(rune('a' + i - 1))}[i == 1] + ", *a" +
			map[bool]string{true: "0", false: string(rune('a' + i - 1))}[i == 1] + "]\n")
	}
	return b.String()
}

// bashTool is the start of a profile with one tool.
const bashTool = "name: x\ntools:\n  - name: system.bash\n"

// invalidFiles are files with the expected error.
var invalidFiles = map[string]struct{ text, want string }{
	"nothing":       {"", "x.yaml: is empty"},
	"a comment":     {"# nothing\n", "x.yaml: is empty"},
	"not a map":     {"- a\n", "x.yaml:1: is a list and must be a map of keys"},
	"invalid YAML":  {"name: x\ntools: [a\n", "x.yaml:3: is invalid YAML: "},
	"a tab":         {"name: x\ntools:\n\t- name: a\n", "x.yaml:3: is invalid YAML: "},
	"invalid UTF-8": {"name: x\ntitle: \xff\n", "x.yaml:2: is not valid UTF-8"},
	"two documents": {bashTool + "---\nname: y\n", "x.yaml:4: has more than one document"},
	"too large": {"# " + strings.Repeat("x", MaxFile),
		"x.yaml: is 1048578 bytes long, more than 1048576"},
	"an alias bomb":    {bomb(24), "has more than 50000 values"},
	"a circular alias": {"name: x\ntools: &a [*a]\n", "x.yaml:2: "},
	"deep nesting": {"name: x\ntools: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n",
		"x.yaml:2: is nested more than 64 levels"},
	"a merge key": {"name: x\nbase: &b {a: 1}\n<<: *b\n", "x.yaml:3: has a merge key"},
	"a duplicate key": {"name: x\ntitle: a\ntitle: b\n",
		`x.yaml:3: has duplicate key "title", first in line 2`},
	"a list as a key": {"name: x\n[a]: b\n", "x.yaml:2: has a key that is not a scalar"},
	"an unknown tag":  {"name: !secret x\n", "x.yaml:1: has a value with unsupported tag !secret"},
	"an unknown key": {bashTool + "tool: []\n",
		`x.yaml:4: tool: is unknown; did you mean "tools"?`},
	"an unknown key of a tool": {bashTool + "    desription: a\n",
		`x.yaml:4: tools[0].desription: is unknown; did you mean "description"?`},
	"an unknown key of a rule": {bashTool + "policy:\n  rules:\n    - id: a\n      acton: deny\n",
		`x.yaml:7: policy.rules[0].acton: is unknown; did you mean "action"?`},
	"an unknown key of caps": {bashTool + "    caps: {timeout: 3}\n",
		`x.yaml:4: tools[0].caps.timeout: is unknown`},
	"a number for a text": {"name: 3\n",
		"x.yaml:1: name: is a whole number and must be text: put it in quotes"},
	"a yes for a text": {bashTool + "description: true\n",
		"x.yaml:4: description: is true or false and must be text: put it in quotes"},
	"a text for a number": {bashTool + "    trust: high\n",
		"x.yaml:4: tools[0].trust: is text and must be a whole number"},
	"a map for a list": {"name: x\ntools:\n  a: {}\n",
		"x.yaml:2: tools: is a map of keys and must be a list"},
	"nothing under a key":        {bashTool + "policy:\n", "x.yaml:4: policy: is empty"},
	"a number that is too large": {bashTool + "    trust: 99999999999999999999\n", "x.yaml:4: "},
	"a name of two words":        {"name: a b\ntools: []\n", `x.yaml:1: name: is "a b": use up to 64 of a-z`},
	"a built-in name": {"name: phase2\ntools: []\n",
		`x.yaml:1: name: is "phase2", the name of a built-in profile: use another name and extend it`},
	"an unknown extends": {"name: x\nextends: phase3\n",
		`x.yaml:2: extends: names unknown profile "phase3"; did you mean "phase2"?`},
	"a circular extends": {"name: x\nextends: x\n", "x.yaml:2: extends: is circular: x extends x"},
	"no tools":           {"name: x\n", "x.yaml:1: tools: has no tools"},
	"a tool without a name": {"name: x\ntools:\n  - base: system.bash\n",
		"x.yaml:3: tools[0].name: is missing"},
	"a tool's odd name": {"name: x\ntools:\n  - name: a b\n",
		`x.yaml:3: tools[0].name: is "a b": use up to 64`},
	"a duplicate tool": {bashTool + "  - name: system_bash\n    base: system.bash\n",
		"x.yaml:4: tools[1].name: is \"system_bash\", which tools[0] has too"},
	"an unknown tool": {"name: x\ntools:\n  - name: system.bahs\n",
		`x.yaml:3: tools[0].name: is "system.bahs": built-in tool not found; did you mean "system.bash"?`},
	"an unknown base": {bashTool + "    base: bash\n",
		`x.yaml:4: tools[0].base: is "bash": built-in tool not found`},
	"bases alone": {"name: x\ntools:\n  - name: a\n    bases: '\"fs.read\"'\n",
		"x.yaml:4: tools[0].bases: requires input, arguments, effects and trust"},
	"too much trust": {bashTool + "    trust: 4\n", "x.yaml:4: tools[0].trust: is 4: must be from 0 to 3"},
	"an odd effect":  {bashTool + "    effects: [runs]\n", `x.yaml:4: tools[0].effects[0]: is "runs"`},
	"a schema of a list": {bashTool + "    input: {type: array}\n",
		"x.yaml:4: tools[0].input: must be the schema of an object"},
	"an invalid schema": {bashTool + "    input: {type: object, properties: 3}\n",
		"x.yaml:4: tools[0].input: is an invalid JSON Schema"},
	"a remote schema": {bashTool +
		"    input: {type: object, properties: {a: {$ref: 'https://example.com/x'}}}\n",
		"x.yaml:4: tools[0].input: is an invalid JSON Schema"},
	"a default of another type": {bashTool +
		"    input: {type: object, properties: {a: {type: string, default: 3}}}\n",
		"x.yaml:4: tools[0].input: is an invalid JSON Schema"},
	"a broken expression": {bashTool + "    result: |-\n      {\"a\": r.}\n",
		"x.yaml:4: tools[0].result: 1:9: "},
	"an unknown variable": {bashTool + "    arguments: 'output'\n",
		"x.yaml:4: tools[0].arguments: 1:1: undeclared reference to 'output'"},
	"the result in arguments": {bashTool + "    arguments: 'r'\n", "x.yaml:4: tools[0].arguments: "},
	"a broken template":       {bashTool + "    text: '{{.r'\n", "x.yaml:4: tools[0].text: is invalid: "},
	"an unknown field": {bashTool + "    text: '{{.rr}}'\n",
		`x.yaml:4: tools[0].text: uses unknown field .rr`},
	"an unknown function": {bashTool + "    text: '{{printf \"%d\" 3}}'\n",
		"x.yaml:4: tools[0].text: calls unknown function printf"},
	"a template in a template": {bashTool + "    text: '{{define \"a\"}}{{end}}'\n",
		"x.yaml:4: tools[0].text: must not define templates"},
	"an unknown ending": {bashTool + "    errors: {timeuot: {type: A}}\n",
		`x.yaml:4: tools[0].errors.timeuot: is an unknown ending; did you mean "timeout"?`},
	"an unknown class": {bashTool + "    errors: {'policy_denied:trost': {type: A}}\n",
		`x.yaml:4: tools[0].errors.policy_denied:trost: is an unknown class of policy_denied; did you mean "trust"?`},
	"an error without a type": {bashTool + "    errors: {timeout: {message: A}}\n",
		"x.yaml:4: tools[0].errors.timeout: must have a type"},
	"a broken message": {bashTool + "    errors: {timeout: {type: A, message: '{{.field}}'}}\n",
		"x.yaml:4: tools[0].errors.timeout.message: uses unknown field .field"},
	"a negative cap": {bashTool + "    caps: {cpus: -1}\n", "x.yaml:4: tools[0].caps.cpus: must not be negative"},
	"a bound of another tool": {bashTool + "    caps: {web: {deny: [a.example]}}\n",
		"x.yaml:4: tools[0].caps.web: applies only to web.fetch, http.request, browser.open: "},
	"a default over the bound": {bashTool + "    caps: {timeout_ms: 3, max_timeout_ms: 2}\n",
		"x.yaml:4: tools[0].caps.timeout_ms: is 3: must not exceed max_timeout_ms (2)"},
	"an unknown unit": {bashTool + "    caps: {output: {unit: lines}}\n",
		`x.yaml:4: tools[0].caps.output.unit: is "lines": use bytes, characters`},
	"a relative directory": {bashTool + "    caps: {dirs: [a]}\n",
		`x.yaml:4: tools[0].caps.dirs[0]: is "a": use an absolute, clean path`},
	"an empty rate": {bashTool + "    rate: {max_calls: 0, window_ms: 1}\n",
		"x.yaml:4: tools[0].rate: must have max_calls and window_ms over 0"},
	"an odd path": {bashTool + "paths:\n  /a: b\n", `x.yaml:5: paths./a: maps "/a" to "b"`},
	"an unknown workspace": {bashTool + "workspace: jobs\n",
		`x.yaml:4: workspace: is "jobs": use none, caller, job; did you mean "job"?`},
	"an unknown raise": {bashTool + "raise_trust: ask\n",
		`x.yaml:4: raise_trust: is "ask": use deny, prompt`},
	"an unknown network": {bashTool + "network: host\n", `x.yaml:4: network: is "host": use none, bridge`},
	"an approval of an unknown tool": {bashTool + "approvals:\n  - tool: bash\n    action: deny\n",
		`x.yaml:5: approvals[0].tool: is "bash": tool not found`},
	"an approval's odd action": {bashTool + "approvals:\n  - tool: '*'\n    action: ask\n",
		`x.yaml:6: approvals[0].action: `},
	"an approval's odd condition": {bashTool +
		"approvals:\n  - {tool: '*', action: deny}\n  - tool: '*'\n    action: deny\n    when: 'input.'\n",
		`x.yaml:8: approvals[1].when: 1:7: `},
	"a rule without an id": {bashTool + "policy:\n  rules:\n    - action: deny\n      programs: [a]\n",
		"x.yaml:6: policy.rules[0].id: is empty"},
	"a rule's odd action": {bashTool +
		"policy:\n  rules:\n    - {id: a, action: deny, programs: [a]}\n    - id: b\n      action: " +
		"dney\n      programs: [a]\n", `x.yaml:8: policy.rules[1].action: is "dney"`},
	"a rule without a condition": {bashTool + "policy:\n  rules:\n    - {id: a, action: deny}\n",
		"x.yaml:6: policy.rules[0]: has no condition"},
	"a rule with a pattern": {bashTool + "policy:\n  rules:\n    - {id: a, action: deny, pattern: x}\n",
		"x.yaml:6: policy.rules[0].pattern: requires match literal"},
	"a broken pattern": {bashTool +
		"policy:\n  match: literal\n  rules:\n    - id: a\n      action: deny\n      pattern: '('\n",
		"x.yaml:9: policy.rules[0].pattern: is an invalid regular expression"},
	"an odd match": {bashTool + "policy: {match: regex}\n", `x.yaml:4: policy.match: is "regex"`},
	"a policy's unknown class": {bashTool + "policy:\n  messages:\n    rul: a\n",
		"x.yaml:6: policy.messages.rul: is not a class"},
	"a tool's broken policy": {bashTool + "    policy:\n      deny: ['']\n",
		"x.yaml:5: tools[0].policy.deny[0]: is empty"},
	"a budget without a limit": {bashTool + "approvals:\n  - tool: '*'\n    action: budget\n    period: daily\n",
		`approvals[0].limit: `},
}

func TestInvalidFiles(t *testing.T) {
	for name, c := range invalidFiles {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, map[string]string{"x.yaml": c.text})
			if err == nil || !strings.HasPrefix(err.Error(), "x.yaml") || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Load: %v\nwant an error of x.yaml with %s", err, c.want)
			}
			if e, ok := errors.AsType[*FileError](err); !ok || !errdefs.IsInvalidArgument(err) || e.Reason == "" {
				t.Errorf("error of type %T, want a *FileError with a reason", err)
			}
		})
	}
}

func TestLoadReportsAllErrors(t *testing.T) {
	_, err := load(t, map[string]string{"a.yaml": "nam: a\n", "b.json": "{", "c.yml": "extends: default\n",
		"d.yaml": "name: c\nextends: default\n", "e.txt": "%"})
	if err == nil {
		t.Fatal("Load succeeded, want errors")
	}
	for _, want := range []string{
		`a.yaml:1: nam: is unknown; did you mean "name"?`, "b.json:1: is an incomplete JSON value",
		`d.yaml:1: name: is "c", which c.yml has too`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Load: %v\nwant %s", err, want)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 2 {
		t.Errorf("%d errors, want 3: %v", n+1, err)
	}
}

func TestErrorInExtendedProfile(t *testing.T) {
	_, err := load(t, map[string]string{
		"a.yaml": "tools:\n  - name: system.bash\n    result: '{'\n",
		"b.yaml": "extends: a\ntools:\n  - name: system.bash\n    text: a\n",
		"c.yaml": "extends: gone\n",
		"d.yaml": "extends: c\n",
	})
	if err == nil || strings.Count(err.Error(), "a.yaml:3: tools[0].result") != 1 {
		t.Errorf("Load = %v, want one error for a.yaml:3", err)
	}
	if !strings.Contains(err.Error(),
		`d.yaml:1: extends: is invalid: c.yaml:1: extends: names unknown profile "gone"`) {
		t.Errorf("Load = %v, want the error of c.yaml in d.yaml", err)
	}
}

func TestCircularExtends(t *testing.T) {
	_, err := load(t, map[string]string{"a.yaml": "extends: b\n", "b.yaml": "extends: a\n"})
	if err == nil || !strings.Contains(err.Error(), "is circular: a extends b extends a") {
		t.Errorf("Load = %v, want a circular extends", err)
	}
}

func TestLoadRefusesSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "x.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "y.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(dir)
	if err == nil || !strings.Contains(err.Error(), "x.yaml: is not a regular file") ||
		!strings.Contains(err.Error(), "y.yaml: ") || strings.Contains(err.Error(), "root:") {
		t.Errorf("Load = %v, want errors for x.yaml and y.yaml", err)
	}
	if _, err := Load(filepath.Join(dir, "none")); err == nil {
		t.Error("Load of a missing directory succeeded, want an error")
	}
}
