package profile

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"orchestrator/internal/tool"
)

// FuzzLoad: whatever a file holds, it is a profile that can be called, or a
// *FileError of that file, soon.
func FuzzLoad(f *testing.F) {
	files, err := data.ReadDir("data")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range files {
		text, err := data.ReadFile("data/" + e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), false)
	}
	f.Add(example(f), true)
	f.Add(bomb(24), false)
	f.Add("name: x\ntools: &a [*a]\n", false)
	f.Add("extends: phase2\ntools: [{name: system.bash, caps: {timeout_ms: 1}}]\n", false)
	base, err := shipped()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string, asJSON bool) {
		file := "profiles/x.yaml"
		if asJSON {
			file = "profiles/x.json"
		}
		l := base.clone()
		before := len(l.compiled)
		start := time.Now()
		l.add(file, []byte(text), false)
		s, err := l.compile()
		if took := time.Since(start); took > 20*time.Second {
			t.Fatalf("took %v", took)
		}
		if err != nil {
			if e, ok := errors.AsType[*FileError](err); !ok || e.File != file || e.Reason == "" || e.Line < 0 {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		if len(s.profiles) != before+1 {
			t.Fatalf("%d profiles and no error", len(s.profiles))
		}
		for _, c := range s.List() {
			if !strings.HasPrefix(c.Source, "profiles/") {
				continue
			}
			for _, ct := range c.Tools() {
				exercise(ct)
			}
		}
	})
}

// exercise calls a tool; only a panic is a fault.
func exercise(ct *CompiledTool) {
	ctx := context.Background()
	_, _, _, _, _ = ct.Title(), ct.Description(), ct.Input(), ct.Output(), ct.Effects()
	_, _, _, _ = ct.ReadOnly(), ct.Trust(), ct.Policy(), ct.Caps()
	call, err := ct.Prepare(ctx, json.RawMessage(`{"command":"ls"}`), map[string]any{"caller": "ann"})
	if err != nil {
		return
	}
	for _, r := range []any{nil, &tool.CommandOutput{Ending: "exited"}} {
		_, _ = call.Finish(ctx, r, End{Ending: "exited"})
	}
}
