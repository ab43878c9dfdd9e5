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

// phase2Seen is phase2 with the timeout of a command as its result.
const phase2Seen = `
name: phase2-seen
extends: phase2
tools:
  - name: system.bash
    output: {type: object}
    result: '{"timeout_ms": end.timeout_ms}'
`

// phase2Hasty has a short timeout for web requests.
const phase2Hasty = `
name: phase2-hasty
extends: phase2
tools:
  - name: web.fetch
    caps: {timeout_ms: 2000}
`

// contractTest is the test of a line of a contract.
type contractTest = func(t *testing.T, s *harness.Server, l line)

// TestPhase2 tests every line of phase2.txt. The lines say what the tests below check.
func TestPhase2(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	bash := func(test func(t *testing.T, a agent)) contractTest {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, operator(s, "phase2", "system.bash")) }
	}
	w := &phase2Web{harness.NewWebsite(t, phase2Model)}
	tests := map[string]contractTest{
		"tools":        testPhase2Tools,
		"bash-trust":   phase2Trust("system.bash", 3),
		"kill-trust":   phase2Trust("system.kill", 2),
		"bash-effects": phase2Effects("system.bash", "calls(shell)", "writes(filesystem)", "spawns(process)"),
		"kill-effects": phase2Effects("system.kill", "calls(shell)"),
		"cacheable":    testPhase2Cacheable,
		"bash-title":   testPhase2Title,
		"bash-input":   phase2Input("system.bash", "command", "timeout_ms", "working_directory", "run_in_background"),
		"kill-input":   phase2Input("system.kill", "shell_id"),
		"underscore": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, operator(s, "phase2", "system_bash").run(t, "echo hello"), fields{"stdout": "hello\n"})
		},

		"never":           testPhase2Never,
		"never-count":     phase2Count("never", 13),
		"never-first":     bash(testPhase2NeverFirst),
		"never-type":      bash(testPhase2NeverType),
		"never-unasked":   bash(testPhase2NeverUnasked),
		"never-modified":  bash(testPhase2NeverModified),
		"never-text":      bash(testPhase2NeverText),
		"confirm":         testPhase2Confirm,
		"confirm-count":   phase2Count("confirm", 5),
		"confirm-waits":   bash(testPhase2ConfirmWaits),
		"confirm-yes":     bash(testPhase2ConfirmYes),
		"confirm-no":      bash(testPhase2ConfirmNo),
		"literal-never":   testPhase2LiteralNever,
		"literal-confirm": testPhase2LiteralConfirm,
		"literal-case":    testPhase2LiteralCase,

		"result": bash(testPhase2Result),
		"safe": bash(func(t *testing.T, a agent) {
			assertFields(t, a.run(t, "echo hello"), fields{"stdout": "hello\n", "exit_code": 0})
		}),
		"shell": bash(testPhase2Shell),
		"streams": bash(func(t *testing.T, a agent) {
			assertFields(t, a.run(t, "echo out; echo err >&2"), fields{"stdout": "out\n", "stderr": "err\n"})
		}),
		"exit-code": bash(testPhase2ExitCode),
		"signal":    bash(func(t *testing.T, a agent) { assertFields(t, a.run(t, "kill -9 $$"), fields{"exit_code": -9}) }),
		"utf8": bash(func(t *testing.T, a agent) {
			assertFields(t, a.run(t, `printf 'a\377b'`), fields{"stdout": "a\uFFFDb"})
		}),
		"directory":         bash(testPhase2Directory),
		"directory-missing": bash(testPhase2DirectoryMissing),
		"sandbox":           bash(testPhase2Sandbox),

		"time-default":   phase2Time(0, 120_000),
		"time-given":     phase2Time(50_000, 50_000),
		"time-max":       phase2Time(600_001, 600_000),
		"time-unlimited": bash(testPhase2TimeUnlimited),
		"time-error":     bash(testPhase2TimeError),
		"time-kill":      bash(testPhase2TimeKill),

		"output-whole":      bash(testPhase2Whole),
		"output-cut":        bash(testPhase2Cut),
		"output-50000":      bash(testPhase2Fifty),
		"output-characters": bash(testPhase2Characters),
		"output-stderr":     bash(testPhase2Stderr),

		"background":        bash(testPhase2Background),
		"background-output": bash(testPhase2BackgroundOutput),
		"background-list":   bash(testPhase2BackgroundList),
		"background-policy": bash(testPhase2BackgroundPolicy),
		"kill-term":         bash(testPhase2KillTerm),
		"kill-grace":        bash(testPhase2KillGrace),
		"kill-tree":         bash(testPhase2KillTree),
		"kill-result":       bash(testPhase2KillResult),
		"kill-ended":        bash(testPhase2KillEnded),
		"kill-twice":        bash(testPhase2KillTwice),
		"kill-unknown":      bash(testPhase2KillUnknown),
		"kill-foreign":      testPhase2KillForeign,

		"trust-bash":  phase2TrustOf("system.bash", 3, fields{"command": "echo hello"}),
		"trust-kill":  phase2TrustOf("system.kill", 2, fields{"shell_id": "nonexistent"}),
		"trust-first": testPhase2TrustFirst,
		"trust-raise": testPhase2TrustRaise,
		"trust-once":  testPhase2TrustOnce,
		"trust-not":   testPhase2TrustNot,
		"trust-never": testPhase2TrustNever,
		"trace":       testPhase2Trace,
	}
	maps.Copy(tests, w.tests())
	runContract(t, "phase2.txt",
		profiles(t, map[string]string{"phase2-seen": phase2Seen, "phase2-hasty": phase2Hasty})+w.Config, tests)
}

// toolNamed returns a tool of a profile, as callers see it.
func toolNamed(t *testing.T, s *harness.Server, profile, name string) v1.Tool {
	t.Helper()
	list, err := s.Client.Tools.List(callContext(t), profile)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list {
		if tool.Name == name {
			return tool
		}
	}
	t.Fatalf("tools of profile %s = %+v, want %s in them", profile, list, name)
	return v1.Tool{}
}

// inputs returns the properties of a tool's input, and which of them are required.
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

func testPhase2Tools(t *testing.T, s *harness.Server, _ line) {
	list, err := s.Client.Tools.List(callContext(t), "phase2")
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(list))
	for _, tool := range list {
		names = append(names, tool.Name)
		if !tool.Enabled {
			t.Errorf("tool %s is disabled, want it enabled", tool.Name)
		}
	}
	for _, want := range []string{
		"system.bash", "system.kill", "system.output", "system.shells", "web.fetch", "web.search",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("tools = %v, want %s in them", names, want)
		}
	}
}

// phase2Trust returns a test that a tool needs this trust.
func phase2Trust(name string, want int) contractTest {
	return func(t *testing.T, s *harness.Server, _ line) {
		if got := toolNamed(t, s, "phase2", name).Trust; got != want {
			t.Errorf("trust of %s is %d, want %d", name, got, want)
		}
	}
}

// phase2Effects returns a test that a tool has these effects.
func phase2Effects(name string, want ...string) contractTest {
	return func(t *testing.T, s *harness.Server, _ line) {
		if got := toolNamed(t, s, "phase2", name).Effects; !slices.Equal(got, want) {
			t.Errorf("effects of %s are %v, want %v", name, got, want)
		}
	}
}

func testPhase2Cacheable(t *testing.T, s *harness.Server, _ line) {
	for _, name := range []string{"system.bash", "system.kill"} {
		if toolNamed(t, s, "phase2", name).Cacheable {
			t.Errorf("%s is cacheable, want it not", name)
		}
	}
	a := operator(s, "phase2", "system.bash")
	assertFields(t, a.run(t, "echo x >> twice; cat twice"), fields{"stdout": "x\n"})
	assertFields(t, a.run(t, "echo x >> twice; cat twice"), fields{"stdout": "x\nx\n"})
}

func testPhase2Title(t *testing.T, s *harness.Server, _ line) {
	if got := toolNamed(t, s, "phase2", "system.bash").Description; !strings.Contains(got, "shell command") ||
		!strings.Contains(got, "safety") {
		t.Errorf("description %q, want it to mention the shell and safety", got)
	}
}

// phase2Input returns a test that a tool takes these properties, of which only the first is
// required.
func phase2Input(name string, want ...string) contractTest {
	return func(t *testing.T, s *harness.Server, _ line) {
		known, required := inputs(t, toolNamed(t, s, "phase2", name))
		for _, w := range want {
			if !slices.Contains(known, w) {
				t.Errorf("properties = %v, want %s in them", known, w)
			}
		}
		if !slices.Equal(required, want[:1]) {
			t.Errorf("required properties %v, want %v", required, want[:1])
		}
		for body, says := range map[string]string{
			`{"input": {}}`:                                      "missing",
			`{"input": {"` + want[0] + `": 3}}`:                  "must be a string",
			`{"input": {"` + want[0] + `": "a", "nonsense": 1}}`: "nonsense",
		} {
			got := s.Ask(t, "POST", "/v1/tools/"+name+"/call", strings.Replace(body, "{", `{"profile": "phase2", `, 1))
			if p, ok := v1.Decode(got.Body); !ok || got.Status != 400 || !strings.Contains(p.Detail, says) {
				t.Errorf("input %s: status %d, %s; want 400 that says %q", body, got.Status, got.Body, says)
			}
		}
	}
}

// phase2Count returns a test that want lines of a kind exist, each with a set of commands.
func phase2Count(kind string, want int) contractTest {
	return func(t *testing.T, _ *harness.Server, _ line) {
		n := 0
		for _, l := range readContract(t, "phase2.txt") {
			if strings.HasPrefix(l.id, kind+"/") {
				n++
			}
		}
		sets := len(map[string]map[string]commandSet{"never": phase2Nevers, "confirm": phase2Confirms}[kind])
		if n != want || sets != want {
			t.Errorf("%d lines and %d sets of commands, want %d each", n, sets, want)
		}
	}
}

func testPhase2Never(t *testing.T, s *harness.Server, l line) {
	phase2Nevers[lastOf(l)].assertDecided(t, operator(s, "phase2", "system.bash"), assertNeverRuns)
}

// assertNeverRuns checks that a command was refused for safety, and did not run.
func assertNeverRuns(t *testing.T, command string, r v1.ToolResult) {
	t.Helper()
	forbidden := r.Ending == "policy_denied" && r.Error != nil && r.Error.Type == safetyViolation &&
		r.Error.Message == forbiddenPattern
	if !forbidden || r.Verdict == nil || !r.Verdict.HardDeny || r.SandboxID != "" {
		t.Errorf("%q: ending %s, error %+v, verdict %+v; want a hard denial without a sandbox",
			command, r.Ending, r.Error, r.Verdict)
	}
}

func testPhase2Confirm(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "phase2", "system.bash")
	set := phase2Confirms[lastOf(l)]
	set.assertDecided(t, a, assertNeverRuns)
	// There is nothing to push, publish or install, but it shows whether the command ran.
	r := a.answered(t, fields{"command": "echo ran; " + set.asked[0]}, "approve")
	out := outputOf(t, r)
	if text, _ := out["stdout"].(string); r.Ending != "exited" || !strings.HasPrefix(text, "ran\n") {
		t.Errorf("approved command: ending %s, output %v; want exited with ran first", r.Ending, out)
	}
}

func testPhase2NeverFirst(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	for _, command := range []string{
		"; sudo ls", " && sudo ls", " | sudo cat", " & sudo ls", "; if false; then sudo ls; fi", "; f() { sudo ls; }; f",
		"\nsudo ls",
	} {
		assertNeverRuns(t, command, a.run(t, "touch "+mark+command))
	}
	assertFields(t, a.run(t, "ls "+mark), fields{"stdout": "", "exit_code": 2})
}

func testPhase2NeverType(t *testing.T, a agent) {
	r := a.run(t, "ls; sudo ls")
	assertEnding(t, r, "policy_denied", safetyViolation, forbiddenPattern)
	v := r.Verdict
	if v == nil || v.Verdict != "deny" || !v.HardDeny || v.Rule != "never:sudo" || v.Program != "sudo" {
		t.Errorf("verdict %+v, want a hard denial of sudo", v)
	} else if v.At == nil || v.At.Offset != 4 || v.At.Line != 1 || v.At.Column != 5 {
		t.Errorf("place of the denied program %+v, want offset 4, line 1, column 5", v.At)
	}
	if r.Text != forbiddenPattern {
		t.Errorf("text for models is %q, want %q", r.Text, forbiddenPattern)
	}
}

func testPhase2NeverUnasked(t *testing.T, a agent) {
	for _, command := range []string{"rm -r x; sudo ls", "sudo ls; rm -r x", "git push && git push --force"} {
		assertNeverRuns(t, command, a.run(t, command)) // run fails if approval is requested
	}
}

func testPhase2NeverModified(t *testing.T, a agent) {
	_, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, fields{"command": "rm -r nothing-here"}),
		client.CallOptions{Asked: func(q v1.Approval) {
			_, err := a.s.Client.Approvals.Answer(callContext(t), q.ID,
				v1.ApprovalAnswer{Action: "modify", Input: json.RawMessage(`{"command":"sudo ls"}`)})
			if err == nil || !strings.Contains(err.Error(), forbiddenPattern) {
				t.Errorf("modification to a forbidden command: %v, want the refusal's message", err)
			}
			if _, err := a.s.Client.Approvals.Answer(callContext(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
				t.Error(err)
			}
		}})
	if err != nil {
		t.Error(err)
	}
}

func testPhase2NeverText(t *testing.T, a agent) {
	for _, text := range []string{
		"rm -rf /", "git push --force", "sudo ls", "> /etc/passwd", "chmod 777 x", "curl x | sh", "eval x",
	} {
		assertFields(t, a.run(t, `echo "`+text+`"`), fields{"stdout": text + "\n", "exit_code": 0})
	}
	assertFields(t, a.run(t, `echo '$(id)'`), fields{"stdout": "$(id)\n"})
}

func testPhase2ConfirmWaits(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	command := "touch " + mark + "; rm -r nothing-here"
	r, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, fields{"command": command}),
		client.CallOptions{Asked: func(q v1.Approval) {
			if q.Tool != a.tool || q.Rule != "confirm:rm-r" || !strings.Contains(string(q.Input), command) {
				t.Errorf("approval request %+v, want the command with rule confirm:rm-r", q)
			}
			assertFields(t, a.run(t, "ls "+mark), fields{"stdout": "", "exit_code": 2})
			if _, err := a.s.Client.Approvals.Answer(callContext(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
				t.Error(err)
			}
		}})
	if err != nil || r.Ending != "exited" {
		t.Errorf("approved call = %+v, %v; want exited", r, err)
	}
	assertFields(t, a.run(t, "ls "+mark), fields{"stdout": mark + "\n"})
}

func testPhase2ConfirmYes(t *testing.T, a agent) {
	r := a.answered(t, fields{"command": "mkdir -p junk/a && rm -r junk && echo removed"}, "approve")
	assertFields(t, r, fields{"stdout": "removed\n", "exit_code": 0})
	got, err := a.s.Client.Approvals.Get(callContext(t), r.Approval)
	if err != nil || got.State != "approved" || got.Call != r.ID {
		t.Errorf("Approval = %+v, %v; want it approved with the call's id", got, err)
	}
}

func testPhase2ConfirmNo(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	r := a.answered(t, fields{"command": "touch " + mark + "; rm -r " + mark + "-x"}, "deny")
	if r.Ending != "approval_denied" || r.Error == nil || r.Error.Type != "ConfirmationDenied" {
		t.Errorf("denied call: %+v, want ConfirmationDenied", r)
	}
	assertFields(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func testPhase2LiteralNever(t *testing.T, s *harness.Server, l line) {
	phase2LiteralNevers[lastOf(l)].assertDecided(t, operator(s, "phase2-literal", "system.bash"), assertNeverRuns)
}

func testPhase2LiteralConfirm(t *testing.T, s *harness.Server, l line) {
	phase2LiteralConfirms[lastOf(l)].assertDecided(t, operator(s, "phase2-literal", "system.bash"), assertNeverRuns)
}

func testPhase2LiteralCase(t *testing.T, s *harness.Server, _ line) {
	commandSet{
		denied: []string{"SUDO ls", "Eval x", "CHMOD 777 x", "GIT PUSH --FORCE"},
		asked:  []string{"rm -r x"},
		runs:   []string{"GIT PUSH", "PIP INSTALL x", "RM -R x"},
	}.assertDecided(t, operator(s, "phase2-literal", "system.bash"), assertNeverRuns)
}
