//go:build integration

package scenarios

import (
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestSessionGrantExcludesWeakerTokens uses two tokens of one caller. What a session was granted
// for the stronger token needs another approval for the weaker one, but not the other way round. A
// restart must not change that.
func TestSessionGrantExcludesWeakerTokens(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand + "profiles: {default: phase2}\n", Seed: &seed})
	strong := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 2})
	weak := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 0})
	raised := v1.ToolCall{Session: "one", RaiseTrust: true, Input: input(t, map[string]any{"command": "echo ran"})}
	answer := func(q v1.Approval, action string) {
		t.Helper()
		if _, err := s.Client.Approvals.Answer(within(t), q.ID,
			v1.ApprovalAnswer{Action: action, Scope: "session"}); err != nil {
			t.Fatal(err)
		}
	}
	wantEnding := func(c *client.Client, key, ending, approval string) {
		t.Helper()
		got, err := c.Tools.Call(within(t), "system.bash", raised, client.CallOptions{IdempotencyKey: key})
		if err != nil || got.Ending != ending || got.Approval != approval {
			t.Errorf("call with key %q = %+v, %v; want %s by approval %s", key, got, err, ending, approval)
		}
	}

	granted, err := requestApproval(within(t), strong, "strong", raised)
	if err != nil || granted.Kind != "trust" || granted.Trust != 2 {
		t.Fatalf("request of the stronger token = %+v, %v; want kind trust with trust 2", granted, err)
	}
	answer(granted, "approve")
	wantEnding(strong, "strong", "exited", granted.ID)
	wantEnding(strong, "strong again", "exited", granted.ID)

	s.Kill9()
	s.Start()
	denied, err := requestApproval(within(t), weak, "weak", raised)
	if err != nil || denied.Kind != "trust" || denied.Trust != 0 {
		t.Fatalf("request of the weaker token = %+v, %v; want kind trust with trust 0", denied, err)
	}
	wantEnding(strong, "strong after the restart", "exited", granted.ID)

	answer(denied, "deny")
	wantEnding(weak, "weak", "approval_denied", denied.ID)
	wantEnding(weak, "weak again", "approval_denied", denied.ID)
	wantEnding(strong, "strong after the denial", "exited", granted.ID)
}
