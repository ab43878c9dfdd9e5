package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"runtime"
	"strings"
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
	if got, err := hash(r); err != nil || got != hex.EncodeToString(sum[:]) {
		t.Errorf("hash = %s, %v, want that of %s", got, err, b)
	}
}

// Base64 input is decoded once.
func TestStdinIsNotCopied(t *testing.T) {
	x := v1.Exec{StdinBase64: strings.Repeat("AAAA", 2<<20)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := stdin(x)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; err != nil || got > uint64(len(x.StdinBase64)) {
		t.Errorf("stdin of %d bytes took %d, %v", len(x.StdinBase64), got, err)
	}
}
