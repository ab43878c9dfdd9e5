package governed

import (
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestCompatRefusalText(t *testing.T) {
	for want, v := range map[string]v1.Verdict{
		"Blocked: '&&' not allowed": {
			Class: "forbidden", Rule: "forbidden:&&", Message: "Blocked: shell metacharacter '&&' not allowed",
		},
		"Command not allowed: Command 'rm' not in whitelist. Allowed: ls": {
			Class: "allowlist", Rule: "allowlist:rm", Message: "Command 'rm' not in whitelist. Allowed: ls",
		},
		"Command not allowed: Empty command": {Class: "empty", Rule: "empty", Message: "Empty command"},
		"Invalid command syntax: No closing quotation": {
			Class: "syntax", Rule: "syntax", Message: "Invalid command syntax: No closing quotation",
		},
	} {
		if got := compatRefusal(v); got != want {
			t.Errorf("compatRefusal(%+v) = %q, want %q", v, got, want)
		}
	}
}
