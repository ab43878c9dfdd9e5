package engine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

const team = `
name: team
extends: default
raise_trust: prompt
policy:
  deny: [sudo]
  unknown: deny
  rules:
    - {id: careful, action: ask, programs: [rm]}
tools:
  - {name: fs.list, rate: {max_calls: 1, window_ms: 3600000}}
  - {name: fs.stat, disabled: true}
  - {name: system.run, result: '{"code": r.missing.field}'}
  - name: put
    bases: '"fs.write"'
    input: {type: object, properties: {path: {type: string}, content: {type: string}}}
    arguments: 'input'
    effects: []
    trust: 1
approvals:
  - {id: few, tool: fs.glob, action: budget, limit: 1, period: monthly}
  - {id: once, tool: system.bash, when: 'input.command.startsWith("rm once")', action: budget, limit: 1, period: monthly}
`

// governed starts a service with tools. The audit log outlives it.
func (w *world) governed(tb testing.TB) *service {
	tb.Helper()
	return w.governedWith(tb, audit.Options{}, nil)
}

// governedWith is governed with other options of the audit log and the engine.
func (w *world) governedWith(tb testing.TB, o audit.Options, change func(*Options)) *service {
	tb.Helper()
	govern := func(st *store.Store) *governed.Config {
		dir := filepath.Join(w.dir, "profiles")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "team.yaml"), []byte(team), 0o600); err != nil {
			tb.Fatal(err)
		}
		g := &governed.Config{
			Default:  "team",
			Limiter:  &approval.Limiter{},
			Redactor: audit.NewRedactor(),
			Outputs:  filepath.Join(w.dir, "outputs"),
		}
		var err error
		if g.Profiles, err = profile.Load(dir); err != nil {
			tb.Fatal(err)
		}
		if g.Gate, err = approval.New(tb.Context(), approval.Options{Store: st, Check: g.CheckModified}); err != nil {
			tb.Fatal(err)
		}
		db, err := store.OpenAudit(tb.Context(), w.dir)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { db.Close() })
		o.Store, o.Redactor, o.Head = db, g.Redactor, filepath.Join(w.dir, audit.HeadFile)
		if g.Audit, err = audit.Open(tb.Context(), o); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { g.Audit.Close() })
		return g
	}
	return w.startBoth(tb, govern, change)
}

// agent is a caller without operator rights.
var agent = caller.Principal{Caller: "agent", Profile: "team", Trust: 3}

func bash(command string) v1.ToolCall {
	b, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		panic(err)
	}
	return v1.ToolCall{Input: b}
}

func (s *service) call(tb testing.TB, p caller.Principal, name string, r v1.ToolCall) v1.ToolResult {
	tb.Helper()
	got, err := s.Governed.CallTool(tb.Context(), p, name, r, governed.Watch{})
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

// records returns the opening and closing audit records of a call.
func (s *service) records(tb testing.TB, id string) []v1.AuditRecord {
	tb.Helper()
	got, err := s.Governed.Audit(tb.Context(), caller.Local(""), governed.AuditFilter{Call: id})
	if err != nil {
		tb.Fatal(err)
	}
	return got.Items
}

func TestCallToolRunsAndRecords(t *testing.T) {
	s := newWorld(t).governed(t)
	got := s.call(t, agent, "system.bash", bash("true"))
	if got.Ending != "exited" || got.Error != nil || got.SandboxID == "" {
		t.Fatalf("system.bash = %+v, want ending exited, no error and a sandbox", got)
	}
	r := s.records(t, got.ID)
	if len(r) != 2 || r[0].Kind != "open" || r[1].Kind != "close" || r[1].Verdict != "allow" ||
		r[1].Sandbox != got.SandboxID ||
		r[1].Ending != "exited" ||
		r[1].Image == "" ||
		r[1].Caller != "agent" {
		t.Errorf("records = %+v, want an open and a close by agent with the ending, sandbox and image", r)
	}
	eventually(t, "a sandbox for one call ends with it", func() bool {
		list, err := s.Sandboxes(t.Context(), agent, false)
		return err == nil && len(list) == 0
	})
}

func TestRefusedCallLeasesNoSandbox(t *testing.T) {
	s := newWorld(t).governed(t)
	for _, c := range []struct {
		name, rule string
		principal  caller.Principal
		tool       string
		r          v1.ToolCall
	}{
		{"by a list", "denylist:sudo", agent, "system.bash", bash("sudo ls")},
		{"by what is not known", "unknown", agent, "system.bash", bash("$(cat x)")},
		{"by trust", "trust:3", caller.Principal{Caller: "agent", Profile: "team", Trust: 2}, "system.bash", bash("true")},
		{"disabled", "disabled:fs.stat", agent, "fs.stat", v1.ToolCall{Input: json.RawMessage(`{"path": "a"}`)}},
	} {
		got := s.call(t, c.principal, c.tool, c.r)
		if got.Ending != "policy_denied" || got.Verdict == nil || !strings.HasPrefix(got.Verdict.Rule, c.rule) ||
			got.SandboxID != "" {
			t.Errorf("%s: call = %+v, want policy_denied by %s without a sandbox", c.name, got, c.rule)
		}
		if r := s.records(t, got.ID); len(r) != 2 || r[1].Verdict != "deny" || r[1].Ending != "policy_denied" {
			t.Errorf("%s: records = %+v, want two, the last one denied by the policy", c.name, r)
		}
	}
	if list, err := s.Sandboxes(t.Context(), agent, true); err != nil || len(list) != 0 {
		t.Errorf("Sandboxes = %v, %v; want none", list, err)
	}
}

func TestCallToolFailsWithoutAuditRecord(t *testing.T) {
	s := newWorld(t).governed(t)
	s.governance.Audit.Close()
	_, err := s.Governed.CallTool(t.Context(), agent, "system.bash", bash("true"), governed.Watch{})
	if !errdefs.IsUnavailable(err) {
		t.Errorf("CallTool without an audit log: %v, want Unavailable", err)
	}
	if list, err := s.Sandboxes(t.Context(), agent, true); err != nil || len(list) != 0 {
		t.Errorf("Sandboxes = %v, %v; want none", list, err)
	}
}

// Trust limits what a token may call. What calls create belongs to the caller, whatever the token.
func TestTokensOfOneCallerShareSandboxes(t *testing.T) {
	s := newWorld(t).governed(t)
	r := bash("true")
	r.Session = "one"
	strong := s.call(t, agent, "system.bash", r)
	weak := agent
	weak.Trust = 0
	got := s.call(t, weak, "system.shells", v1.ToolCall{Session: "one"})
	if got.Ending != "ok" {
		t.Errorf("system.shells = %+v, want ending ok", got)
	}
	if _, err := s.Sandbox(t.Context(), weak, strong.SandboxID); err != nil {
		t.Errorf("Sandbox of the session: %v, want no error", err)
	}
	if got := s.call(t, weak, "system.bash", r); got.Ending != "policy_denied" || got.Verdict.Class != profile.ClassTrust {
		t.Errorf("system.bash in the session = %+v, want policy_denied of class %s", got, profile.ClassTrust)
	}
	if got := s.call(t, weak, "system.kill", v1.ToolCall{Session: "one",
		Input: json.RawMessage(`{"shell_id": "x"}`)}); got.Ending != "policy_denied" {
		t.Errorf("system.kill = %+v, want policy_denied", got)
	}
}

func TestDisconnectWithoutKeyCancelsApproval(t *testing.T) {
	s := newWorld(t).governed(t)
	ctx, leave := context.WithCancel(t.Context())
	asked := make(chan v1.Approval, 1)
	gone := make(chan error, 1)
	go func() { // waited for below
		_, err := s.Governed.CallTool(
			ctx,
			agent,
			"system.bash",
			bash("rm x"),
			governed.Watch{Asked: func(q v1.Approval) { asked <- q }},
		)
		gone <- err
	}()
	q := <-asked
	leave()
	<-gone
	if got, err := s.Governed.Approval(t.Context(), agent, q.ID); err != nil || got.State != "cancelled" {
		t.Errorf("Approval = %+v, %v; want state cancelled", got, err)
	}
}

func TestSessionReusesSandbox(t *testing.T) {
	w := newWorld(t)
	s := w.governed(t)
	r := bash("true")
	r.Session = "one"
	first := s.call(t, agent, "system.bash", r)
	if second := s.call(t, agent, "system.bash", r); second.SandboxID != first.SandboxID {
		t.Errorf("second call used sandbox %s, want %s", second.SandboxID, first.SandboxID)
	}
	if _, err := s.Workspaces.Create(t.Context(), agent, v1.WorkspaceRequest{Name: "elsewhere"}); err != nil {
		t.Fatal(err)
	}
	moved := r
	moved.Workspace = "elsewhere"
	if _, err := s.Governed.CallTool(t.Context(), agent, "system.bash", moved, governed.Watch{}); !errdefs.IsInvalidArgument(
		err,
	) ||
		!strings.HasPrefix(err.Error(), "workspace") {
		t.Errorf("call with another workspace: %v, want InvalidArgument for workspace", err)
	}
	other := caller.Principal{Caller: "other", Profile: "team", Trust: 3}
	if third := s.call(t, other, "system.bash", r); third.SandboxID == first.SandboxID {
		t.Errorf("call by another caller used sandbox %s, want another", third.SandboxID)
	}
	if err := s.EndSession(t.Context(), agent, "one"); err != nil {
		t.Fatal(err)
	}
	if err := s.EndSession(t.Context(), agent, "one"); !errdefs.IsNotFound(err) {
		t.Errorf("second EndSession: %v, want NotFound", err)
	}
	if last := s.call(t, agent, "system.bash", r); last.SandboxID == first.SandboxID {
		t.Errorf("call after EndSession used sandbox %s again, want another", last.SandboxID)
	}
}

func TestRatesAndBudgetsAreEnforced(t *testing.T) {
	s := newWorld(t).governed(t)
	in := v1.ToolCall{Input: json.RawMessage(`{"path": 7}`)} // counted even if the input is invalid
	if _, err := s.Governed.CallTool(t.Context(), agent, "fs.list", in, governed.Watch{}); !errdefs.IsInvalidArgument(
		err,
	) {
		t.Fatalf("fs.list with an invalid input: %v, want InvalidArgument", err)
	}
	got := s.call(t, agent, "fs.list", in)
	if got.Ending != "policy_denied" || got.Verdict.Class != profile.ClassRate || got.Error == nil ||
		got.Error.RetryAfterMS <= 0 {
		t.Errorf("second fs.list = %+v, want policy_denied of class %s with a time to retry", got, profile.ClassRate)
	}
}

func TestValidatePlacementRejectsConflicts(t *testing.T) {
	s := newWorld(t).governed(t)
	for want, r := range map[string]v1.ToolCall{
		"sandbox":   {Sandbox: "a", Session: "b"},
		"job":       {Job: "x"},
		"session":   {Session: "a\nb"},
		"profile":   {Profile: "default"},
		"workspace": {Workspace: "nowhere"},
	} {
		r.Input = bash("true").Input
		_, err := s.Governed.CallTool(t.Context(), agent, "system.bash", r, governed.Watch{})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("CallTool: %v, want an error that starts with %q", err, want)
		}
	}
}

// A token without a profile has the default profile, and may name it.
func TestCallMayNameTheDefaultProfile(t *testing.T) {
	s := newWorld(t).governed(t)
	p := caller.Principal{Caller: "agent", Trust: 3}
	r := bash("true")
	r.Profile = "team"
	if got := s.call(t, p, "system.bash", r); got.Ending != "exited" {
		t.Errorf("call with a profile = %+v, want ending exited", got)
	}
}

func BenchmarkGovernedCall(b *testing.B) {
	s := newWorld(b).governed(b)
	box, err := s.Lease(b.Context(), caller.Local(""), v1.SandboxRequest{})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Exec(b.Context(), me, box.ID, v1.Exec{Command: "true"}, core.Stream{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, profile := range []string{"default", "phase2"} {
		b.Run(profile, func(b *testing.B) {
			r := bash("true")
			r.Sandbox, r.Profile = box.ID, profile
			for b.Loop() {
				s.call(b, caller.Local(""), "system.bash", r)
			}
		})
	}
}
