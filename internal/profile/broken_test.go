package profile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// bomb doubles with every line, to 2^n values.
func bomb(n int) string {
	var b strings.Builder
	b.WriteString("description: &a0 [x, x]\n")
	for i := 1; i < n; i++ {
		b.WriteString("x" + string(rune('a'+i)) + ": &a" + string(rune('a'+i)) + " [*a" + map[bool]string{true: "0", false: string(rune('a' + i - 1))}[i == 1] + ", *a" + map[bool]string{true: "0", false: string(rune('a' + i - 1))}[i == 1] + "]\n")
	}
	return b.String()
}

func TestABrokenFileIsToldWithLineAndReason(t *testing.T) {
	const tool = "name: x\ntools:\n  - name: system.bash\n"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                     {"", "x.yaml: is empty"},
		"a comment":                   {"# nothing\n", "x.yaml: is empty"},
		"no map":                      {"- a\n", "x.yaml:1: is a list and must be a map of keys"},
		"no YAML":                     {"name: x\ntools: [a\n", "x.yaml:3: is not YAML: "},
		"a tab":                       {"name: x\ntools:\n\t- name: a\n", "x.yaml:3: is not YAML: "},
		"no UTF-8":                    {"name: x\ntitle: \xff\n", "x.yaml:2: is not valid UTF-8"},
		"two documents":               {tool + "---\nname: y\n", "x.yaml:4: has more than one document"},
		"too large":                   {"# " + strings.Repeat("x", MaxFile), "x.yaml: is 1048578 bytes long: at most 1048576"},
		"an alias bomb":               {bomb(24), "holds over 50000 values"},
		"a circle":                    {"name: x\ntools: &a [*a]\n", "x.yaml:2: "},
		"deep nesting":                {"name: x\ntools: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n", "x.yaml:2: nests over 64 deep"},
		"a merge key":                 {"name: x\nbase: &b {a: 1}\n<<: *b\n", "x.yaml:3: has a merge key"},
		"a key twice":                 {"name: x\ntitle: a\ntitle: b\n", `x.yaml:3: has the key "title" twice, first in line 2`},
		"a list as a key":             {"name: x\n[a]: b\n", "x.yaml:2: has a key that is not a plain word"},
		"a foreign tag":               {"name: !secret x\n", "x.yaml:1: has a value with the tag !secret"},
		"an unknown key":              {tool + "tool: []\n", `x.yaml:4: tool: is not known here; did you mean "tools"?`},
		"an unknown key of a tool":    {tool + "    desription: a\n", `x.yaml:4: tools[0].desription: is not known here; did you mean "description"?`},
		"an unknown key of a rule":    {tool + "policy:\n  rules:\n    - id: a\n      acton: deny\n", `x.yaml:7: policy.rules[0].acton: is not known here; did you mean "action"?`},
		"an unknown key of caps":      {tool + "    caps: {timeout: 3}\n", `x.yaml:4: tools[0].caps.timeout: is not known here`},
		"a number for a text":         {"name: 3\n", "x.yaml:1: name: is a whole number and must be text: put it in quotes"},
		"a yes for a text":            {tool + "description: true\n", "x.yaml:4: description: is true or false and must be text: put it in quotes"},
		"a text for a number":         {tool + "    trust: high\n", "x.yaml:4: tools[0].trust: is text and must be a whole number"},
		"a map for a list":            {"name: x\ntools:\n  a: {}\n", "x.yaml:2: tools: is a map of keys and must be a list"},
		"nothing under a key":         {tool + "policy:\n", "x.yaml:4: policy: is empty"},
		"a number that is too large":  {tool + "    trust: 99999999999999999999\n", "x.yaml:4: "},
		"a name of two words":         {"name: a b\ntools: []\n", `x.yaml:1: name: is "a b": use at most 64 of a-z`},
		"a built-in name":             {"name: phase2\ntools: []\n", `x.yaml:1: name: is "phase2", which is built in: take another name, and extend it`},
		"nothing to extend":           {"name: x\nextends: phase3\n", `x.yaml:2: extends: is "phase3", which is not known; did you mean "phase2"?`},
		"a profile of itself":         {"name: x\nextends: x\n", "x.yaml:2: extends: goes round: x extends x"},
		"no tools":                    {"name: x\n", "x.yaml:1: tools: has no tools"},
		"a tool without a name":       {"name: x\ntools:\n  - base: system.bash\n", "x.yaml:3: tools[0].name: is missing"},
		"a tool's odd name":           {"name: x\ntools:\n  - name: a b\n", `x.yaml:3: tools[0].name: is "a b": use at most 64`},
		"a tool twice":                {tool + "  - name: system_bash\n    base: system.bash\n", "x.yaml:4: tools[1].name: is \"system_bash\", which tools[0] has as well"},
		"an unknown tool":             {"name: x\ntools:\n  - name: system.bahs\n", `x.yaml:3: tools[0].name: is "system.bahs", which is no built-in tool; did you mean "system.bash"?`},
		"an unknown base":             {tool + "    base: bash\n", `x.yaml:4: tools[0].base: is "bash", which is no built-in tool`},
		"bases alone":                 {"name: x\ntools:\n  - name: a\n    bases: '\"fs.read\"'\n", "x.yaml:4: tools[0].bases: needs input, arguments, effects and trust"},
		"too much trust":              {tool + "    trust: 4\n", "x.yaml:4: tools[0].trust: is 4: from 0 to 3"},
		"an odd effect":               {tool + "    effects: [runs]\n", `x.yaml:4: tools[0].effects[0]: is "runs"`},
		"a schema of a list":          {tool + "    input: {type: array}\n", "x.yaml:4: tools[0].input: is the schema of something else than an object"},
		"no schema":                   {tool + "    input: {type: object, properties: 3}\n", "x.yaml:4: tools[0].input: is no JSON schema"},
		"a schema from afar":          {tool + "    input: {type: object, properties: {a: {$ref: 'https://example.com/x'}}}\n", "x.yaml:4: tools[0].input: is no JSON schema"},
		"a default of another type":   {tool + "    input: {type: object, properties: {a: {type: string, default: 3}}}\n", "x.yaml:4: tools[0].input: is no JSON schema"},
		"a broken expression":         {tool + "    result: |-\n      {\"a\": r.}\n", "x.yaml:4: tools[0].result: 1:9: "},
		"an unknown variable":         {tool + "    arguments: 'output'\n", "x.yaml:4: tools[0].arguments: 1:1: undeclared reference to 'output'"},
		"the result in arguments":     {tool + "    arguments: 'r'\n", "x.yaml:4: tools[0].arguments: "},
		"a broken template":           {tool + "    text: '{{.r'\n", "x.yaml:4: tools[0].text: does not parse: "},
		"an unknown field":            {tool + "    text: '{{.rr}}'\n", `x.yaml:4: tools[0].text: uses .rr, which is not known here`},
		"an unknown function":         {tool + "    text: '{{printf \"%d\" 3}}'\n", "x.yaml:4: tools[0].text: calls printf, which is not known here"},
		"a template in a template":    {tool + "    text: '{{define \"a\"}}{{end}}'\n", "x.yaml:4: tools[0].text: defines a template"},
		"an unknown ending":           {tool + "    errors: {timeuot: {type: A}}\n", `x.yaml:4: tools[0].errors.timeuot: is no ending; did you mean "timeout"?`},
		"an unknown class":            {tool + "    errors: {'policy_denied:trost': {type: A}}\n", `x.yaml:4: tools[0].errors.policy_denied:trost: is no class of policy_denied; did you mean "trust"?`},
		"an error without a type":     {tool + "    errors: {timeout: {message: A}}\n", "x.yaml:4: tools[0].errors.timeout: needs a type"},
		"a broken message":            {tool + "    errors: {timeout: {type: A, message: '{{.field}}'}}\n", "x.yaml:4: tools[0].errors.timeout.message: uses .field"},
		"a negative cap":              {tool + "    caps: {cpus: -1}\n", "x.yaml:4: tools[0].caps.cpus: is negative"},
		"a bound of another tool":     {tool + "    caps: {web: {deny: [a.example]}}\n", "x.yaml:4: tools[0].caps.web: bounds web.fetch, http.request, browser.open, and means nothing to "},
		"a default over the bound":    {tool + "    caps: {timeout_ms: 3, max_timeout_ms: 2}\n", "x.yaml:4: tools[0].caps.timeout_ms: is 3, more than max_timeout_ms, 2"},
		"an unknown unit":             {tool + "    caps: {output: {unit: lines}}\n", `x.yaml:4: tools[0].caps.output.unit: is "lines": use bytes, characters`},
		"a relative folder":           {tool + "    caps: {dirs: [a]}\n", `x.yaml:4: tools[0].caps.dirs[0]: is "a": use an absolute, clean path`},
		"a rate of nothing":           {tool + "    rate: {max_calls: 0, window_ms: 1}\n", "x.yaml:4: tools[0].rate: needs max_calls and window_ms over 0"},
		"an odd path":                 {tool + "paths:\n  /a: b\n", `x.yaml:5: paths./a: is "/a" to "b"`},
		"an unknown workspace":        {tool + "workspace: jobs\n", `x.yaml:4: workspace: is "jobs": use none, caller, job; did you mean "job"?`},
		"an unknown raise":            {tool + "raise_trust: ask\n", `x.yaml:4: raise_trust: is "ask": use deny, prompt`},
		"an unknown network":          {tool + "network: host\n", `x.yaml:4: network: is "host": use none, bridge`},
		"an approval of no tool":      {tool + "approvals:\n  - tool: bash\n    action: deny\n", `x.yaml:5: approvals[0].tool: is "bash", which is no tool here`},
		"an approval's odd action":    {tool + "approvals:\n  - tool: '*'\n    action: ask\n", `x.yaml:6: approvals[0].action: `},
		"an approval's odd condition": {tool + "approvals:\n  - {tool: '*', action: deny}\n  - tool: '*'\n    action: deny\n    when: 'input.'\n", `x.yaml:8: approvals[1].when: 1:7: `},
		"a rule without an id":        {tool + "policy:\n  rules:\n    - action: deny\n      programs: [a]\n", "x.yaml:6: policy.rules[0].id: is empty"},
		"a rule's odd action":         {tool + "policy:\n  rules:\n    - {id: a, action: deny, programs: [a]}\n    - id: b\n      action: dney\n      programs: [a]\n", `x.yaml:8: policy.rules[1].action: is "dney"`},
		"a rule of everything":        {tool + "policy:\n  rules:\n    - {id: a, action: deny}\n", "x.yaml:6: policy.rules[0]: has no condition"},
		"a rule with a pattern":       {tool + "policy:\n  rules:\n    - {id: a, action: deny, pattern: x}\n", "x.yaml:6: policy.rules[0].pattern: requires match literal"},
		"a broken pattern":            {tool + "policy:\n  match: literal\n  rules:\n    - id: a\n      action: deny\n      pattern: '('\n", "x.yaml:9: policy.rules[0].pattern: is an invalid regular expression"},
		"an odd match":                {tool + "policy: {match: regex}\n", `x.yaml:4: policy.match: is "regex"`},
		"a policy's unknown class":    {tool + "policy:\n  messages:\n    rul: a\n", "x.yaml:6: policy.messages.rul: is not a class"},
		"a tool's broken policy":      {tool + "    policy:\n      deny: ['']\n", "x.yaml:5: tools[0].policy.deny[0]: is empty"},
		"a budget of nothing":         {tool + "approvals:\n  - tool: '*'\n    action: budget\n    period: daily\n", `approvals[0].limit: `},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, map[string]string{"x.yaml": c.text})
			if err == nil || !strings.HasPrefix(err.Error(), "x.yaml") || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v\nand not %s", err, c.want)
			}
			if e, ok := errors.AsType[*FileError](err); !ok || !errdefs.IsInvalidArgument(err) || e.Reason == "" {
				t.Errorf("%T", err)
			}
		})
	}
}

func TestAllBrokenFilesAreTold(t *testing.T) {
	_, err := load(t, map[string]string{"a.yaml": "nam: a\n", "b.json": "{", "c.yml": "extends: default\n", "d.yaml": "name: c\nextends: default\n", "e.txt": "%"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`a.yaml:1: nam: is not known here; did you mean "name"?`, "b.json:1: is not a whole JSON value", `d.yaml:1: name: is "c", which c.yml has as well`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %s", err, want)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 2 {
		t.Errorf("%d lines: %v", n+1, err)
	}
}

func TestAFaultOfWhatIsExtendedIsToldWhereItStands(t *testing.T) {
	_, err := load(t, map[string]string{
		"a.yaml": "tools:\n  - name: system.bash\n    result: '{'\n",
		"b.yaml": "extends: a\ntools:\n  - name: system.bash\n    text: a\n",
		"c.yaml": "extends: gone\n",
		"d.yaml": "extends: c\n",
	})
	if err == nil || strings.Count(err.Error(), "a.yaml:3: tools[0].result") != 1 {
		t.Errorf("%v", err)
	}
	if !strings.Contains(err.Error(), `d.yaml:1: extends: cannot be used: c.yaml:1: extends: is "gone"`) {
		t.Errorf("%v", err)
	}
}

func TestTwoProfilesThatExtendEachOtherAreRefused(t *testing.T) {
	_, err := load(t, map[string]string{"a.yaml": "extends: b\n", "b.yaml": "extends: a\n"})
	if err == nil || !strings.Contains(err.Error(), "goes round: a extends b extends a") {
		t.Errorf("%v", err)
	}
}

func TestWhatIsNoRegularFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "x.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "y.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(dir)
	if err == nil || !strings.Contains(err.Error(), "x.yaml: is not a regular file") || !strings.Contains(err.Error(), "y.yaml: ") || strings.Contains(err.Error(), "root:") {
		t.Errorf("%v", err)
	}
	if _, err := Load(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there has profiles")
	}
}
