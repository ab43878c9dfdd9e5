package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const inputSchema = `{"type":"object","additionalProperties":false,"properties":{
	"command":{"type":"string"}, "timeout_ms":{"type":"integer"}, "ratio":{"type":["null","number"]}, "background":{"type":"boolean"},
	"argv":{"type":"array","items":{"type":"string"}}, "ids":{"type":["null","array"],"items":{"type":"integer"}},
	"env":{"type":"object"}, "anything":true, "either":{"type":["integer","string"]}}}`

func TestPairsAreReadByTheSchemasTypes(t *testing.T) {
	tool := v1.Tool{Name: "t", Input: json.RawMessage(inputSchema)}
	for _, c := range []struct {
		pairs string
		want  string // or, of an error, a part of its text
	}{
		{"command=ls=-l timeout_ms=5", `{"command":"ls=-l","timeout_ms":5}`},
		{"command=5 background=true ratio=0.5", `{"background":true,"command":"5","ratio":0.5}`},
		{"command=", `{"command":""}`},
		{"argv=git argv=status", `{"argv":["git","status"]}`},
		{`argv=["a","b"]`, `{"argv":["a","b"]}`},
		{"ids=1 ids=2", `{"ids":[1,2]}`},
		{`env={"A":"x"}`, `{"env":{"A":"x"}}`},
		{"anything=x either=7", `{"anything":"x","either":7}`},
		{"either=seven", `{"either":"seven"}`},
		{`command:=17 new:={"a":[1]}`, `{"command":17,"new":{"a":[1]}}`},
		{"command", `"command" is not KEY=VALUE`},
		{"=x", "is not KEY=VALUE"},
		{"comand=x", `t takes no "comand": it takes anything, argv, background, command`},
		{"timeout_ms=soon", `timeout_ms is "soon" and must be of type integer`},
		{"timeout_ms=5 timeout_ms=6", "timeout_ms is given more than once"},
		{"background=yes", "must be of type boolean"},
		{"ids=x", "must be of type integer"},
		{"env=x", "must be of type object"},
		{"command:=x", "is no JSON"},
	} {
		got, err := pairsInput(&cobra.Command{Use: "call"}, tool, strings.Fields(c.pairs))
		if err != nil {
			if exitCode(err) != exitUsage || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.pairs, err, c.want)
			}
			continue
		}
		if string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.pairs, got, c.want)
		}
	}
}

func TestEndingsOfToolCallsHaveTheirExitCode(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		result v1.ToolResult
		want   int
	}{
		{v1.ToolResult{Ending: "ok"}, 0},
		{v1.ToolResult{Ending: "started"}, 0},
		{v1.ToolResult{Ending: "exited", ExitCode: code(0)}, 0},
		{v1.ToolResult{Ending: "exited", ExitCode: code(7)}, 7},
		{v1.ToolResult{Ending: "failed"}, exitChecksFailed},
		{v1.ToolResult{Ending: "invalid"}, exitUsage},
		{v1.ToolResult{Ending: "policy_denied"}, exitPolicyDenied},
		{v1.ToolResult{Ending: "approval_denied"}, exitApprovalDenied},
		{v1.ToolResult{Ending: "policy_denied", Error: &v1.ToolError{RetryAfterMS: 50}}, exitTryAgain},
		{v1.ToolResult{Ending: "policy_denied", Verdict: &v1.Verdict{Verdict: "deny", Class: "quota"}}, exitTryAgain},
		{v1.ToolResult{Ending: "timeout"}, exitTimeout},
		{v1.ToolResult{Ending: "signalled", Signal: 15}, 143},
		{v1.ToolResult{Ending: "oom"}, exitOOM},
		{v1.ToolResult{Ending: "of a newer server"}, exitLost},
	} {
		if got := exitCode(toolEnding(c.result)); got != c.want {
			t.Errorf("%+v exits with %d, want %d", c.result, got, c.want)
		}
	}
}

func TestARefusalIsSaidInTheToolsWords(t *testing.T) {
	var b strings.Builder
	a := &app{stderr: &b}
	a.finish(toolEnding(v1.ToolResult{Ending: "policy_denied", Error: &v1.ToolError{Type: "rate", Message: "too many calls", RetryAfterMS: 1500}}))
	a.finish(toolEnding(v1.ToolResult{Ending: "policy_denied", Verdict: &v1.Verdict{Message: "sudo\x1b is not allowed"}}))
	a.finish(toolEnding(v1.ToolResult{Ending: "exited", ExitCode: new(int)}))
	want := "orchestrator: too many calls (try again in 1.5s)\norchestrator: the call ended: policy denied: sudo\\x1b is not allowed\n"
	if b.String() != want {
		t.Errorf("said %q", b.String())
	}
}

func TestTimesOfAuditFilters(t *testing.T) {
	cmd := &cobra.Command{Use: "ls"}
	f, err := auditOptions{since: "90m", until: "2026-01-02T15:04:05Z"}.chosen(cmd)
	if ago := time.Since(f.Since); err != nil || ago < 90*time.Minute || ago > 100*time.Minute || f.Until.Year() != 2026 {
		t.Errorf("%+v, %v", f, err)
	}
	for _, bad := range []string{"yesterday", "-5m", "2026-01-02"} {
		if _, err := (auditOptions{since: bad}).chosen(cmd); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--since is") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
