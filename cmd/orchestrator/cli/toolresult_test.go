package cli

import (
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestToolErrorExitCodes(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		result v1.ToolResult
		want   int
	}{
		{v1.ToolResult{Ending: "ok"}, 0},
		{v1.ToolResult{Ending: "started"}, 0},
		{v1.ToolResult{Ending: "exited", ExitCode: code(0)}, 0},
		{v1.ToolResult{Ending: "exited", ExitCode: code(7)}, 7},
		{v1.ToolResult{Ending: "failed"}, ExitChecksFailed},
		{v1.ToolResult{Ending: "invalid"}, ExitUsage},
		{v1.ToolResult{Ending: "policy_denied"}, ExitPolicyDenied},
		{v1.ToolResult{Ending: "approval_denied"}, ExitApprovalDenied},
		{v1.ToolResult{Ending: "policy_denied", Error: &v1.ToolError{RetryAfterMS: 50}}, ExitTryAgain},
		{v1.ToolResult{Ending: "policy_denied", Verdict: &v1.Verdict{Verdict: "deny", Class: "quota"}}, ExitTryAgain},
		{v1.ToolResult{Ending: "timeout"}, ExitTimeout},
		{v1.ToolResult{Ending: "signalled", Signal: 15}, 143},
		{v1.ToolResult{Ending: "oom"}, ExitOOM},
		{v1.ToolResult{Ending: "of a newer server"}, ExitLost},
	} {
		if got := ExitCode(ToolError(c.result)); got != c.want {
			t.Errorf("%+v exits with %d, want %d", c.result, got, c.want)
		}
	}
}

func TestToolErrorMessage(t *testing.T) {
	var b strings.Builder
	a := &App{Stderr: &b}
	a.Finish(
		ToolError(
			v1.ToolResult{
				Ending: "policy_denied",
				Error:  &v1.ToolError{Type: "rate", Message: "too many calls", RetryAfterMS: 1500},
			},
		),
	)
	a.Finish(ToolError(v1.ToolResult{Ending: "policy_denied", Verdict: &v1.Verdict{Message: "sudo\x1b is not allowed"}}))
	a.Finish(ToolError(v1.ToolResult{Ending: "exited", ExitCode: new(int)}))
	want := "orchestrator: too many calls (try again in 1.5s)\n" +
		"orchestrator: the call ended: policy denied: sudo\\x1b is not allowed\n"
	if b.String() != want {
		t.Errorf("Finish printed %q, want %q", b.String(), want)
	}
}
