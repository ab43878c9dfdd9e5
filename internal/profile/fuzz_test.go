package profile

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// FuzzLoad checks that any file gives a usable profile or a *FileError, in bounded time.
func FuzzLoad(f *testing.F) {
	// The seeds are small: minimising a large one takes the fuzzer a minute.
	for _, text := range []string{
		"tools: [{name: system.bash, trust: 1, text: '{{.r.stdout}}', errors: {timeout: {type: T, message: " +
			"'{{.end.rule}}'}}}]\n",
		"tools:\n- name: x\n  base: system.run\n  input: {type: object, properties: {command: {type: string, " +
			"default: ls}}}\n  arguments: '{\"argv\": [input.command]}'\n  result: 'r'\n",
		"extends: phase2\npolicy: {match: literal, rules: [{id: a, action: deny, pattern: 'a.*b'}]}\n",
		"extends: universal\npolicy: {allow: [ls], deny: [rm], forbid: [';'], unknown: ask, messages: {allowlist: " +
			"'{{.Program}}'}}\n",
		"extends: gateway\npaths: {/a: /workspace}\napprovals: [{tool: bash, action: budget, limit: 1, period: " +
			"daily, when: 'true'}]\n",
		"extends: readonly\nworkspace: job\ntools: [{name: run_shell, caps: {dirs: [/workspace], output: {limit: " +
			"3, keep: tail}}, rate: {max_calls: 1, window_ms: 2}}]\n",
	} {
		f.Add(text, false)
	}
	f.Add(`{"tools": {"bash": {"allowedCommands": ["ls"], "allowedDirectories": ["/a"]}, "sandbox": `+
		`{"memoryLimit": "1m"}}}`, true)
	f.Add(`{"tools": {}, "approval": {"rules": [{"toolName": "bash", "action": "prompt", "condition": "true"}]}, `+
		`"policy": {"rateLimits": {"bash": {"maxCalls": 1, "windowMs": 1}}}}`, true)
	f.Add(bomb(24), false)
	f.Add("name: x\ntools: &a [*a]\n", false)
	f.Add("extends: phase2\ntools: [{name: system.bash, caps: {timeout_ms: 1}}]\n", false)
	base, err := builtinLoader()
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
		if took := time.Since(start); took > 2*time.Minute {
			t.Fatalf("compile took %v, want at most 2m", took)
		}
		if err != nil {
			if e, ok := errors.AsType[*FileError](err); !ok || e.File != file || e.Reason == "" || e.Line < 0 {
				t.Fatalf("error of type %T, want a *FileError with a reason: %v", err, err)
			}
			return
		}
		if len(s.profiles) != before+1 {
			t.Fatalf("%d profiles, want %d", len(s.profiles), before+1)
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

// exercise calls a tool. Errors are fine; it must not panic.
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
