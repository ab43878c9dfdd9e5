package governed

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

func TestApproverReadsTheCommandAsItIs(t *testing.T) {
	q := v1.Approval{
		ID: "a1", State: "pending", Tool: "system.bash",
		Input:    json.RawMessage(`{"command":"echo a \u0026\u0026 echo b \u003ec\nrm -rf x\u202e"}`),
		Modified: json.RawMessage(`{"command":"true \u0026"}`),
	}
	var out bytes.Buffer
	if err := printApproval(&cli.App{Stdout: &out}, q); err != nil {
		t.Fatalf("printApproval() = %v, want no error", err)
	}
	want := "input:\n  command:\n    echo a && echo b >c\n    rm -rf x\\u202e\n" +
		"input as the approver changed it:\n  command:\n    true &\n"
	if !strings.HasSuffix(out.String(), want) {
		t.Errorf("approvals show printed\n%s\nwant at its end\n%s", &out, want)
	}
	row := approvalRow(q)
	if got, want := row[len(row)-1], `"echo a && echo b >c\nrm`; !strings.Contains(got, want) {
		t.Errorf("approvals ls shows the input %s, want it to contain %s", got, want)
	}
	line := approvalLine(v1.ApprovalEvent{Type: "asked", Approval: q})
	if want := `echo a && echo b >c\nrm -rf x\u202e`; !strings.Contains(line, want) {
		t.Errorf("approvals watch shows %s, want it to contain %s", line, want)
	}
	r := auditRow(v1.AuditRecord{Input: q.Input})
	if got, want := r[len(r)-1], "echo a && echo b >c"; !strings.Contains(got, want) {
		t.Errorf("audit ls shows the input %s, want it to contain %s", got, want)
	}
}
