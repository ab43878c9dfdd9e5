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

// The variables of one caller change neither the records nor the questions of another, and hide the
// caller's own command from no approver.
func TestRedactionIsPerCaller(t *testing.T) {
	t.Parallel()
	onServer(t, apart, func(t *testing.T, s *harness.Server) {
		ann, bob := person(t, s, `{"caller":"ann","trust":0}`), person(t, s, `{"caller":"bob","trust":3}`)
		const precious = "rm -r precious; echo redacted password1 victimsecret123"
		env, err := json.Marshal(map[string]string{
			"A_TOKEN": "redacted", "B_TOKEN": `{"comm`, "C_TOKEN": precious, "D_TOKEN": "command", "E_TOKEN": "system.bash", "F_TOKEN": "victimsecret123",
		})
		if err != nil {
			t.Fatal(err)
		}
		var box v1.Sandbox
		ann.make(t, "/v1/sandboxes", `{"env":`+string(env)+`}`, &box)

		sent := input(t, map[string]any{"command": precious})
		q, err := ask(within(t), bearer(t, s, bob), "k", v1.ToolCall{Input: sent})
		if err != nil {
			t.Fatal(err)
		}
		shows(t, s, q.ID, string(sent))
		got := bob.as(t, "system.bash", `{"input":{"command":"echo redacted password1 victimsecret123"}}`)
		recorded(t, s, got.ID, `{"command":"echo redacted password1 victimsecret123"}`)

		hidesNothing(t, s, bob, precious)
		tooMany(t, s, person(t, s, `{"caller":"bob","trust":3,"profile":"default"}`))
		if r := s.CLI(t, "audit", "verify"); r.Code != 0 {
			t.Errorf("the log is not whole: %s%s", r.Stdout, r.Stderr)
		}
	})
}

// shows fails unless an approver reads this input.
func shows(t *testing.T, s *harness.Server, id, want string) {
	t.Helper()
	q, err := s.Client.Approval(within(t), id)
	if err != nil {
		t.Fatal(err)
	}
	if string(q.Input) != want {
		t.Errorf("the approver reads %s, want %s", q.Input, want)
	}
}

// recorded fails unless the call's opening record has this input, and names bob and the tool.
func recorded(t *testing.T, s *harness.Server, id, want string) {
	t.Helper()
	all, err := s.Client.Audit(within(t), client.AuditFilter{Call: id})
	if err != nil || len(all) != 2 {
		t.Fatalf("%d records of call %s, %v", len(all), id, err)
	}
	if r := all[0]; string(r.Input) != want || r.Caller != "bob" || r.Action != "system.bash" {
		t.Errorf("recorded %s of %s for %s, want input %s", r.Input, r.Action, r.Caller, want)
	}
}

// hidesNothing has bob ask with the command in a variable of a lease: the approver reads the
// command, and the record has its length and hash.
func hidesNothing(t *testing.T, s *harness.Server, bob somebody, command string) {
	t.Helper()
	bob.make(t, "/v1/sandboxes", string(input(t, map[string]any{"env": map[string]string{"A_TOKEN": command}})), &v1.Sandbox{})
	in := input(t, map[string]any{"command": command})
	q, err := ask(within(t), bearer(t, s, bob), "own", v1.ToolCall{Input: in})
	if err != nil {
		t.Fatal(err)
	}
	shows(t, s, q.ID, string(in))
	all, err := s.Client.Audit(within(t), client.AuditFilter{Call: q.Call})
	if err != nil || len(all) == 0 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	want := fmt.Sprintf(`{"command":"[redacted %d bytes mac:`, len(command))
	if in := string(all[0].Input); !strings.HasPrefix(in, want) || all[0].Caller != "bob" {
		t.Errorf("recorded %s, want %s", in, want)
	}
}

// tooMany sends more variables than a command may have. The request is refused before they are
// looked at, and its record has the length and the hash of its input.
func tooMany(t *testing.T, s *harness.Server, bob somebody) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(`{"command":"true","env":{`)
	for i := range 10_000 {
		fmt.Fprintf(&b, `"TOKEN%d":"prefix%d",`, i, i)
	}
	b.WriteString(`"A":"b"}}`)
	got := bob.ask(t, "POST", "/v1/tools/system.bash/call", `{"input":`+b.String()+`}`)
	if got.Status != http.StatusBadRequest || !strings.Contains(string(got.Body), "env") {
		t.Errorf("10,000 variables: %d %.300s", got.Status, got.Body)
	}
	all, err := s.Client.Audit(within(t), client.AuditFilter{Caller: "bob", Newest: true, Limit: 2})
	if err != nil || len(all) != 2 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	if o := all[0]; len(o.Input) != 0 || o.InputBytes != b.Len() || len(o.InputHash) != 64 {
		t.Errorf("recorded %.200s of %d bytes, hash %s, want %d bytes", o.Input, o.InputBytes, o.InputHash, b.Len())
	}
}
