//go:build integration

package contracts

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

func phase2TrustOf(tool string, needs int, in fields) phase2Test {
	return func(t *testing.T, s *harness.Server, l line) {
		level := int(lastOf(l)[0] - '0')
		a := holder(t, s, v1.TokenRequest{Caller: "level" + lastOf(l), Profile: "phase2", Trust: level}, tool)
		r := a.call(t, in)
		if level < needs {
			tooLittle(t, r)
		} else if r.Error != nil {
			t.Errorf("%+v", r)
		}
	}
}

// tooLittle checks that a call was refused for want of trust, and did not run.
func tooLittle(t *testing.T, r v1.ToolResult) {
	t.Helper()
	if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != "TrustViolation" || r.SandboxID != "" || r.Verdict == nil || r.Verdict.Class != "trust" {
		t.Errorf("%+v %+v", r, r.Error)
	}
}

// low is an agent with trust 1.
func low(t *testing.T, s *harness.Server) agent {
	t.Helper()
	return holder(t, s, v1.TokenRequest{Caller: "low", Profile: "phase2", Trust: 1}, "system.bash")
}

// raised calls a command that asks for more trust, and answers.
func raised(t *testing.T, a agent, command, answer string) (r v1.ToolResult, kinds []string) {
	t.Helper()
	call := a.request(t, fields{"command": command})
	call.RaiseTrust = true
	r, err := a.client.CallTool(soon(t), a.tool, call, client.CallOptions{Asked: func(q v1.Approval) {
		kinds = append(kinds, q.Kind)
		if _, err := a.s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: answer}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r, kinds
}

func phase2TrustFirst(t *testing.T, s *harness.Server, _ line) {
	a := low(t, s)
	for _, command := range []string{"echo hello", "rm -r x", "git push"} { // run fails for a question
		tooLittle(t, a.run(t, command))
	}
	if list, err := a.client.Sandboxes(soon(t), false); err != nil || len(list) != 0 {
		t.Errorf("it has %v %v", list, err)
	}
}

func phase2TrustRaise(t *testing.T, s *harness.Server, _ line) {
	r, kinds := raised(t, low(t, s), "echo hello", "approve")
	gives(t, r, fields{"stdout": "hello\n"})
	if !slices.Equal(kinds, []string{"trust"}) {
		t.Errorf("asked %v", kinds)
	}
}

func phase2TrustOnce(t *testing.T, s *harness.Server, _ line) {
	a := low(t, s)
	if r, _ := raised(t, a, "echo hello", "approve"); r.Ending != "exited" {
		t.Errorf("%+v", r)
	}
	tooLittle(t, a.run(t, "echo hello"))
}

func phase2TrustNot(t *testing.T, s *harness.Server, _ line) {
	r, kinds := raised(t, low(t, s), "echo hello", "deny")
	if r.Ending != "approval_denied" || r.SandboxID != "" || len(kinds) != 1 {
		t.Errorf("%+v %v", r, kinds)
	}
}

func phase2TrustNever(t *testing.T, s *harness.Server, _ line) {
	r, kinds := raised(t, low(t, s), "sudo ls", "approve")
	neverRuns(t, "sudo ls", r)
	if len(kinds) != 0 {
		t.Errorf("asked %v", kinds)
	}
}

func phase2Trace(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "phase2", "system.bash")
	var r v1.ToolResult
	ending, verdict := "exited", "allow"
	switch what := lastOf(l); what {
	case "run":
		r = a.run(t, "echo hello")
	case "failed":
		r = a.run(t, "exit 3")
	case "refused":
		r, ending, verdict = a.run(t, "sudo ls"), "policy_denied", "deny"
	case "confirmed":
		r, verdict = a.answered(t, fields{"command": "rm -r nothing-here"}, "approve"), "ask"
	case "denied":
		r, ending, verdict = a.answered(t, fields{"command": "rm -r nothing-here"}, "deny"), "approval_denied", "deny"
	case "timeout":
		r, ending = a.call(t, fields{"command": "sleep 600", "timeout_ms": 50}), "timeout"
	case "background":
		r, ending = a.call(t, fields{"command": "sleep 600", "run_in_background": true}), "started"
		a.kill(t, outputOf(t, r)["background_task_id"].(string))
	case "kill":
		r, ending, verdict = a.kill(t, "nonexistent"), "ok", ""
	case "trust":
		r, ending, verdict = low(t, s).run(t, "echo hello"), "policy_denied", "deny"
	case "invalid":
		tracesInvalid(t, a, fields{"cmd": "ls"}, "command")
		return
	default:
		t.Fatalf("no call of the kind %s", what)
	}
	if got := traced(t, s, r); got.Ending != ending || got.Verdict != verdict || got.Approval != r.Approval {
		t.Errorf("%+v", got)
	}
}

// tracesInvalid checks the record of an input that cannot be used: it has no
// answer with an id to find it by.
func tracesInvalid(t *testing.T, a agent, in fields, says string) {
	t.Helper()
	before := newest(t, a.s)
	if _, err := a.client.CallTool(soon(t), a.tool, a.request(t, in), client.CallOptions{}); err == nil {
		t.Fatal("it was called")
	}
	list, err := a.s.Client.Audit(soon(t), client.AuditFilter{After: before, Action: a.tool})
	if err != nil || len(list) != 2 || list[0].Kind != "open" || list[1].Kind != "close" || !strings.Contains(list[1].Error, says) {
		t.Errorf("%+v %v", list, err)
	}
}

// newest is the number of the newest audit record; 0 is none.
func newest(t *testing.T, s *harness.Server) int64 {
	t.Helper()
	list, err := s.Client.Audit(soon(t), client.AuditFilter{Newest: true, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return 0
	}
	return list[0].Seq
}
