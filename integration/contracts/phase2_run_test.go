//go:build integration

package contracts

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

func testPhase2Result(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, "echo out; exit 3"))
	want := fields{
		"command":            "echo out; exit 3",
		"stdout":             "out\n",
		"stderr":             "",
		"exit_code":          3.0,
		"truncated":          false,
		"background_task_id": nil,
	}
	for name, v := range want {
		if got, ok := out[name]; !ok || got != v {
			t.Errorf("output field %s = %v, want %v", name, got, v)
		}
	}
	if ms, ok := out["duration_ms"].(float64); !ok || ms < 0 {
		t.Errorf("duration_ms is %v, want a number", out["duration_ms"])
	}
	if len(out) != len(want)+1 {
		t.Errorf("output %v, want %d fields", out, len(want)+1)
	}
	if ms := outputOf(t, a.run(t, "sleep 0.3"))["duration_ms"].(float64); ms < 290 {
		t.Errorf("duration of a command of 300 ms = %v ms, want at least 290 ms", ms)
	}
}

func testPhase2Shell(t *testing.T, a agent) {
	r := a.run(t, `printf 'b\na\n' | sort > list && cat list; for i in 1 2; do echo $i; done; false || echo or`)
	assertFields(t, r, fields{"stdout": "a\nb\n1\n2\nor\n"})
}

func testPhase2ExitCode(t *testing.T, a agent) {
	for command, code := range map[string]int{"true": 0, "false": 1, "exit 42": 42, "no-such-program-here": 127} {
		r := a.run(t, command)
		assertEnding(t, r, "exited", "", "")
		assertFields(t, r, fields{"exit_code": code})
	}
}

func testPhase2Directory(t *testing.T, a agent) {
	a.run(t, "mkdir -p sub/dir")
	for dir, want := range map[string]string{
		"/tmp":               "/tmp",
		"sub":                "/workspace/sub",
		"sub/dir/..":         "/workspace/sub",
		"/workspace/sub/dir": "/workspace/sub/dir",
	} {
		assertFields(t, a.call(t, fields{"command": "pwd", "working_directory": dir}), fields{"stdout": want + "\n"})
	}
	assertFields(t, a.call(t, fields{"command": "pwd", "working_directory": nil}), fields{"stdout": "/workspace\n"})
	assertFields(t, a.run(t, "pwd"), fields{"stdout": "/workspace\n"})
}

func testPhase2DirectoryMissing(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	r := a.call(t, fields{"command": "touch " + mark, "working_directory": "/nowhere"})
	if r.Ending != "failed" || r.Error == nil || r.Error.Type != "ToolError" ||
		!strings.Contains(r.Error.Message, "/nowhere") {
		t.Errorf("missing working directory: %+v, want ToolError with its name", r)
	}
	assertFields(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func testPhase2Sandbox(t *testing.T, a agent) {
	r := a.run(t,
		"id -u; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; ls /proc/1/exe >/dev/null 2>&1 || echo hidden")
	assertFields(t, r, fields{"stdout": "1000\nlo\nhidden\n"})
	if r.SandboxID == "" {
		t.Error("the call has no sandbox, want one")
	}
}

// phase2Time returns a test that a call with this timeout_ms (0: none) has a timeout of has
// milliseconds.
func phase2Time(given, has int) contractTest {
	return func(t *testing.T, s *harness.Server, _ line) {
		caps := toolNamed(t, s, "phase2", "system.bash").Caps
		if caps.TimeoutMS != 120_000 || caps.MaxTimeoutMS != 600_000 {
			t.Errorf("caps of system.bash = %+v, want 120 s and at most 600 s", caps)
		}
		in := fields{"command": "true"}
		if given != 0 {
			in["timeout_ms"] = given
		}
		assertFields(t, operator(s, "phase2-seen", "system.bash").call(t, in), fields{"timeout_ms": has})
		assertEnding(t, operator(s, "phase2", "system.bash").call(t, in), "exited", "", "")
	}
}

func testPhase2TimeUnlimited(t *testing.T, a agent) {
	for _, ms := range []int{0, -1} {
		_, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, fields{"command": "true", "timeout_ms": ms}),
			client.CallOptions{})
		if err == nil || !strings.Contains(err.Error(), "timeout_ms") {
			t.Errorf("timeout_ms %d: %v, want an error that names it", ms, err)
		}
	}
}

func testPhase2TimeError(t *testing.T, a agent) {
	r := a.call(t, fields{"command": "sleep 600", "timeout_ms": 100})
	assertEnding(t, r, "timeout", "ToolTimeoutError", "Command timed out after 0.1s")
	r = a.call(t, fields{"command": "exit 124", "timeout_ms": 60_000})
	assertEnding(t, r, "exited", "", "")
}

func testPhase2TimeKill(t *testing.T, a agent) {
	assertTimeoutKills(t, func(command string, seconds int) (agent, fields) {
		return a, fields{"command": command, "timeout_ms": 1000 * seconds}
	})
}

func testPhase2Whole(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, "head -c 30000 /dev/zero | tr '\\0' x"))
	if got := out["stdout"].(string); got != strings.Repeat("x", 30_000) || out["truncated"] != false {
		t.Errorf("stdout of %d characters, truncated %v; want all 30,000", len(got), out["truncated"])
	}
}

const phase2Marker = "\n... (truncated)"

func testPhase2Cut(t *testing.T, a agent) {
	r := a.run(t, "head -c 30001 /dev/zero | tr '\\0' x")
	out := outputOf(t, r)
	if got := out["stdout"].(string); got != strings.Repeat("x", 30_000)+phase2Marker || out["truncated"] != true ||
		out["exit_code"] != 0.0 {
		t.Errorf("stdout of %d characters, truncated %v; want 30,000 and the marker", len(got), out["truncated"])
	}
	if caps := toolNamed(t, a.s, "phase2", "system.bash").Caps; caps.Output != 30_000 || caps.OutputUnit != "characters" {
		t.Errorf("caps of system.bash = %+v, want 30000 characters", caps)
	}
	if o, err := a.client.Tools.Output(callContext(t), r.Rest,
		client.OutputRequest{Stream: "stdout", Offset: 30_000}); err != nil || o.Data != "x" {
		t.Errorf("output after the limit, by %q: %+v, %v; want x", r.Rest, o, err)
	}
}

func testPhase2Fifty(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, `python3 -c "print('x' * 50000)"`))
	if got := out["stdout"].(string); len(got) > 31_000 || !strings.HasSuffix(got, phase2Marker) ||
		out["truncated"] != true {
		t.Errorf("stdout of %d characters, truncated %v; want at most 31,000 with the marker", len(got), out["truncated"])
	}
}

func testPhase2Characters(t *testing.T, a agent) {
	whole := outputOf(t, a.run(t, `python3 -c "print('é€' * 15000, end='')"`))
	if got := whole["stdout"].(string); utf8.RuneCountInString(got) != 30_000 || whole["truncated"] != false {
		t.Errorf("stdout of %d characters, truncated %v; want all 30,000", utf8.RuneCountInString(got), whole["truncated"])
	}
	cut := outputOf(t, a.run(t, `python3 -c "print('é€' * 15000 + 'x', end='')"`))
	if got := cut["stdout"].(string); got != strings.Repeat("é€", 15_000)+phase2Marker || cut["truncated"] != true {
		t.Errorf("stdout of %d characters, truncated %v; want 30,000 and the marker",
			utf8.RuneCountInString(got), cut["truncated"])
	}
}

func testPhase2Stderr(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, "head -c 40000 /dev/zero | tr '\\0' x >&2; echo short"))
	if got := out["stderr"].(string); got != strings.Repeat("x", 30_000)+phase2Marker || out["stdout"] != "short\n" ||
		out["truncated"] != true {
		t.Errorf("stderr of %d characters, truncated %v; want 30,000 and the marker", len(got), out["truncated"])
	}
}
