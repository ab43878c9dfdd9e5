//go:build integration

package scenarios

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// Two tokens of one caller: what the session was granted for the stronger one is asked again for the weaker, and the
// other way round it is not. A restart changes nothing of that.
func TestSessionGrantExcludesWeakerTokens(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand + "profiles: {default: phase2}\n", Seed: &seed})
	strong, weak := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 2}), token(t, s, v1.TokenRequest{Caller: "ann", Trust: 0})
	raised := v1.ToolCall{Session: "one", RaiseTrust: true, Input: input(t, map[string]any{"command": "echo ran"})}
	answer := func(q v1.Approval, action string) {
		t.Helper()
		if _, err := s.Client.AnswerApproval(within(t), q.ID, v1.ApprovalAnswer{Action: action, Scope: "session"}); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(c *client.Client, key, ending, approval string) {
		t.Helper()
		got, err := c.CallTool(within(t), "system.bash", raised, client.CallOptions{IdempotencyKey: key})
		if err != nil || got.Ending != ending || got.Approval != approval {
			t.Errorf("%s: %+v, %v; want %s by %s", key, got, err, ending, approval)
		}
	}

	granted, err := ask(within(t), strong, "strong", raised)
	if err != nil || granted.Kind != "trust" || granted.Trust != 2 {
		t.Fatalf("%+v, %v; want a question of trust 2", granted, err)
	}
	answer(granted, "approve")
	wants(strong, "strong", "exited", granted.ID)
	wants(strong, "strong again", "exited", granted.ID)

	s.Kill9()
	s.Start()
	denied, err := ask(within(t), weak, "weak", raised)
	if err != nil || denied.Kind != "trust" || denied.Trust != 0 {
		t.Fatalf("%+v, %v; want a question of trust 0", denied, err)
	}
	wants(strong, "strong after the restart", "exited", granted.ID)

	answer(denied, "deny")
	wants(weak, "weak", "approval_denied", denied.ID)
	wants(weak, "weak again", "approval_denied", denied.ID)
	wants(strong, "strong after the denial", "exited", granted.ID)
}
