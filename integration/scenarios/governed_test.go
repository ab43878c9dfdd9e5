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

// call calls a tool of a profile and wants an answer.
func call(t *testing.T, s *harness.Server, tool string, r v1.ToolCall, o client.CallOptions) v1.ToolResult {
	t.Helper()
	got, err := s.Client.CallTool(within(t), tool, r, o)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// input is a tool's input.
func input(t *testing.T, fields map[string]any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// content is what a file of a workspace holds.
func content(t *testing.T, s *harness.Server, workspace, path string) string {
	t.Helper()
	return sh(t, s, lease(t, s, v1.SandboxRequest{Workspace: workspace, ReadOnly: true, WhenEmpty: "cold"}).ID, "cat "+path+" 2>/dev/null || true")
}

// asked waits for the one question that is open.
func asked(t *testing.T, s *harness.Server) v1.Approval {
	t.Helper()
	var open []v1.Approval
	harness.Eventually(t, harness.Short, "a question is asked", func() bool {
		var err error
		open, err = s.Client.Approvals(within(t), "pending")
		return err == nil && len(open) == 1
	})
	return open[0]
}

// An approval is asked, the service is killed and started, the approval is
// given: the call runs, once, and its caller gets the answer.
func TestApprovalSurvivesServiceRestart(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{true, false} {
		t.Run(map[bool]string{true: "with the caller waiting", false: "with the caller coming back"}[waits], func(t *testing.T) {
			onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
				w := workspace(t, s)
				r := v1.ToolCall{Profile: "phase2", Workspace: w, Input: input(t, map[string]any{"command": "echo ran >> ran.txt; rm -r junk"})}
				o := client.CallOptions{IdempotencyKey: fmt.Sprintf("key-%d", marks.Add(1)), Persist: waits}
				type answer struct {
					r   v1.ToolResult
					err error
				}
				first := make(chan answer, 1)
				go func() { // waited for below
					got, err := s.Client.CallTool(within(t), "system.bash", r, o)
					first <- answer{got, err}
				}()
				q := asked(t, s)
				s.Kill9()
				s.Start()
				if !waits {
					if got := <-first; got.err == nil {
						t.Fatalf("a caller who does not come back got %+v", got.r)
					}
				}
				if _, err := s.Client.AnswerApproval(within(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
					t.Fatal(err)
				}
				got := answer{}
				if waits {
					got = <-first
				} else {
					got.r, got.err = s.Client.CallTool(within(t), "system.bash", r, o)
				}
				if got.err != nil || got.r.Ending != "exited" || got.r.Approval != q.ID {
					t.Fatalf("%+v %v", got.r, got.err)
				}
				again := call(t, s, "system.bash", r, o)
				if again.ID != got.r.ID {
					t.Errorf("the same key gave call %s and then %s", got.r.ID, again.ID)
				}
				noLease(t, s)
				if ran := content(t, s, w, "ran.txt"); ran != "ran\n" {
					t.Errorf("the command ran %d times", strings.Count(ran, "ran"))
				}
			})
		})
	}
}
