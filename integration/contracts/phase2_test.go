//go:build integration

package contracts

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
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

// phase2Hasty waits for the web for a short time.
const phase2Hasty = `
name: phase2-hasty
extends: phase2
tools:
  - name: web.fetch
    caps: {timeout_ms: 2000}
`

type phase2Test = func(t *testing.T, s *harness.Server, l line)

func TestPhase2(t *testing.T) {
	t.Parallel()
	bash := func(test func(t *testing.T, a agent)) phase2Test {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, operator(s, "phase2", "system.bash")) }
	}
	w := &phase2Web{harness.NewWebsite(t, phase2Model)}
	tests := map[string]phase2Test{
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
		"time-given":     phase2Time(50_000, 50_000),
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
	}
	maps.Copy(tests, w.tests())
	hold(t, "phase2.txt", profiles(t, map[string]string{"phase2-seen": phase2Seen, "phase2-hasty": phase2Hasty})+w.Config, tests)
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
	for _, want := range []string{"system.bash", "system.kill", "system.output", "system.shells", "web.fetch", "web.search"} {
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
	if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != safetyViolation || r.Error.Message != forbiddenPattern || r.Verdict == nil || !r.Verdict.HardDeny || r.SandboxID != "" {
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
	if v := r.Verdict; v == nil || v.Verdict != "deny" || !v.HardDeny || v.Rule != "never:sudo" || v.Program != "sudo" || v.At == nil || v.At.Offset != 4 || v.At.Line != 1 || v.At.Column != 5 {
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
