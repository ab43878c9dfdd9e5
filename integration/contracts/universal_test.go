//go:build integration

package contracts

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// universalJob is the job of tests that do not need a separate one.
const universalJob = "6f1f4c5e-0d2a-4b6e-9a53-2f6f7a3d9c10"

// universalFiles are profiles of agents, by name.
var universalFiles = map[string]string{
	"seen": `
extends: universal
tools: [{name: run_command, output: {type: object}, result: '{"timeout_ms": end.timeout_ms}'}]
`,
	"writer-seen": `
extends: writer
tools: [{name: run_command, output: {type: object}, result: '{"timeout_ms": end.timeout_ms}'}]
`,
	"patient": `
extends: seen
tools: [{name: run_command, caps: {max_timeout_ms: 1800000}}]
`,
	"hasty": `
extends: universal
tools: [{name: run_command, caps: {timeout_ms: 100, max_timeout_ms: 200}}]
`,
	"greedy":     "extends: universal\npolicy: {allow: [ls, sudo, chmod]}\n",
	"researcher": "extends: universal\npolicy: {deny: [curl]}\n",
}

// TestUniversal tests every line of universal.txt. The lines say what the tests below check.
func TestUniversal(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	files := map[string]string{}
	for name, text := range universalFiles {
		files[name] = "name: " + name + "\n" + text
	}
	writer, err := os.ReadFile("../../internal/profile/testdata/writer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files["writer"] = string(writer)
	one := func(test func(t *testing.T, a agent)) contractTest {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, universal(s)) }
	}
	with := func(test func(t *testing.T, a agent, what string)) contractTest {
		return func(t *testing.T, s *harness.Server, l line) { test(t, universal(s), lastOf(l)) }
	}
	runContract(t, "universal.txt", profiles(t, files), map[string]contractTest{
		"tool":             testUniversalTool,
		"tool-everybody":   testUniversalEverybody,
		"tool-description": testUniversalDescription,
		"tool-input":       testUniversalInput,
		"tool-result":      one(testUniversalResult),
		"tool-text":        one(testUniversalText),
		"tool-failing":     one(testUniversalFailing),
		"tool-empty":       one(testUniversalEmpty),
		"uses":             with(testUniversalUses),

		"blocked":         with(testUniversalBlocked),
		"blocked-count":   testUniversalCount,
		"blocked-mkfs":    one(testUniversalMkfs),
		"blocked-error":   one(testUniversalError),
		"blocked-nothing": one(testUniversalNothing),
		"blocked-unknown": one(testUniversalUnknown),
		"literal":         with(testUniversalLiteral),

		"job":         testUniversalInJob,
		"job-apart":   one(testUniversalApart),
		"job-keeps":   one(testUniversalKeeps),
		"job-none":    one(testUniversalNoJob),
		"job-uuid":    one(testUniversalUUID),
		"job-caller":  testUniversalCaller,
		"job-outside": one(testUniversalOutside),
		"dir":         with(testUniversalDir),

		"time-default":       one(universalTime("seen", nil, 120_000)),
		"time-given":         one(testUniversalGiven),
		"time-cap":           one(universalTime("seen", 601, 600_000)),
		"time-agent-default": one(universalTime("writer-seen", nil, 300_000)),
		"time-agent-cap":     one(testUniversalAgentCap),
		"time-out":           one(testUniversalTimeout),
		"time-kill":          one(testUniversalTimeKill),
		"time-wrong":         one(testUniversalTimeWrong),

		"output-whole":      one(testUniversalWhole),
		"output-tail":       one(testUniversalTail),
		"output-streams":    one(testUniversalStreams),
		"output-characters": one(testUniversalCharacters),
		"output-rest":       one(testUniversalRest),

		"allow":         with(testUniversalAllow),
		"allow-only":    one(testUniversalOnly),
		"allow-message": one(testUniversalMessage),
		"allow-within":  one(testUniversalWithin),
		"allow-none":    one(testUniversalNone),
		"allow-global":  one(testUniversalGlobal),
		"deny-merged":   one(testUniversalMerged),
		"deny-empty":    one(testUniversalDenyEmpty),

		"container": with(testUniversalContainer),
		"limit":     with(testUniversalLimit),
		"trace":     testUniversalTrace,
	})
}

// universal returns an operator's agent in the shared job.
func universal(s *harness.Server) agent {
	a := operator(s, "universal", "run_command")
	a.job = universalJob
	return a
}

// newJob returns the agent in a new job.
func (a agent) newJob(t *testing.T) agent {
	t.Helper()
	a.job = uuid.NewString()
	t.Cleanup(func() { a.endJob(t) })
	return a
}

// endJob ends the job's sandbox, which may be gone.
func (a agent) endJob(t *testing.T) {
	t.Helper()
	_ = a.client.Tools.EndSession(callContext(t), "job_"+a.job)
}

// assertNotAllowed checks that a command was refused because of a program.
func assertNotAllowed(t *testing.T, command, program string, r v1.ToolResult) {
	t.Helper()
	refused := r.Ending == "policy_denied" && r.Error != nil && r.Error.Type == "CommandNotAllowed"
	if !refused || r.Verdict == nil || r.Verdict.Program != program || r.SandboxID != "" {
		t.Errorf("%q: ending %[3]s, error %+[4]v, verdict %+[5]v; want a refusal because of %[2]s",
			command, program, r.Ending, r.Error, r.Verdict)
	}
}

func testUniversalTool(t *testing.T, s *harness.Server, _ line) {
	list, err := s.Client.Tools.List(callContext(t), "universal")
	if err != nil || len(list) != 1 || list[0].Name != "run_command" || !list[0].Enabled {
		t.Errorf("Tools = %+v, %v; want run_command only", list, err)
	}
}

func testUniversalEverybody(t *testing.T, s *harness.Server, _ line) {
	for _, name := range []string{"writer-agent", "researcher-agent", "anything"} {
		a := newTokenAgent(t, s, v1.TokenRequest{Caller: name, Profile: "universal"}, "run_command")
		assertFields(t, a.run(t, "echo hello"), fields{"stdout": "hello\n"})
	}
}

func testUniversalDescription(t *testing.T, s *harness.Server, _ line) {
	got := toolNamed(t, s, "universal", "run_command").Description
	for _, word := range []string{"file processing", "compilation", "data transformation", "any other task"} {
		if !strings.Contains(got, word) {
			t.Errorf("description = %q, want it to mention %s", got, word)
		}
	}
}

func testUniversalInput(t *testing.T, s *harness.Server, _ line) {
	known, required := inputs(t, toolNamed(t, s, "universal", "run_command"))
	slices.Sort(known)
	if !slices.Equal(known, []string{"command", "timeout", "working_dir"}) ||
		!slices.Equal(required, []string{"command"}) {
		t.Errorf("properties %v, required %v; want command, timeout and working_dir, with command required", known, required)
	}
	for body, says := range map[string]string{
		`{}`:                         "command is missing",
		`{"command":3}`:              "command is a number and must be a string",
		`{"command":"ls","cwd":"a"}`: "cwd is unknown",
	} {
		got := s.Ask(t, "POST", "/v1/tools/run_command/call", `{"profile":"universal","input":`+body+`}`)
		if p, ok := v1.Decode(got.Body); !ok || got.Status != 400 || !strings.Contains(p.Detail, says) {
			t.Errorf("input %s: status %d, %s; want 400 that says %q", body, got.Status, got.Body, says)
		}
	}
}

func testUniversalResult(t *testing.T, a agent) {
	r := a.run(t, "echo out; echo err >&2; exit 3")
	assertFields(t, r, fields{
		"command":   "echo out; echo err >&2; exit 3",
		"exit_code": 3,
		"stdout":    "out\n",
		"stderr":    "err\n",
		"truncated": false,
		"timed_out": false,
	})
	out := outputOf(t, r)
	if ms, ok := out["duration_ms"].(float64); !ok || ms < 0 || len(out) != 7 {
		t.Errorf("output %v, want 7 fields with a duration", out)
	}
}

func testUniversalText(t *testing.T, a agent) {
	for command, want := range map[string]string{
		"true":                           "Exit code: 0",
		"echo out":                       "Exit code: 0\n\nSTDOUT:\nout\n",
		"echo err >&2; exit 2":           "Exit code: 2\n\nSTDERR:\nerr\n",
		"echo out; echo err >&2; exit 3": "Exit code: 3\n\nSTDOUT:\nout\n\n\nSTDERR:\nerr\n",
		"sudo ls":                        "Command not allowed: 'sudo' is blocked",
	} {
		if got := a.run(t, command).Text; got != want {
			t.Errorf("%s: text %q, want %q", command, got, want)
		}
	}
}

func testUniversalFailing(t *testing.T, a agent) {
	r := a.run(t, "echo before; no-such-program-here")
	assertEnding(t, r, "exited", "", "")
	assertFields(t, r, fields{"exit_code": 127, "stdout": "before\n"})
}

func testUniversalEmpty(t *testing.T, a agent) {
	for _, command := range []string{"", "  "} {
		if _, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, fields{"command": command}),
			client.CallOptions{}); err == nil || !strings.Contains(err.Error(), "empty") {
			t.Errorf("command %q: %v, want an error that says empty", command, err)
		}
	}
}

// testUniversalUses runs a program. Only those of the sandbox image must exist.
func testUniversalUses(t *testing.T, a agent, what string) {
	commands := map[string]string{
		"ls-wc":   "ls | wc -l",
		"du":      "du -sh .",
		"wc":      "wc -w /etc/passwd",
		"file":    "file /etc/passwd",
		"jq":      "echo 3 | jq .",
		"python3": "python3 -c 'print(3)'",
	}
	command, ours := commands[what]
	if !ours {
		command = what + " --version"
	}
	r := a.run(t, command)
	assertEnding(t, r, "exited", "", "")
	if ours {
		assertFields(t, r, fields{"exit_code": 0})
	}
}

func testUniversalBlocked(t *testing.T, a agent, name string) {
	for _, spelling := range []string{
		"NAME", "NAME -x y", "/usr/bin/NAME", "/sbin/NAME x", "./NAME", "../x/NAME", `"NAME" x`, `'NAME'`, `\NAME`,
		"FIRST''REST x", "A=b NAME", "env NAME", "env -i A=b NAME x",
		"echo x | xargs NAME", "xargs -n 1 -I{} NAME {}", "sh -c 'NAME x'", `bash -c "sh -c 'NAME'"`, "true | NAME",
		"NAME | cat", "true && NAME", "false || NAME", "ls; NAME", "NAME &",
		"(NAME)", "{ NAME; }", "if true; then NAME; fi", "for i in 1; do NAME $i; done", "! NAME", "f() { NAME; }; f",
		"P=NAME; $P x", `find . -exec NAME {} \;`, "find . -execdir NAME {} +",
		"nohup NAME", "timeout 5 NAME", "nice -n 5 NAME", "time NAME", "exec NAME", "command NAME", "setsid NAME",
		"echo $(NAME)", "echo `NAME`", "cat <(NAME)", "cat <<E\n$(NAME)\nE", "eval NAME",
		"echo NAME | sh", "sh <<E\nNAME\nE",
	} {
		command := strings.NewReplacer("NAME", name, "FIRST", name[:1], "REST", name[1:]).Replace(spelling)
		assertNotAllowed(t, command, name, a.run(t, command))
	}
	const similar = "echo NAME; echo 'NAME; NAME'; ls NAME; grep NAME /etc/passwd; not-NAME; NAME-not; true # NAME"
	near := strings.ReplaceAll(similar, "NAME", name)
	assertFields(t, a.run(t, near), fields{"exit_code": 0})
}

func testUniversalCount(t *testing.T, _ *harness.Server, _ line) {
	n := 0
	for _, l := range readContract(t, "universal.txt") {
		if strings.HasPrefix(l.id, "blocked/") {
			n++
		}
	}
	if n != 33 {
		t.Errorf("%d blocked programs, want 33", n)
	}
}

func testUniversalMkfs(t *testing.T, a agent) {
	for _, name := range []string{"mkfs.ext4", "mkfs.xfs", "mkfs.vfat"} {
		assertNotAllowed(t, name, name, a.run(t, "/sbin/"+name+" /dev/sda"))
	}
}

func testUniversalError(t *testing.T, a agent) {
	for _, name := range []string{"sudo", "apt-get", "kill"} {
		assertEnding(t, a.run(t, "env "+name+" x"), "policy_denied", "CommandNotAllowed",
			"Command not allowed: '"+name+"' is blocked")
	}
}

func testUniversalNothing(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	a.run(t, "touch "+mark+"; sudo ls")
	assertFields(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func testUniversalUnknown(t *testing.T, a agent) {
	for _, command := range []string{"$X ls", "$(cat name) x", "cat script | sh", "eval \"$X\""} {
		if r := a.run(t, command); r.Ending != "policy_denied" || r.Error.Type != "CommandNotAllowed" ||
			r.Verdict.Class != "unknown" {
			t.Errorf("%s: error %+v, verdict %+v; want CommandNotAllowed of class unknown", command, r.Error, r.Verdict)
		}
	}
}

func testUniversalLiteral(t *testing.T, a agent, what string) {
	a = a.as("universal-literal")
	if what == "blocked" {
		for _, command := range []string{"sudo ls", "  kill 1", "mkfs x", "ip"} {
			if r := a.run(t, command); r.Ending != "policy_denied" || r.Error.Type != "CommandNotAllowed" {
				t.Errorf("%s: %+v, want CommandNotAllowed", command, r)
			}
		}
		return
	}
	for _, command := range []string{"env sudo ls", "echo sudo", "sudoers", "true; kill 1"} {
		assertEnding(t, a.run(t, command), "exited", "", "")
	}
}
