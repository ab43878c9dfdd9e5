package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// agentExample is the example of the universal system as it stands, with a category that has no
// counterpart.
const agentExample = `# config/experts/writer/config.yaml
tools:
  shell:
    - run_command
  research: [web_search, run_command]

shell:
  # Only these commands are allowed (if set, acts as whitelist)
  allow:
    - pdflatex
    - ls
  # These are always blocked (merged with global blocklist)
  deny: [find]
`

// loadAgent loads an agent's configuration as the profile "expert".
func loadAgent(t *testing.T, text string) (*Compiled, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "expert.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := Load(dir)
	if err != nil {
		return nil, err
	}
	return set.Get("expert")
}

func TestAgentOfUniversalLoadsAsItStands(t *testing.T) {
	p, err := loadAgent(t, agentExample)
	if err != nil {
		t.Fatalf("Load() = %v, want no error", err)
	}
	tool, err := p.Tool(universalTool)
	if err != nil || !tool.Enabled() {
		t.Fatalf("tool %s: enabled %t, error %v; want it enabled", universalTool, err == nil && tool.Enabled(), err)
	}
	for command, want := range map[string]string{
		"ls -l | ls":  "",
		"git log":     "Command not allowed: 'git'. Allowed: ls, pdflatex",
		"find .":      "Command not allowed: 'find' is blocked",
		"sudo ls":     "Command not allowed: 'sudo' is blocked",
		"pdflatex a;": "",
	} {
		v := p.Policy().Command(command)
		got := v.Message
		if v.Action == "allow" {
			got = ""
		}
		if got != want {
			t.Errorf("the policy says %q about %q, want %q", got, command, want)
		}
	}
	if w := p.Profile.Warnings; len(w) != 1 || !strings.Contains(w[0],
		"expert.yaml:5: tools.research: has no effect for web_search: the only tool is run_command") {
		t.Errorf("warnings %q, want one about tools.research in line 5", w)
	}
}

func TestAgentWithoutItsToolHasItDisabled(t *testing.T) {
	p, err := loadAgent(t, "tools:\n  shell: []\n")
	if err != nil {
		t.Fatalf("Load() = %v, want no error", err)
	}
	if tool, err := p.Tool(universalTool); err != nil || tool.Enabled() {
		t.Errorf("tool %s: error %v; want it disabled", universalTool, err)
	}
}

func TestAgentErrorsNameTheSetting(t *testing.T) {
	for text, want := range map[string]string{
		"tools: {shell: [run_command]}\nshell:\n  allow: []\n":   "expert.yaml:3: shell.allow: is empty: name a program",
		"tools: {shell: [run_command]}\nshell:\n  alow: [ls]\n":  "expert.yaml:3: shell.alow",
		"tools: {shell: run_command}\n":                          "expert.yaml:1: tools.shell: is",
		"tools: {shell: [run_command]}\nshell:\n  allow: ['']\n": "expert.yaml:3: shell.allow",
	} {
		_, err := loadAgent(t, text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load() of\n%s= %v, want an error with %q", text, err, want)
		}
	}
}
