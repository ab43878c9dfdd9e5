package image

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// On a terminal, the lines must fit on the screen. Otherwise each completed step is one line.
func TestPullProgressFitsScreen(t *testing.T) {
	var screen, plain bytes.Buffer
	draw := &pullProgress{out: &screen, draw: true, width: 80, height: 10, layers: map[string]v1.PullLayer{}}
	lines := &pullProgress{out: &plain, layers: map[string]v1.PullLayer{}}
	for have := int64(0); have <= 100; have += 50 {
		e := v1.PullEvent{Type: "progress", Phase: "fetching"}
		for i := range 30 {
			e.Layers = append(e.Layers, v1.PullLayer{Digest: fmt.Sprintf("sha256:%064d", i), SizeBytes: 100, HaveBytes: have})
		}
		draw.event(e)
		lines.event(e)
		if draw.lines > 9 {
			t.Errorf("drew %d lines on a screen of 10, want at most 9", draw.lines)
		}
	}
	if n := strings.Count(plain.String(), "\n"); n != 31 || strings.Contains(plain.String(), "\x1b") {
		t.Errorf("output has %d lines, want 31 without escapes:\n%s", n, plain.String())
	}
}
