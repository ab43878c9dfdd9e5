//go:build integration

package contracts

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"orchestrator/client"
	v1 "orchestrator/client/v1"
	"orchestrator/integration/harness"
)

const (
	safetyViolation  = "SafetyViolation"
	forbiddenPattern = "Command matches forbidden pattern"
)

// phase2Seen is phase2 with the time that a command had as its result.
const phase2Seen = `
name: phase2-seen
extends: phase2
tools:
  - name: system.bash
    output: {type: object}
    result: '{"timeout_ms": end.timeout_ms}'
`

type phase2Test = func(t *testing.T, s *harness.Server, l line)

func TestPhase2(t *testing.T) {
	bash := func(test func(t *testing.T, a agent)) phase2Test {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, operator(s, "phase2", "system.bash")) }
	}
	hold(t, "phase2.txt", profiles(t, map[string]string{"phase2-seen": phase2Seen}), map[string]phase2Test{
		"tools":        phase2Tools,
		"bash-trust":   phase2Trust("system.bash", 3),
		"kill-trust":   phase2Trust("system.kill", 2),
		"bash-effects": phase2Effects("system.bash", "calls(shell)", "writes(filesystem)", "spawns(process)"),
		"kill-effects": phase2Effects("system.kill", "calls(shell)"),
		"cacheable":    phase2Cacheable,
		"bash-title":   phase2Title,
		"bash-input":   phase2Input("system.bash", "command", "timeout_ms", "working_directory", "run_in_background"),
		"kill-input":   phase2Input("system.kill", "shell_id"),
		"underscore": func(t *testing.T, s *harness.Server, _ line) {
			gives(t, operator(s, "phase2", "system_bash").run(t, "echo hello"), fields{"stdout": "hello\n"})
		},

		"never":           phase2Never,
		"never-count":     phase2Count("never", 13),
		"never-first":     bash(phase2NeverFirst),
		"never-type":      bash(phase2NeverType),
		"never-unasked":   bash(phase2NeverUnasked),
		"never-modified":  bash(phase2NeverModified),
		"never-text":      bash(phase2NeverText),
		"confirm":         phase2Confirm,
		"confirm-count":   phase2Count("confirm", 5),
		"confirm-waits":   bash(phase2ConfirmWaits),
		"confirm-yes":     bash(phase2ConfirmYes),
		"confirm-no":      bash(phase2ConfirmNo),
		"literal-never":   phase2LiteralNever,
		"literal-confirm": phase2LiteralConfirm,
		"literal-case":    phase2LiteralCase,

		"result": bash(phase2Result),
		"safe": bash(func(t *testing.T, a agent) {
			gives(t, a.run(t, "echo hello"), fields{"stdout": "hello\n", "exit_code": 0})
		}),
		"shell": bash(phase2Shell),
		"streams": bash(func(t *testing.T, a agent) {
			gives(t, a.run(t, "echo out; echo err >&2"), fields{"stdout": "out\n", "stderr": "err\n"})
		}),
		"exit-code":         bash(phase2ExitCode),
		"signal":            bash(func(t *testing.T, a agent) { gives(t, a.run(t, "kill -9 $$"), fields{"exit_code": -9}) }),
		"utf8":              bash(func(t *testing.T, a agent) { gives(t, a.run(t, `printf 'a\377b'`), fields{"stdout": "a\uFFFDb"}) }),
		"directory":         bash(phase2Directory),
		"directory-missing": bash(phase2DirectoryMissing),
		"sandbox":           bash(phase2Sandbox),

		"time-default":   phase2Time(0, 120_000),
		"time-given":     phase2Time(5_000, 5_000),
		"time-max":       phase2Time(600_001, 600_000),
		"time-unlimited": bash(phase2TimeUnlimited),
		"time-error":     bash(phase2TimeError),
		"time-kill":      bash(phase2TimeKill),

		"output-whole":      bash(phase2Whole),
		"output-cut":        bash(phase2Cut),
		"output-50000":      bash(phase2Fifty),
		"output-characters": bash(phase2Characters),
		"output-stderr":     bash(phase2Stderr),

		"background":        bash(phase2Background),
		"background-output": bash(phase2BackgroundOutput),
		"background-list":   bash(phase2BackgroundList),
		"background-policy": bash(phase2BackgroundPolicy),
		"kill-term":         bash(phase2KillTerm),
		"kill-grace":        bash(phase2KillGrace),
		"kill-tree":         bash(phase2KillTree),
		"kill-result":       bash(phase2KillResult),
		"kill-ended":        bash(phase2KillEnded),
		"kill-unknown":      bash(phase2KillUnknown),
		"kill-foreign":      phase2KillForeign,

		"trust-bash":  phase2TrustOf("system.bash", 3, fields{"command": "echo hello"}),
		"trust-kill":  phase2TrustOf("system.kill", 2, fields{"shell_id": "nonexistent"}),
		"trust-first": phase2TrustFirst,
		"trust-raise": phase2TrustRaise,
		"trust-once":  phase2TrustOnce,
		"trust-not":   phase2TrustNot,
		"trust-never": phase2TrustNever,
		"trace":       phase2Trace,
	})
}

// toolNamed is a tool of a profile, as callers see it.
func toolNamed(t *testing.T, s *harness.Server, profile, name string) v1.Tool {
	t.Helper()
	list, err := s.Client.Tools(soon(t), profile)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list {
		if tool.Name == name {
			return tool
		}
	}
	t.Fatalf("%s has no tool %s", profile, name)
	return v1.Tool{}
}

// inputs lists what a tool takes and what of it must be given.
func inputs(t *testing.T, tool v1.Tool) (known, required []string) {
	t.Helper()
	var schema struct {
		Properties map[string]any
		Required   []string
	}
	if err := json.Unmarshal(tool.Input, &schema); err != nil {
		t.Fatal(err)
	}
	for name := range schema.Properties {
		known = append(known, name)
	}
	return known, schema.Required
}

func phase2Tools(t *testing.T, s *harness.Server, _ line) {
	list, err := s.Client.Tools(soon(t), "phase2")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list {
		names = append(names, tool.Name)
		if !tool.Enabled {
			t.Errorf("%s is disabled", tool.Name)
		}
	}
	for _, want := range []string{"system.bash", "system.kill", "system.output", "system.shells"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %v", want, names)
		}
	}
}

func phase2Trust(name string, want int) phase2Test {
	return func(t *testing.T, s *harness.Server, _ line) {
		if got := toolNamed(t, s, "phase2", name).Trust; got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}

func phase2Effects(name string, want ...string) phase2Test {
	return func(t *testing.T, s *harness.Server, _ line) {
		if got := toolNamed(t, s, "phase2", name).Effects; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

func phase2Cacheable(t *testing.T, s *harness.Server, _ line) {
	for _, name := range []string{"system.bash", "system.kill"} {
		if toolNamed(t, s, "phase2", name).Cacheable {
			t.Errorf("%s is cacheable", name)
		}
	}
	a := operator(s, "phase2", "system.bash")
	gives(t, a.run(t, "echo x >> twice; cat twice"), fields{"stdout": "x\n"})
	gives(t, a.run(t, "echo x >> twice; cat twice"), fields{"stdout": "x\nx\n"})
}

func phase2Title(t *testing.T, s *harness.Server, _ line) {
	if got := toolNamed(t, s, "phase2", "system.bash").Description; !strings.Contains(got, "shell command") || !strings.Contains(got, "safety") {
		t.Errorf("%q", got)
	}
}

// phase2Input: the first must be given.
func phase2Input(name string, want ...string) phase2Test {
	return func(t *testing.T, s *harness.Server, _ line) {
		known, required := inputs(t, toolNamed(t, s, "phase2", name))
		for _, w := range want {
			if !slices.Contains(known, w) {
				t.Errorf("%s is not taken, but %v", w, known)
			}
		}
		if !slices.Equal(required, want[:1]) {
			t.Errorf("%v must be given", required)
		}
		for body, says := range map[string]string{`{"input": {}}`: "missing", `{"input": {"` + want[0] + `": 3}}`: "must be a string", `{"input": {"` + want[0] + `": "a", "nonsense": 1}}`: "nonsense"} {
			got := s.Ask(t, "POST", "/v1/tools/"+name+"/call", strings.Replace(body, "{", `{"profile": "phase2", `, 1))
			if p, ok := v1.Decode(got.Body); !ok || got.Status != 400 || !strings.Contains(p.Detail, says) {
				t.Errorf("%s: %d %s", body, got.Status, got.Body)
			}
		}
	}
}

// phase2Count: so many lines of a kind have a set of commands each.
func phase2Count(kind string, want int) phase2Test {
	return func(t *testing.T, _ *harness.Server, _ line) {
		n := 0
		for _, l := range read(t, "phase2.txt") {
			if strings.HasPrefix(l.id, kind+"/") {
				n++
			}
		}
		sets := len(map[string]map[string]commandSet{"never": phase2Nevers, "confirm": phase2Confirms}[kind])
		if n != want || sets != want {
			t.Errorf("%d lines and %d sets of commands, want %d", n, sets, want)
		}
	}
}

func phase2Never(t *testing.T, s *harness.Server, l line) {
	phase2Nevers[lastOf(l)].hold(t, operator(s, "phase2", "system.bash"), neverRuns)
}

func neverRuns(t *testing.T, command string, r v1.ToolResult) {
	t.Helper()
	if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != safetyViolation || r.Error.Message != forbiddenPattern || r.Verdict == nil || !r.Verdict.Never || r.SandboxID != "" {
		t.Errorf("%q is not refused as it must be: %s %+v %+v", command, r.Ending, r.Error, r.Verdict)
	}
}

func phase2Confirm(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "phase2", "system.bash")
	set := phase2Confirms[lastOf(l)]
	set.hold(t, a, neverRuns)
	// What it is called with is not there to be pushed, published or installed,
	// but that it ran shows.
	r := a.answered(t, fields{"command": "echo ran; " + set.asked[0]}, "approve")
	if out := outputOf(t, r); r.Ending != "exited" || out["stdout"] != "ran\n" {
		t.Errorf("after a yes: %s %v", r.Ending, out)
	}
}

func phase2NeverFirst(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	for _, command := range []string{"; sudo ls", " && sudo ls", " | sudo cat", " & sudo ls", "; if false; then sudo ls; fi", "; f() { sudo ls; }; f", "\nsudo ls"} {
		neverRuns(t, command, a.run(t, "touch "+mark+command))
	}
	gives(t, a.run(t, "ls "+mark), fields{"stdout": "", "exit_code": 2})
}

func phase2NeverType(t *testing.T, a agent) {
	r := a.run(t, "ls; sudo ls")
	ends(t, r, "policy_denied", safetyViolation, forbiddenPattern)
	if v := r.Verdict; v == nil || v.Verdict != "deny" || !v.Never || v.Rule != "never:sudo" || v.Program != "sudo" || v.At == nil || v.At.Offset != 4 || v.At.Line != 1 || v.At.Column != 5 {
		t.Errorf("%+v", r.Verdict)
	}
	if r.Text != forbiddenPattern {
		t.Errorf("models are told %q", r.Text)
	}
}

func phase2NeverUnasked(t *testing.T, a agent) {
	for _, command := range []string{"rm -r x; sudo ls", "sudo ls; rm -r x", "git push && git push --force"} {
		neverRuns(t, command, a.run(t, command)) // which fails for a question
	}
}

func phase2NeverModified(t *testing.T, a agent) {
	_, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": "rm -r nothing-here"}), client.CallOptions{Asked: func(q v1.Approval) {
		_, err := a.s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: "modify", Input: json.RawMessage(`{"command":"sudo ls"}`)})
		if err == nil || !strings.Contains(err.Error(), forbiddenPattern) {
			t.Errorf("modified to a forbidden command: %v", err)
		}
		if _, err := a.s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Error(err)
	}
}

func phase2NeverText(t *testing.T, a agent) {
	for _, text := range []string{"rm -rf /", "git push --force", "sudo ls", "> /etc/passwd", "chmod 777 x", "curl x | sh", "eval x"} {
		gives(t, a.run(t, `echo "`+text+`"`), fields{"stdout": text + "\n", "exit_code": 0})
	}
	gives(t, a.run(t, `echo '$(id)'`), fields{"stdout": "$(id)\n"})
}

func phase2ConfirmWaits(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	command := "touch " + mark + "; rm -r nothing-here"
	r, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": command}), client.CallOptions{Asked: func(q v1.Approval) {
		if q.Tool != a.tool || q.Rule != "confirm:rm-r" || !strings.Contains(string(q.Input), command) {
			t.Errorf("asked about %+v", q)
		}
		gives(t, a.run(t, "ls "+mark), fields{"stdout": "", "exit_code": 2})
		if _, err := a.s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil || r.Ending != "exited" {
		t.Errorf("%+v %v", r, err)
	}
	gives(t, a.run(t, "ls "+mark), fields{"stdout": mark + "\n"})
}

func phase2ConfirmYes(t *testing.T, a agent) {
	r := a.answered(t, fields{"command": "mkdir -p junk/a && rm -r junk && echo removed"}, "approve")
	gives(t, r, fields{"stdout": "removed\n", "exit_code": 0})
	got, err := a.s.Client.Approval(soon(t), r.Approval)
	if err != nil || got.State != "approved" || got.Call != r.ID {
		t.Errorf("%+v %v", got, err)
	}
}

func phase2ConfirmNo(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	r := a.answered(t, fields{"command": "touch " + mark + "; rm -r " + mark + "-x"}, "deny")
	if r.Ending != "approval_denied" || r.Error == nil || r.Error.Type != "ConfirmationDenied" {
		t.Errorf("%+v", r)
	}
	gives(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func phase2LiteralNever(t *testing.T, s *harness.Server, l line) {
	phase2LiteralNevers[lastOf(l)].hold(t, operator(s, "phase2-literal", "system.bash"), neverRuns)
}

func phase2LiteralConfirm(t *testing.T, s *harness.Server, l line) {
	phase2LiteralConfirms[lastOf(l)].hold(t, operator(s, "phase2-literal", "system.bash"), neverRuns)
}

func phase2LiteralCase(t *testing.T, s *harness.Server, _ line) {
	commandSet{
		denied: []string{"SUDO ls", "Eval x", "CHMOD 777 x", "GIT PUSH --FORCE"},
		asked:  []string{"rm -r x"},
		runs:   []string{"GIT PUSH", "PIP INSTALL x", "RM -R x"},
	}.hold(t, operator(s, "phase2-literal", "system.bash"), neverRuns)
}

func phase2Result(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, "echo out; exit 3"))
	want := fields{"command": "echo out; exit 3", "stdout": "out\n", "stderr": "", "exit_code": 3.0, "truncated": false, "background_task_id": nil}
	for name, v := range want {
		if got, ok := out[name]; !ok || got != v {
			t.Errorf("%s is %v, want %v", name, got, v)
		}
	}
	if ms, ok := out["duration_ms"].(float64); !ok || ms < 0 {
		t.Errorf("duration_ms is %v", out["duration_ms"])
	}
	if len(out) != len(want)+1 {
		t.Errorf("%v", out)
	}
	if ms := outputOf(t, a.run(t, "sleep 0.3"))["duration_ms"].(float64); ms < 290 {
		t.Errorf("a command of 300 ms took %v ms", ms)
	}
}

func phase2Shell(t *testing.T, a agent) {
	gives(t, a.run(t, `printf 'b\na\n' | sort > list && cat list; for i in 1 2; do echo $i; done; false || echo or`), fields{"stdout": "a\nb\n1\n2\nor\n"})
}

func phase2ExitCode(t *testing.T, a agent) {
	for command, code := range map[string]int{"true": 0, "false": 1, "exit 42": 42, "no-such-program-here": 127} {
		r := a.run(t, command)
		ends(t, r, "exited", "", "")
		gives(t, r, fields{"exit_code": code})
	}
}

func phase2Directory(t *testing.T, a agent) {
	a.run(t, "mkdir -p sub/dir")
	for dir, want := range map[string]string{"/tmp": "/tmp", "sub": "/workspace/sub", "sub/dir/..": "/workspace/sub", "/workspace/sub/dir": "/workspace/sub/dir"} {
		gives(t, a.call(t, fields{"command": "pwd", "working_directory": dir}), fields{"stdout": want + "\n"})
	}
	gives(t, a.call(t, fields{"command": "pwd", "working_directory": nil}), fields{"stdout": "/workspace\n"})
	gives(t, a.run(t, "pwd"), fields{"stdout": "/workspace\n"})
}

func phase2DirectoryMissing(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	r := a.call(t, fields{"command": "touch " + mark, "working_directory": "/nowhere"})
	if r.Ending != "failed" || r.Error == nil || r.Error.Type != "ToolError" || !strings.Contains(r.Error.Message, "/nowhere") {
		t.Errorf("%+v", r)
	}
	gives(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func phase2Sandbox(t *testing.T, a agent) {
	r := a.run(t, "id -u; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; ls /proc/1/exe >/dev/null 2>&1 || echo hidden")
	gives(t, r, fields{"stdout": "1000\nlo\nhidden\n"})
	if r.SandboxID == "" {
		t.Error("it ran in no sandbox")
	}
}

// phase2Time: with this timeout_ms (0: none) a command has so many milliseconds.
func phase2Time(given, has int) phase2Test {
	return func(t *testing.T, s *harness.Server, _ line) {
		caps := toolNamed(t, s, "phase2", "system.bash").Caps
		if caps.TimeoutMS != 120_000 || caps.MaxTimeoutMS != 600_000 {
			t.Errorf("%+v", caps)
		}
		in := fields{"command": "true"}
		if given != 0 {
			in["timeout_ms"] = given
		}
		gives(t, operator(s, "phase2-seen", "system.bash").call(t, in), fields{"timeout_ms": has})
		ends(t, operator(s, "phase2", "system.bash").call(t, in), "exited", "", "")
	}
}

func phase2TimeUnlimited(t *testing.T, a agent) {
	for _, ms := range []int{0, -1} {
		_, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": "true", "timeout_ms": ms}), client.CallOptions{})
		if err == nil || !strings.Contains(err.Error(), "timeout_ms") {
			t.Errorf("%d: %v", ms, err)
		}
	}
}

func phase2TimeError(t *testing.T, a agent) {
	r := a.call(t, fields{"command": "sleep 600", "timeout_ms": 100})
	ends(t, r, "timeout", "ToolTimeoutError", "Command timed out after 0.1s")
	r = a.call(t, fields{"command": "exit 124", "timeout_ms": 60_000})
	ends(t, r, "exited", "", "")
}

func phase2TimeKill(t *testing.T, a agent) {
	timeoutKills(t, func(command string, seconds int) (agent, fields) {
		return a, fields{"command": command, "timeout_ms": 1000 * seconds}
	})
}

func phase2Whole(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, "head -c 30000 /dev/zero | tr '\\0' x"))
	if got := out["stdout"].(string); got != strings.Repeat("x", 30_000) || out["truncated"] != false {
		t.Errorf("%d characters, truncated: %v", len(got), out["truncated"])
	}
}

const phase2Marker = "\n... (truncated)"

func phase2Cut(t *testing.T, a agent) {
	r := a.run(t, "head -c 30001 /dev/zero | tr '\\0' x")
	out := outputOf(t, r)
	if got := out["stdout"].(string); got != strings.Repeat("x", 30_000)+phase2Marker || out["truncated"] != true || out["exit_code"] != 0.0 {
		t.Errorf("%d characters, truncated: %v", len(got), out["truncated"])
	}
	if caps := toolNamed(t, a.s, "phase2", "system.bash").Caps; caps.Output != 30_000 || caps.OutputUnit != "characters" {
		t.Errorf("%+v", caps)
	}
	if o, err := a.client.CallOutput(soon(t), r.Rest, client.OutputRequest{Stream: "stdout", Offset: 30_000}); err != nil || o.Data != "x" {
		t.Errorf("the rest by %q is %+v %v", r.Rest, o, err)
	}
}

func phase2Fifty(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, `python3 -c "print('x' * 50000)"`))
	if got := out["stdout"].(string); len(got) > 31_000 || !strings.HasSuffix(got, phase2Marker) || out["truncated"] != true {
		t.Errorf("%d characters, truncated: %v", len(got), out["truncated"])
	}
}

func phase2Characters(t *testing.T, a agent) {
	whole := outputOf(t, a.run(t, `python3 -c "print('é€' * 15000, end='')"`))
	if got := whole["stdout"].(string); utf8.RuneCountInString(got) != 30_000 || whole["truncated"] != false {
		t.Errorf("%d characters, truncated: %v", utf8.RuneCountInString(got), whole["truncated"])
	}
	cut := outputOf(t, a.run(t, `python3 -c "print('é€' * 15000 + 'x', end='')"`))
	if got := cut["stdout"].(string); got != strings.Repeat("é€", 15_000)+phase2Marker || cut["truncated"] != true {
		t.Errorf("%d characters, truncated: %v", utf8.RuneCountInString(got), cut["truncated"])
	}
}

func phase2Stderr(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, "head -c 40000 /dev/zero | tr '\\0' x >&2; echo short"))
	if got := out["stderr"].(string); got != strings.Repeat("x", 30_000)+phase2Marker || out["stdout"] != "short\n" || out["truncated"] != true {
		t.Errorf("%d characters of stderr, truncated: %v", len(got), out["truncated"])
	}
}

// started starts a background shell and returns its id.
func started(t *testing.T, a agent, command string) string {
	t.Helper()
	r := a.call(t, fields{"command": command, "run_in_background": true})
	id, _ := outputOf(t, r)["background_task_id"].(string)
	if id == "" || r.Ending != "started" {
		t.Fatalf("%+v", r)
	}
	return id
}

// kill ends a background shell.
func (a agent) kill(t *testing.T, id string) v1.ToolResult {
	t.Helper()
	return a.with("system.kill").call(t, fields{"shell_id": id})
}

// says waits until a background shell has written a text.
func (a agent) says(t *testing.T, id, text string) {
	t.Helper()
	harness.Eventually(t, harness.Short, "the shell says "+text, func() bool {
		out := outputOf(t, a.with("system.output").call(t, fields{"shell_id": id, "wait_ms": 500}))
		return strings.Contains(out["data"].(string), text)
	})
}

func phase2Background(t *testing.T, a agent) {
	r := a.call(t, fields{"command": "sleep 600", "run_in_background": true})
	gives(t, r, fields{"command": "sleep 600", "stdout": "", "stderr": "", "exit_code": 0, "truncated": false})
	id, _ := outputOf(t, r)["background_task_id"].(string)
	if id == "" {
		t.Fatalf("%+v", r)
	}
	// The answer was there while it runs.
	gives(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"state": "running", "data": "", "eof": false})
	a.kill(t, id)
}

func phase2BackgroundOutput(t *testing.T, a agent) {
	id := started(t, a, "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; echo err >&2; exit 7")
	a.says(t, id, "one\n")
	a.run(t, "touch go")
	read := a.with("system.output")
	harness.Eventually(t, harness.Short, "the shell ends", func() bool {
		return outputOf(t, read.call(t, fields{"shell_id": id, "offset": 4, "wait_ms": 500}))["state"] == "ended"
	})
	gives(t, read.call(t, fields{"shell_id": id, "offset": 4}), fields{"data": "two\n", "offset": 4, "next_offset": 8, "eof": true, "exit_code": 7, "ending": "exited"})
	gives(t, read.call(t, fields{"shell_id": id, "stream": "stderr"}), fields{"data": "err\n"})
	a.run(t, "rm go")
}

func phase2BackgroundList(t *testing.T, a agent) {
	id := started(t, a, "sleep 600")
	state := func() any {
		for _, sh := range outputOf(t, a.with("system.shells").call(t, fields{}))["shells"].([]any) {
			if sh := sh.(fields); sh["shell_id"] == id {
				return sh["state"]
			}
		}
		return nil
	}
	if got := state(); got != "running" {
		t.Errorf("its state is %v", got)
	}
	a.kill(t, id)
	if got := state(); got != "ended" {
		t.Errorf("after its end its state is %v", got)
	}
}

func phase2BackgroundPolicy(t *testing.T, a agent) {
	neverRuns(t, "in the background", a.call(t, fields{"command": "sudo ls", "run_in_background": true}))
	if r := a.answered(t, fields{"command": "rm -r x", "run_in_background": true}, "deny"); r.Ending != "approval_denied" {
		t.Errorf("%+v", r)
	}
}

func phase2KillTerm(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	id := started(t, a, "trap 'echo ended > "+mark+"; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	a.says(t, id, "ready\n")
	gives(t, a.kill(t, id), fields{"success": true})
	gives(t, a.run(t, "cat "+mark), fields{"stdout": "ended\n"})
	gives(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"state": "ended", "exit_code": 3})
}

// phase2KillGrace: that it was not killed before its time, the clock shows; that
// it was killed then, the host.
func phase2KillGrace(t *testing.T, a agent) {
	mark := word()
	id := started(t, a, "bash -c 'trap \"\" TERM; echo ready; while :; do sleep 0.05; done' "+mark)
	a.says(t, id, "ready\n")
	there(t, mark, 1)
	began := time.Now()
	gives(t, a.kill(t, id), fields{"success": true})
	if took := time.Since(began); took < 4900*time.Millisecond {
		t.Errorf("it had %s of its 5 s", took)
	}
	gone(t, mark)
}

func phase2KillTree(t *testing.T, a agent) {
	mark := word()
	sleep := "bash -c 'sleep 600; :' " + mark
	id := started(t, a, sleep+" & setsid "+sleep+" & ("+sleep+" &) & nohup "+sleep+" & sleep 600")
	there(t, mark, 5) // with the shell around
	gives(t, a.kill(t, id), fields{"success": true})
	gone(t, mark)
}

func phase2KillResult(t *testing.T, a agent) {
	id := started(t, a, "sleep 600")
	r := a.kill(t, id)
	gives(t, r, fields{"shell_id": id, "success": true, "message": "Shell terminated"})
	if out := outputOf(t, r); len(out) != 3 {
		t.Errorf("%v", out)
	}
}

func phase2KillEnded(t *testing.T, a agent) {
	id := started(t, a, "exit 3")
	harness.Eventually(t, harness.Short, "the shell ends", func() bool {
		return outputOf(t, a.with("system.output").call(t, fields{"shell_id": id, "wait_ms": 500}))["state"] == "ended"
	})
	gives(t, a.kill(t, id), fields{"shell_id": id, "success": true})
	gives(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"ending": "exited", "exit_code": 3})
}

func phase2KillUnknown(t *testing.T, a agent) {
	for _, id := range []string{"nonexistent", "01a200ad-855e-7df9-ac3e-1ffd28fcc142", "../x"} {
		r := a.kill(t, id)
		ends(t, r, "ok", "", "")
		gives(t, r, fields{"shell_id": id, "success": false, "message": "Shell " + id + " not found"})
	}
}

func phase2KillForeign(t *testing.T, s *harness.Server, _ line) {
	a := operator(s, "phase2", "system.bash")
	mark := word()
	id := started(t, a, "bash -c 'sleep 600; :' "+mark)
	there(t, mark, 1)
	other := holder(t, s, v1.TokenRequest{Caller: "stranger", Profile: "phase2", Trust: 3}, "system.bash")
	gives(t, other.kill(t, id), fields{"success": false, "message": "Shell " + id + " not found"})
	there(t, mark, 1)
	a.kill(t, id)
}

func phase2TrustOf(tool string, needs int, in fields) phase2Test {
	return func(t *testing.T, s *harness.Server, l line) {
		level := int(lastOf(l)[0] - '0')
		a := holder(t, s, v1.TokenRequest{Caller: "level" + lastOf(l), Profile: "phase2", Trust: level}, tool)
		r := a.call(t, in)
		if level < needs {
			tooLittle(t, r)
		} else if r.Error != nil {
			t.Errorf("%+v", r)
		}
	}
}

// tooLittle checks that a call was refused for want of trust, and did not run.
func tooLittle(t *testing.T, r v1.ToolResult) {
	t.Helper()
	if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != "TrustViolation" || r.SandboxID != "" || r.Verdict == nil || r.Verdict.Class != "trust" {
		t.Errorf("%+v %+v", r, r.Error)
	}
}

// low is an agent with trust 1.
func low(t *testing.T, s *harness.Server) agent {
	t.Helper()
	return holder(t, s, v1.TokenRequest{Caller: "low", Profile: "phase2", Trust: 1}, "system.bash")
}

// raised calls a command that asks for more trust, and answers.
func raised(t *testing.T, a agent, command, answer string) (r v1.ToolResult, kinds []string) {
	t.Helper()
	call := a.request(t, fields{"command": command})
	call.RaiseTrust = true
	r, err := a.client.CallTool(soon(t), a.tool, call, client.CallOptions{Asked: func(q v1.Approval) {
		kinds = append(kinds, q.Kind)
		if _, err := a.s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: answer}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r, kinds
}

func phase2TrustFirst(t *testing.T, s *harness.Server, _ line) {
	a := low(t, s)
	for _, command := range []string{"echo hello", "rm -r x", "git push"} { // run fails for a question
		tooLittle(t, a.run(t, command))
	}
	if list, err := a.client.Sandboxes(soon(t), false); err != nil || len(list) != 0 {
		t.Errorf("it has %v %v", list, err)
	}
}

func phase2TrustRaise(t *testing.T, s *harness.Server, _ line) {
	r, kinds := raised(t, low(t, s), "echo hello", "approve")
	gives(t, r, fields{"stdout": "hello\n"})
	if !slices.Equal(kinds, []string{"trust"}) {
		t.Errorf("asked %v", kinds)
	}
}

func phase2TrustOnce(t *testing.T, s *harness.Server, _ line) {
	a := low(t, s)
	if r, _ := raised(t, a, "echo hello", "approve"); r.Ending != "exited" {
		t.Errorf("%+v", r)
	}
	tooLittle(t, a.run(t, "echo hello"))
}

func phase2TrustNot(t *testing.T, s *harness.Server, _ line) {
	r, kinds := raised(t, low(t, s), "echo hello", "deny")
	if r.Ending != "approval_denied" || r.SandboxID != "" || len(kinds) != 1 {
		t.Errorf("%+v %v", r, kinds)
	}
}

func phase2TrustNever(t *testing.T, s *harness.Server, _ line) {
	r, kinds := raised(t, low(t, s), "sudo ls", "approve")
	neverRuns(t, "sudo ls", r)
	if len(kinds) != 0 {
		t.Errorf("asked %v", kinds)
	}
}

func phase2Trace(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "phase2", "system.bash")
	var r v1.ToolResult
	ending, verdict := "exited", "allow"
	switch what := lastOf(l); what {
	case "run":
		r = a.run(t, "echo hello")
	case "failed":
		r = a.run(t, "exit 3")
	case "refused":
		r, ending, verdict = a.run(t, "sudo ls"), "policy_denied", "deny"
	case "confirmed":
		r, verdict = a.answered(t, fields{"command": "rm -r nothing-here"}, "approve"), "ask"
	case "denied":
		r, ending, verdict = a.answered(t, fields{"command": "rm -r nothing-here"}, "deny"), "approval_denied", "deny"
	case "timeout":
		r, ending = a.call(t, fields{"command": "sleep 600", "timeout_ms": 50}), "timeout"
	case "background":
		r, ending = a.call(t, fields{"command": "sleep 600", "run_in_background": true}), "started"
		a.kill(t, outputOf(t, r)["background_task_id"].(string))
	case "kill":
		r, ending, verdict = a.kill(t, "nonexistent"), "ok", ""
	case "trust":
		r, ending, verdict = low(t, s).run(t, "echo hello"), "policy_denied", "deny"
	case "invalid":
		tracesInvalid(t, a, fields{"cmd": "ls"}, "command")
		return
	default:
		t.Fatalf("no call of the kind %s", what)
	}
	if got := traced(t, s, r); got.Ending != ending || got.Verdict != verdict || got.Approval != r.Approval {
		t.Errorf("%+v", got)
	}
}

// tracesInvalid checks the record of an input that cannot be used: it has no
// answer with an id to find it by.
func tracesInvalid(t *testing.T, a agent, in fields, says string) {
	t.Helper()
	before := newest(t, a.s)
	if _, err := a.client.CallTool(soon(t), a.tool, a.request(t, in), client.CallOptions{}); err == nil {
		t.Fatal("it was called")
	}
	list, err := a.s.Client.Audit(soon(t), client.AuditFilter{After: before, Action: a.tool})
	if err != nil || len(list) != 2 || list[0].Kind != "open" || list[1].Kind != "close" || !strings.Contains(list[1].Error, says) {
		t.Errorf("%+v %v", list, err)
	}
}

// newest is the number of the newest audit record; 0 is none.
func newest(t *testing.T, s *harness.Server) int64 {
	t.Helper()
	list, err := s.Client.Audit(soon(t), client.AuditFilter{Newest: true, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return 0
	}
	return list[0].Seq
}
