package engine

import (
	"runtime"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Base64 input is decoded once.
func TestStdinIsNotCopied(t *testing.T) {
	x := v1.Exec{StdinBase64: strings.Repeat("AAAA", 2<<20)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := stdin(x)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; err != nil || got > uint64(len(x.StdinBase64)) {
		t.Errorf("stdin of %d bytes allocated %d bytes, error %v; want at most the length and no error",
			len(x.StdinBase64), got, err)
	}
}
