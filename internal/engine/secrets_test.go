package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// victim is a caller other than agent.
var victim = caller.Principal{Caller: "victim", Profile: "team", Trust: 3}

// bashEnv returns a call of system.bash with variables.
func bashEnv(tb testing.TB, command string, env map[string]string) v1.ToolCall {
	tb.Helper()
	b, err := json.Marshal(map[string]any{"command": command, "env": env})
	if err != nil {
		tb.Fatal(err)
	}
	return v1.ToolCall{Input: b}
}

func TestSecretsOfOneCallerKeepOthersRecords(t *testing.T) {
	s := newWorld(t).governed(t)
	command := "rm -r precious; echo redacted password1 victimsecret123"
	if _, err := s.Lease(t.Context(), agent, v1.SandboxRequest{Env: map[string]string{
		"A_TOKEN": "redacted", "B_TOKEN": `{"comm`, "C_TOKEN": command, "D_TOKEN": "victim", "E_TOKEN": "system.bash",
	}}); err != nil {
		t.Fatal(err)
	}
	q, answered := s.ask(t, victim, bash(command))
	if want := string(bash(command).Input); string(q.Input) != want {
		t.Errorf("the approver reads %s, want %s", q.Input, want)
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	got := <-answered
	for _, r := range s.records(t, got.ID) {
		if b, _ := json.Marshal(r); bytes.Contains(b, []byte("[redacted")) ||
			r.Kind == "open" && string(r.Input) != string(bash(command).Input) {
			t.Errorf("record of another caller = %s, want its input unchanged", b)
		}
	}
}

func TestSecretsCannotHideCommand(t *testing.T) {
	s := newWorld(t).governed(t)
	command := "rm -r precious"
	r := bashEnv(t, command, map[string]string{"A_TOKEN": command, "B_TOKEN": "agent1", "C_TOKEN": "a1b2c3d4e5"})
	q, answered := s.ask(t, agent, r)
	if in := string(q.Input); !strings.Contains(in, `"command":"`+command+`"`) ||
		!strings.Contains(in, `"A_TOKEN":"`+command+`"`) {
		t.Errorf("input for the approver = %s, want the command and A_TOKEN in it", in)
	}
	if in := string(q.Input); strings.Contains(in, "a1b2c3d4e5") ||
		!strings.Contains(in, `"C_TOKEN":"[redacted 10 bytes mac:`) {
		t.Errorf("input for the approver = %s, want C_TOKEN redacted", in)
	}
	if _, err := s.Governed.AnswerApproval(t.Context(), caller.Local(""), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	got := <-answered
	records := s.records(t, got.ID)
	if len(records) != 2 {
		t.Fatalf("%d records, want 2", len(records))
	}
	if in := string(records[0].Input); !strings.Contains(in, `"command":"[redacted 14 bytes mac:`) ||
		strings.Contains(in, command) {
		t.Errorf("own record has %s, want the command redacted", in)
	}
	if records[0].Caller != "agent" || records[0].Action != "system.bash" {
		t.Errorf("record = %+v, want system.bash by agent", records[0])
	}
}

func TestTooManyVariablesAreRejectedEarly(t *testing.T) {
	s := newWorld(t).governed(t)
	many, long, broad := map[string]string{}, map[string]string{}, map[string]string{}
	for i := range 40_000 {
		many[fmt.Sprint("TOKEN", i)] = fmt.Sprintf("prefix%d", i)
	}
	long["A_TOKEN"] = "prefix" + strings.Repeat("x", core.MaxEnvBytes)
	for i := range core.MaxEnv {
		broad[fmt.Sprint("TOKEN", i)] = fmt.Sprintf("prefix%0200d", i)
	}
	s.call(t, agent, "system.bash", bashEnv(t, "true", broad)) // the maximum that is allowed
	for what, env := range map[string]map[string]string{"40,000 variables": many, "a long variable": long} {
		r := bashEnv(t, "true", env)
		_, err := s.Governed.CallTool(t.Context(), agent, "system.bash", r, governed.Watch{})
		if invalid, ok := errors.AsType[*usererror.InvalidError](err); !ok || invalid.Field != "env" ||
			!errdefs.IsInvalidArgument(err) {
			t.Errorf("CallTool with %s: %v, want InvalidArgument for field env", what, err)
		}
		page, err := s.Governed.Audit(t.Context(), caller.Local(""), governed.AuditFilter{Newest: true, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		all := page.Items
		if o := all[0]; o.Kind != "open" || o.Input != nil || o.InputBytes != len(r.Input) || len(o.InputHash) != 64 ||
			all[1].Ending != governed.EndedFailed {
			t.Errorf("%s: records = %+v and %+v; want the hash of the input, and ending %s",
				what, o, all[1], governed.EndedFailed)
		}
	}
}

func TestSecretsPerCallerAreBounded(t *testing.T) {
	s := newWorld(t).governed(t)
	env := func(i int) map[string]string {
		return map[string]string{"A_TOKEN": fmt.Sprint(i, strings.Repeat("x", core.MaxEnvBytes-300))}
	}
	var boxes []v1.Sandbox
	const most = audit.MaxOwned / core.MaxEnvBytes
	for i := range most {
		box, err := s.Lease(t.Context(), agent, v1.SandboxRequest{Env: env(i)})
		if err != nil {
			t.Fatalf("Lease number %d: %v", i, err)
		}
		boxes = append(boxes, box)
	}
	if _, err := s.Lease(t.Context(), agent, v1.SandboxRequest{Env: env(most)}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a lease over the bound: %v, want ResourceExhausted", err)
	}
	if _, err := s.Governed.CallTool(t.Context(), agent, "system.bash", bashEnv(t, "true", env(most)),
		governed.Watch{}); !errdefs.IsResourceExhausted(
		err,
	) {
		t.Errorf("a call over the bound: %v, want ResourceExhausted", err)
	}
	s.call(t, agent, "system.bash", bashEnv(t, "true", env(0))) // repeated values take no more space
	s.call(t, victim, "system.bash", bashEnv(t, "true", env(most)))
	if err := s.Remove(t.Context(), agent, boxes[0].ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "values are forgotten with their lease", func() bool {
		_, err := s.Governed.CallTool(t.Context(), agent, "system.bash", bashEnv(t, "true", env(most)), governed.Watch{})
		return err == nil
	})
}

func TestSecretsOfRefusedRequestsAreRedacted(t *testing.T) {
	s := newWorld(t).governed(t)
	secret := "under-an-unusual-name"
	body := []byte(
		`{"input":{"command":"echo ` + secret + `","env":{"MY_SESSION_COOKIES":"` + secret + `"}},"nonsense":1}`,
	)
	cause := usererror.Invalid("nonsense", "is unknown")
	for _, body := range [][]byte{body, bashEnv(t, "echo "+secret, map[string]string{"MY_SESSION_COOKIES": secret}).Input} {
		if err := s.Governed.RefuseCall(t.Context(), agent, "system.bash", body, cause); !errors.Is(err, cause) {
			t.Fatalf("RefuseCall: %v, want %v", err, cause)
		}
	}
	all, err := s.Governed.Audit(t.Context(), caller.Local(""), governed.AuditFilter{})
	if err != nil || len(all.Items) != 2 {
		t.Fatalf("Audit = %d records, %v; want 2", len(all.Items), err)
	}
	for _, r := range all.Items {
		if in := string(r.Input); strings.Contains(in, secret) ||
			strings.Count(in, fmt.Sprintf("[redacted %d bytes mac:", len(secret))) != 2 {
			t.Errorf("recorded input = %s, want the secret redacted twice", in)
		}
	}
}

func TestRefusedCallRecordHidesHostErrors(t *testing.T) {
	s := newWorld(t).governed(t)
	for _, c := range []struct {
		cause error
		want  string
	}{
		{&hostFailure{"open /var/lib/orchestrator/state.db: disk I/O error"}, "the service could not do this"},
		{usererror.Invalid("input", "is not an object"), "input is not an object"},
	} {
		if err := s.Governed.RefuseCall(t.Context(), agent, "system.bash", []byte(`{}`), c.cause); err != c.cause {
			t.Fatalf("RefuseCall: %v, want %v", err, c.cause)
		}
		page, err := s.Governed.Audit(t.Context(), agent, governed.AuditFilter{Newest: true, Limit: 1})
		if err != nil || len(page.Items) != 1 || page.Items[0].Error != c.want {
			t.Errorf("the caller reads %+v, %v, want the error %q", page.Items, err, c.want)
		}
	}
}

func TestOperatorRecordHidesHostErrorsFromCaller(t *testing.T) {
	s := newWorld(t).governed(t)
	operator := agent // another token of the same caller
	operator.Operator = true
	cause := &hostFailure{"open /var/lib/orchestrator/state.db: disk I/O error"}
	s.Governed.RecordOperator(t.Context(), operator, audit.Record{Action: "token.create"}, nil, cause)
	for _, c := range []struct {
		reader caller.Principal
		want   string
	}{{agent, "the service could not do this"}, {operator, "service: " + cause.Error()}} {
		page, err := s.Governed.Audit(t.Context(), c.reader, governed.AuditFilter{Newest: true, Limit: 1})
		if err != nil || len(page.Items) != 1 || page.Items[0].Error != c.want {
			t.Errorf("operator %t reads %+v, %v, want the error %q", c.reader.Operator, page.Items, err, c.want)
		}
	}
}

// hostFailure is an error of the host.
type hostFailure struct{ text string }

func (e *hostFailure) Error() string { return e.text }
