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

// phase2TrustOf returns a test that a tool refuses callers with less trust than it needs.
func phase2TrustOf(tool string, needs int, in fields) contractTest {
	return func(t *testing.T, s *harness.Server, l line) {
		level := int(lastOf(l)[0] - '0')
		a := newTokenAgent(t, s, v1.TokenRequest{Caller: "level" + lastOf(l), Profile: "phase2", Trust: level}, tool)
		r := a.call(t, in)
		if level < needs {
			assertTrustRefused(t, r)
		} else if r.Error != nil {
			t.Errorf("call with trust %d: %+v, want no error", level, r)
		}
	}
}

// assertTrustRefused checks that a call was refused for lack of trust, and did not run.
func assertTrustRefused(t *testing.T, r v1.ToolResult) {
	t.Helper()
	if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != "TrustViolation" || r.SandboxID != "" ||
		r.Verdict == nil || r.Verdict.Class != "trust" {
		t.Errorf("call with too little trust: %+v, error %+v; want TrustViolation without a sandbox", r, r.Error)
	}
}

// lowTrustAgent returns an agent with trust 1.
func lowTrustAgent(t *testing.T, s *harness.Server) agent {
	t.Helper()
	return newTokenAgent(t, s, v1.TokenRequest{Caller: "low", Profile: "phase2", Trust: 1}, "system.bash")
}

// callRaisingTrust calls a command with a request for more trust, and answers the approval
// requests. It returns their kinds.
func callRaisingTrust(t *testing.T, a agent, command, answer string) (r v1.ToolResult, kinds []string) {
	t.Helper()
	call := a.request(t, fields{"command": command})
	call.RaiseTrust = true
	r, err := a.client.Tools.Call(callContext(t), a.tool, call, client.CallOptions{Asked: func(q v1.Approval) {
		kinds = append(kinds, q.Kind)
		if _, err := a.s.Client.Approvals.Answer(callContext(t), q.ID, v1.ApprovalAnswer{Action: answer}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r, kinds
}

func testPhase2TrustFirst(t *testing.T, s *harness.Server, _ line) {
	a := lowTrustAgent(t, s)
	for _, command := range []string{"echo hello", "rm -r x", "git push"} { // run fails if approval is requested
		assertTrustRefused(t, a.run(t, command))
	}
	if list, err := a.client.Sandboxes(callContext(t), false); err != nil || len(list) != 0 {
		t.Errorf("sandboxes of the refused caller = %v, %v; want none", list, err)
	}
}

func testPhase2TrustRaise(t *testing.T, s *harness.Server, _ line) {
	r, kinds := callRaisingTrust(t, lowTrustAgent(t, s), "echo hello", "approve")
	assertFields(t, r, fields{"stdout": "hello\n"})
	if !slices.Equal(kinds, []string{"trust"}) {
		t.Errorf("kinds of approval requests %v, want trust", kinds)
	}
}

func testPhase2TrustOnce(t *testing.T, s *harness.Server, _ line) {
	a := lowTrustAgent(t, s)
	if r, _ := callRaisingTrust(t, a, "echo hello", "approve"); r.Ending != "exited" {
		t.Errorf("call with more trust: %+v, want exited", r)
	}
	assertTrustRefused(t, a.run(t, "echo hello"))
}

func testPhase2TrustNot(t *testing.T, s *harness.Server, _ line) {
	r, kinds := callRaisingTrust(t, lowTrustAgent(t, s), "echo hello", "deny")
	if r.Ending != "approval_denied" || r.SandboxID != "" || len(kinds) != 1 {
		t.Errorf("denied call: %+v, %d approval requests; want approval_denied after one", r, len(kinds))
	}
}

func testPhase2TrustNever(t *testing.T, s *harness.Server, _ line) {
	r, kinds := callRaisingTrust(t, lowTrustAgent(t, s), "sudo ls", "approve")
	assertNeverRuns(t, "sudo ls", r)
	if len(kinds) != 0 {
		t.Errorf("approval requests of kinds %v for a forbidden command, want none", kinds)
	}
}

func testPhase2Trace(t *testing.T, s *harness.Server, l line) {
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
		r, ending, verdict = lowTrustAgent(t, s).run(t, "echo hello"), "policy_denied", "deny"
	case "invalid":
		assertInvalidRecorded(t, a, fields{"cmd": "ls"}, "command")
		return
	default:
		t.Fatalf("line %s has no case, want one", what)
	}
	if got := closingRecord(t, s, r); got.Ending != ending || got.Verdict != verdict || got.Approval != r.Approval {
		t.Errorf("closing record %+v, want ending %s and verdict %q", got, ending, verdict)
	}
}

// assertInvalidRecorded checks the records of a call with an invalid input, which has no result
// with an id to find them by.
func assertInvalidRecorded(t *testing.T, a agent, in fields, says string) {
	t.Helper()
	before := lastRecord(t, a.s)
	if _, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, in), client.CallOptions{}); err == nil {
		t.Fatal("call with invalid input succeeded, want an error")
	}
	list, err := a.s.Client.Audit.Records(callContext(t), client.AuditFilter{After: before, Action: a.tool})
	if err != nil || len(list) != 2 || list[0].Kind != "open" || list[1].Kind != "close" ||
		!strings.Contains(list[1].Error, says) {
		t.Errorf("records %+v, %v; want two, the last with the field's name", list, err)
	}
}

// lastRecord returns the number of the newest audit record, or 0.
func lastRecord(t *testing.T, s *harness.Server) int64 {
	t.Helper()
	list, err := s.Client.Audit.Records(callContext(t), client.AuditFilter{Newest: true, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return 0
	}
	return list[0].Seq
}
