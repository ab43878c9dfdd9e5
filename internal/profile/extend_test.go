package profile

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
)

// extendFiles are profiles that extend each other.
var extendFiles = map[string]string{
	"base.yaml": `
title: Base
workspace: caller
policy:
  deny: [sudo]
  allow: [ls]
  unknown: deny
  messages: {empty: nothing, denylist: no}
  rules:
    - {id: a, action: deny, programs: [rm]}
    - {id: b, action: ask, programs: [git]}
paths: {/src: /workspace}
approvals:
  - {id: one, tool: system.bash, action: prompt}
  - {id: two, tool: system.bash, action: deny}
tools:
  - name: system.bash
    trust: 2
    errors: {timeout: {type: A}, oom: {type: B}}
    caps: {timeout_ms: 1000, max_timeout_ms: 5000, clamp: true, output: {limit: 10, keep: head}}
  - name: fs.read
`,
	"child.yaml": `
extends: base
title: Child
policy:
  allow: [cat]
  deny: [su]
  messages: {empty: "nothing, child"}
  rules:
    - {id: b, action: allow, programs: [git]}
    - {id: c, action: deny, programs: [dd]}
paths: {/tmp/x: /tmp}
approvals:
  - {id: two, tool: fs.read, action: approve}
tools:
  - name: fs.write
  - name: system.bash
    trust: 0
    errors: {oom: {type: C}}
    caps: {timeout_ms: 2000, clamp: false, output: {limit: 20}}
`,
	"grandchild.yaml": "extends: child\ntools:\n  - {name: fs.read, disabled: true}\n",
	"literal.yaml":    "extends: child\npolicy: {match: literal, rules: [{id: x, action: deny, substring: x}]}\n",
}

func TestExtend(t *testing.T) {
	s, err := load(t, extendFiles)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Get("child")
	if err != nil {
		t.Fatal(err)
	}
	p := c.Profile
	if p.Title != "Child" || p.Workspace != WorkspaceCaller || p.Name != "child" {
		t.Errorf("title %q, workspace %q, name %q; want Child, %s, child", p.Title, p.Workspace, p.Name, WorkspaceCaller)
	}
	if d := cmp.Diff(map[string]string{"/src": "/workspace", "/tmp/x": "/tmp"}, p.Paths); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"cat"}, p.Policy.Allow); d != "" {
		t.Errorf("policy.allow (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"sudo", "su"}, p.Policy.Deny); d != "" {
		t.Errorf("policy.deny (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"empty": "nothing, child", "denylist": "no"}, p.Policy.Messages); d != "" {
		t.Errorf("policy.messages (-want +got):\n%s", d)
	}
	rules := make([]string, 0, len(p.Policy.Rules))
	for _, r := range p.Policy.Rules {
		rules = append(rules, r.ID+" "+string(r.Action))
	}
	if d := cmp.Diff([]string{"a deny", "b allow", "c deny"}, rules); d != "" {
		t.Errorf("policy.rules (-want +got):\n%s", d)
	}
	if p.Policy.Unknown != "deny" {
		t.Errorf("policy.unknown = %q, want deny", p.Policy.Unknown)
	}
	if d := cmp.Diff([]approval.Rule{{ID: "two", Tool: "fs.read", Action: "approve"},
		{ID: "one", Tool: "system.bash", Action: "prompt"}}, p.Approvals); d != "" {
		t.Errorf("approvals (-want +got):\n%s", d)
	}
	checkChildTools(t, c)
	base, err := s.Get("base")
	if err != nil {
		t.Fatal(err)
	}
	if b := mustTool(t, base, "system.bash"); b.Trust() != 2 || b.Caps().Output.Limit != 10 ||
		len(base.Profile.Policy.Deny) != 1 {
		t.Errorf("parent after extending = %+v, want it unchanged", base.Profile)
	}
	checkGrandchildren(t, s)
}

// checkGrandchildren checks the profiles that extend child.
func checkGrandchildren(t *testing.T, s *Set) {
	t.Helper()
	g, err := s.Get("grandchild")
	if err != nil {
		t.Fatal(err)
	}
	if mustTool(t, g, "fs.read").Enabled() || !mustTool(t, g, "fs.write").Enabled() {
		t.Error("tools of the grandchild: want fs.read disabled and fs.write enabled")
	}
	l, err := s.Get("literal")
	if err != nil {
		t.Fatal(err)
	}
	if q := l.Profile.Policy; len(q.Rules) != 1 || len(q.Deny) != 0 || len(q.Allow) != 0 ||
		q.Messages["empty"] != "nothing, child" {
		t.Errorf("policy of literal: %+v, want only its rules and the messages", q)
	}
}

// checkChildTools checks the merged tools of child.
func checkChildTools(t *testing.T, c *Compiled) {
	t.Helper()
	names := make([]string, 0, len(c.Tools()))
	for _, ct := range c.Tools() {
		names = append(names, ct.Name())
	}
	if d := cmp.Diff([]string{"system.bash", "fs.read", "fs.write"}, names); d != "" {
		t.Errorf("tools (-want +got):\n%s", d)
	}
	bash := mustTool(t, c, "system.bash")
	caps := bash.Caps()
	if bash.Trust() != 0 || caps.Timeout != 2*time.Second || caps.MaxTimeout != 5*time.Second || caps.Clamp ||
		caps.Output.Limit != 20 || caps.Output.Keep != "head" {
		t.Errorf("system.bash: trust %d, caps %+v; want trust 0, timeouts of 2s and 5s, the first 20 of output",
			bash.Trust(), caps)
	}
	if bash.errors["timeout"].kind != "A" || bash.errors["oom"].kind != "C" {
		t.Errorf("errors of system.bash = %+v, want timeout A and oom C", bash.errors)
	}
}

func TestWriterProfile(t *testing.T) {
	text, err := os.ReadFile("testdata/writer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := load(t, map[string]string{"writer.yaml": string(text)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Get("writer")
	if err != nil {
		t.Fatal(err)
	}
	p := c.Profile.Policy
	if len(p.Allow) != 12 || p.Allow[0] != "pdflatex" || len(p.Deny) != 34 {
		t.Errorf("%d allowed and %d denied programs, want 12 and 34", len(p.Allow), len(p.Deny))
	}
	if caps := mustTool(t, c, "run_command").Caps(); caps.Timeout != 5*time.Minute ||
		caps.MaxTimeout != 10*time.Minute || caps.Output.Limit != 50000 {
		t.Errorf("caps of run_command = %+v, want timeouts 5m and 10m, output 50000", caps)
	}
}
