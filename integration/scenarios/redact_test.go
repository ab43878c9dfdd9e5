//go:build integration

package scenarios

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestRedactionIsPerCaller checks that the variables of one caller change neither the records nor
// the approval requests of another, and hide no command from approvers.
func TestRedactionIsPerCaller(t *testing.T) {
	t.Parallel()
	onServer(t, askingConfig, func(t *testing.T, s *harness.Server) {
		ann, bob := newCaller(t, s, `{"caller":"ann","trust":0}`), newCaller(t, s, `{"caller":"bob","trust":3}`)
		const precious = "rm -r precious; echo redacted password1 victimsecret123"
		env, err := json.Marshal(map[string]string{
			"A_TOKEN": "redacted",
			"B_TOKEN": `{"comm`,
			"C_TOKEN": precious,
			"D_TOKEN": "command",
			"E_TOKEN": "system.bash",
			"F_TOKEN": "victimsecret123",
		})
		if err != nil {
			t.Fatal(err)
		}
		var box v1.Sandbox
		ann.create(t, "/v1/sandboxes", `{"env":`+string(env)+`}`, &box)

		sent := input(t, map[string]any{"command": precious})
		q, err := requestApproval(within(t), bob.client(t), "k", v1.ToolCall{Input: sent})
		if err != nil {
			t.Fatal(err)
		}
		assertShown(t, s, q.ID, string(sent))
		got := bob.callTool(t, "system.bash", `{"input":{"command":"echo redacted password1 victimsecret123"}}`)
		assertRecorded(t, s, got.ID, `{"command":"echo redacted password1 victimsecret123"}`)

		assertNothingHidden(t, s, bob, precious)
		assertVariablesBounded(t, s, newCaller(t, s, `{"caller":"bob","trust":3,"profile":"default"}`))
		if r := s.CLI(t, "audit", "verify"); r.Code != 0 {
			t.Errorf("audit verify: exit code %d, want 0: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
}

// assertShown fails unless an approver reads this input.
func assertShown(t *testing.T, s *harness.Server, id, want string) {
	t.Helper()
	q, err := s.Client.Approvals.Get(within(t), id)
	if err != nil {
		t.Fatal(err)
	}
	if string(q.Input) != want {
		t.Errorf("the approver reads %s, want %s", q.Input, want)
	}
}

// assertRecorded fails unless the call's opening record has this input, and names bob and the tool.
func assertRecorded(t *testing.T, s *harness.Server, id, want string) {
	t.Helper()
	all, err := s.Client.Audit.Records(within(t), client.AuditFilter{Call: id})
	if err != nil || len(all) != 2 {
		t.Fatalf("%d records of call %s, %v; want 2", len(all), id, err)
	}
	if r := all[0]; string(r.Input) != want || r.Caller != "bob" || r.Action != "system.bash" {
		t.Errorf("record %s of %s for %s, want input %s of system.bash for bob", r.Input, r.Action, r.Caller, want)
	}
}

// assertNothingHidden has bob request approval for a command that is also in a variable of his
// lease. The approver must read the command; the record has its length and hash.
func assertNothingHidden(t *testing.T, s *harness.Server, bob caller, command string) {
	t.Helper()
	env := map[string]any{"env": map[string]string{"A_TOKEN": command}}
	bob.create(t, "/v1/sandboxes", string(input(t, env)), &v1.Sandbox{})
	in := input(t, map[string]any{"command": command})
	q, err := requestApproval(within(t), bob.client(t), "own", v1.ToolCall{Input: in})
	if err != nil {
		t.Fatal(err)
	}
	assertShown(t, s, q.ID, string(in))
	all, err := s.Client.Audit.Records(within(t), client.AuditFilter{Call: q.Call})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d records of the call, %v; want some", len(all), err)
	}
	want := fmt.Sprintf(`{"command":"[redacted %d bytes mac:`, len(command))
	if in := string(all[0].Input); !strings.HasPrefix(in, want) || all[0].Caller != "bob" {
		t.Errorf("record with input %s, want %s", in, want)
	}
}

// assertVariablesBounded sends more variables than a command may have. The request must be refused
// before they are examined, and its record has the length and the hash of its input.
func assertVariablesBounded(t *testing.T, s *harness.Server, bob caller) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(`{"command":"true","env":{`)
	for i := range 10_000 {
		fmt.Fprintf(&b, `"TOKEN%d":"prefix%d",`, i, i)
	}
	b.WriteString(`"A":"b"}}`)
	got := bob.request(t, "POST", "/v1/tools/system.bash/call", `{"input":`+b.String()+`}`)
	if got.Status != http.StatusBadRequest || !strings.Contains(string(got.Body), "env") {
		t.Errorf("call with 10,000 variables: status %d, want 400 that names env: %.300s", got.Status, got.Body)
	}
	all, err := s.Client.Audit.Records(within(t), client.AuditFilter{Caller: "bob", Newest: true, Limit: 2})
	if err != nil || len(all) != 2 {
		t.Fatalf("%d records of the refused call, %v; want 2", len(all), err)
	}
	if o := all[0]; len(o.Input) != 0 || o.InputBytes != b.Len() || len(o.InputHash) != 64 {
		t.Errorf("record with input %.200s, %d bytes, hash %s; want no input, and the length of %d bytes with a hash",
			o.Input, o.InputBytes, o.InputHash, b.Len())
	}
}
