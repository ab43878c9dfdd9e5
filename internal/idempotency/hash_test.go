package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// The fingerprint is that of the request's JSON, so that keys of earlier versions stay valid.
func TestHashMatchesJSON(t *testing.T) {
	r := v1.ToolCall{Input: json.RawMessage(` { "a" : "<\n>" } `), Session: "s"}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	if got, err := Hash(r); err != nil || got != hex.EncodeToString(sum[:]) {
		t.Errorf("hash = %s, %v, want that of %s", got, err, b)
	}
}
