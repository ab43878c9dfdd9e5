//go:build integration

package scenarios

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// callTool calls a tool, which must be answered.
func callTool(t *testing.T, s *harness.Server, tool string, r v1.ToolCall, o client.CallOptions) v1.ToolResult {
	t.Helper()
	got, err := s.Client.Tools.Call(within(t), tool, r, o)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// input encodes the input of a tool.
func input(t *testing.T, fields map[string]any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// workspaceFile returns the content of a workspace's file, or "" if it does not exist.
func workspaceFile(t *testing.T, s *harness.Server, workspace, path string) string {
	t.Helper()
	r := v1.SandboxRequest{Workspace: workspace, ReadOnly: true, WhenEmpty: "cold"}
	return sh(t, s, lease(t, s, r).ID, "cat "+path+" 2>/dev/null || true")
}

// awaitApproval waits until exactly one approval request is pending, and returns it.
func awaitApproval(t *testing.T, s *harness.Server) v1.Approval {
	t.Helper()
	var pending []v1.Approval
	harness.Eventually(t, harness.Short, "an approval is requested", func() bool {
		var err error
		pending, err = s.Client.Approvals.List(within(t), "pending")
		return err == nil && len(pending) == 1
	})
	return pending[0]
}

// TestApprovalSurvivesServiceRestart kills the service while an approval is pending and approves it
// after the restart. The call must run once, and its caller must get the result.
func TestApprovalSurvivesServiceRestart(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"with the caller waiting": true, "with the caller coming back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onServer(t, onDemand, func(t *testing.T, s *harness.Server) { testApproveAfterRestart(t, s, waits) })
		})
	}
}

// testApproveAfterRestart makes a call that needs approval and kills the service. If waits is true,
// the client keeps waiting; otherwise it gets an error and repeats the call with the same key.
func testApproveAfterRestart(t *testing.T, s *harness.Server, waits bool) {
	w := workspace(t, s)
	command := input(t, map[string]any{"command": "echo ran >> ran.txt; rm -r junk"})
	r := v1.ToolCall{Profile: "phase2", Workspace: w, Input: command}
	o := client.CallOptions{IdempotencyKey: fmt.Sprintf("key-%d", uniqueNumber.Add(1)), Persist: waits}
	type answer struct {
		r   v1.ToolResult
		err error
	}
	first := make(chan answer, 1)
	go func() { // the result is received from first
		got, err := s.Client.Tools.Call(within(t), "system.bash", r, o)
		first <- answer{got, err}
	}()
	q := awaitApproval(t, s)
	s.Kill9()
	s.Start()
	if !waits {
		if got := <-first; got.err == nil {
			t.Fatalf("CallTool without Persist, over a restart = %+v, want an error", got.r)
		}
	}
	if _, err := s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	got := answer{}
	if waits {
		got = <-first
	} else {
		got.r, got.err = s.Client.Tools.Call(within(t), "system.bash", r, o)
	}
	if got.err != nil || got.r.Ending != "exited" || got.r.Approval != q.ID {
		t.Fatalf("the approved call = %+v, %v; want exited with approval %s", got.r, got.err, q.ID)
	}
	again := callTool(t, s, "system.bash", r, o)
	if again.ID != got.r.ID {
		t.Errorf("second call with the same key = %s, want call %s", again.ID, got.r.ID)
	}
	awaitNoLease(t, s)
	if ran := workspaceFile(t, s, w, "ran.txt"); ran != "ran\n" {
		t.Errorf("the command ran %d times, want once", strings.Count(ran, "ran"))
	}
}
