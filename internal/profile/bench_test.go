package profile

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// BenchmarkCall measures what a profile adds to a call: Prepare and Finish. The target for a mapped
// call is 50 µs.
func BenchmarkCall(b *testing.B) {
	for _, c := range []struct {
		name, profile, tool, input string
		r                          any
	}{
		{"unmapped", "default", "fs.write", `{"path":"a","content":"x"}`, &tool.WriteOutput{Path: "a", Bytes: 1}},
		{"default", "default", "system.bash", `{"command":"ls"}`, command("a\n", "", 0)},
		{"phase2", "phase2", "system.bash", `{"command":"ls -la","timeout_ms":1000}`,
			command(strings.Repeat("x", 1000), "", 0)},
		{"gateway", "gateway", "filesystem", `{"operation":"stat","path":"a"}`,
			&tool.FileState{Path: "a", Name: "a", Type: "file"}},
		{"readonly", "readonly", "run_shell", `{"command":"ls -la"}`, command("a\n", "", 0)},
		{"universal", "universal", "run_command", `{"command":"ls -la","timeout":5}`, command("a\n", "", 0)},
		{"confirm", "confirm", "bash", `{"command":"ls -la"}`, command("a\n", "", 0)},
		{"30000 characters", "phase2", "system.bash", `{"command":"ls -la"}`,
			command(strings.Repeat("x", 30000), "", 0)},
	} {
		b.Run(c.name, func(b *testing.B) {
			ct := toolOf(b, c.profile, c.tool)
			ctx, raw, facts := context.Background(), json.RawMessage(c.input),
				map[string]any{"caller": "ann", "trust": int64(3)}
			b.ReportAllocs()
			for b.Loop() {
				call, err := ct.Prepare(ctx, raw, facts)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := call.Finish(ctx, c.r, End{Ending: "exited"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBuiltin compiles the built-in profiles.
func BenchmarkBuiltin(b *testing.B) {
	for b.Loop() {
		l := newLoader()
		if err := l.builtin(); err != nil {
			b.Fatal(err)
		}
		if _, err := l.compile(); err != nil {
			b.Fatal(err)
		}
	}
}
