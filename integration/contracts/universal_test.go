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

// universalJob is the job of the tests that need none of their own.
const universalJob = "6f1f4c5e-0d2a-4b6e-9a53-2f6f7a3d9c10"

// universalFiles are agents' own profiles, by name.
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

func TestUniversal(t *testing.T) {
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
	one := func(test func(t *testing.T, a agent)) phase2Test {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, universal(s)) }
	}
	with := func(test func(t *testing.T, a agent, what string)) phase2Test {
		return func(t *testing.T, s *harness.Server, l line) { test(t, universal(s), lastOf(l)) }
	}
	hold(t, "universal.txt", profiles(t, files), map[string]phase2Test{
		"tool":             universalTool,
		"tool-everybody":   universalEverybody,
		"tool-description": universalDescription,
		"tool-input":       universalInput,
		"tool-result":      one(universalResult),
		"tool-text":        one(universalText),
		"tool-failing":     one(universalFailing),
		"tool-empty":       one(universalEmpty),
		"uses":             with(universalUses),

		"blocked":         with(universalBlocked),
		"blocked-count":   universalCount,
		"blocked-mkfs":    one(universalMkfs),
		"blocked-error":   one(universalError),
		"blocked-nothing": one(universalNothing),
		"blocked-unknown": one(universalUnknown),
		"literal":         with(universalLiteral),

		"job":         universalInJob,
		"job-apart":   one(universalApart),
		"job-keeps":   one(universalKeeps),
		"job-none":    one(universalNoJob),
		"job-uuid":    one(universalUUID),
		"job-caller":  universalCaller,
		"job-outside": one(universalOutside),
		"dir":         with(universalDir),

		"time-default":       one(universalTime("seen", nil, 120_000)),
		"time-given":         one(universalGiven),
		"time-cap":           one(universalTime("seen", 601, 600_000)),
		"time-agent-default": one(universalTime("writer-seen", nil, 300_000)),
		"time-agent-cap":     one(universalAgentCap),
		"time-out":           one(universalTimeout),
		"time-kill":          one(universalTimeKill),
		"time-wrong":         one(universalTimeWrong),

		"output-whole":      one(universalWhole),
		"output-tail":       one(universalTail),
		"output-streams":    one(universalStreams),
		"output-characters": one(universalCharacters),
		"output-rest":       one(universalRest),

		"allow":         with(universalAllow),
		"allow-only":    one(universalOnly),
		"allow-message": one(universalMessage),
		"allow-within":  one(universalWithin),
		"allow-none":    one(universalNone),
		"allow-global":  one(universalGlobal),
		"deny-merged":   one(universalMerged),
		"deny-empty":    one(universalDenyEmpty),

		"container": with(universalContainer),
		"limit":     with(universalLimit),
		"trace":     universalTrace,
	})
}

// universal is an operator's agent in the job of the tests.
func universal(s *harness.Server) agent {
	a := operator(s, "universal", "run_command")
	a.job = universalJob
	return a
}

// newJob is the same agent in a job of its own.
func (a agent) newJob(t *testing.T) agent {
	t.Helper()
	a.job = uuid.NewString()
	t.Cleanup(func() { a.endJob(t) })
	return a
}

// endJob ends the job's sandbox, which may be gone.
func (a agent) endJob(t *testing.T) {
	t.Helper()
	_ = a.client.EndSession(soon(t), "job_"+a.job)
}

// notAllowed checks a refusal and which program it names.
func notAllowed(t *testing.T, command, program string, r v1.ToolResult) {
	t.Helper()
	if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != "CommandNotAllowed" || r.Verdict == nil || r.Verdict.Program != program || r.SandboxID != "" {
		t.Errorf("%q is not refused for %s: %s %+v %+v", command, program, r.Ending, r.Error, r.Verdict)
	}
}

func universalTool(t *testing.T, s *harness.Server, _ line) {
	list, err := s.Client.Tools(soon(t), "universal")
	if err != nil || len(list) != 1 || list[0].Name != "run_command" || !list[0].Enabled {
		t.Errorf("%+v %v", list, err)
	}
}

func universalEverybody(t *testing.T, s *harness.Server, _ line) {
	for _, name := range []string{"writer-agent", "researcher-agent", "anything"} {
		a := holder(t, s, v1.TokenRequest{Caller: name, Profile: "universal"}, "run_command")
		gives(t, a.run(t, "echo hello"), fields{"stdout": "hello\n"})
	}
}

func universalDescription(t *testing.T, s *harness.Server, _ line) {
	got := toolNamed(t, s, "universal", "run_command").Description
	for _, word := range []string{"file processing", "compilation", "data transformation", "any other task"} {
		if !strings.Contains(got, word) {
			t.Errorf("nothing of %s in %q", word, got)
		}
	}
}

func universalInput(t *testing.T, s *harness.Server, _ line) {
	known, required := inputs(t, toolNamed(t, s, "universal", "run_command"))
	slices.Sort(known)
	if !slices.Equal(known, []string{"command", "timeout", "working_dir"}) || !slices.Equal(required, []string{"command"}) {
		t.Errorf("%v, of which %v", known, required)
	}
	for body, says := range map[string]string{`{}`: "command is missing", `{"command":3}`: "command is a number and must be a string", `{"command":"ls","cwd":"a"}`: "cwd is unknown"} {
		got := s.Ask(t, "POST", "/v1/tools/run_command/call", `{"profile":"universal","input":`+body+`}`)
		if p, ok := v1.Decode(got.Body); !ok || got.Status != 400 || !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %d %s", body, got.Status, got.Body)
		}
	}
}

func universalResult(t *testing.T, a agent) {
	r := a.run(t, "echo out; echo err >&2; exit 3")
	gives(t, r, fields{"command": "echo out; echo err >&2; exit 3", "exit_code": 3, "stdout": "out\n", "stderr": "err\n", "truncated": false, "timed_out": false})
	out := outputOf(t, r)
	if ms, ok := out["duration_ms"].(float64); !ok || ms < 0 || len(out) != 7 {
		t.Errorf("%v", out)
	}
}

func universalText(t *testing.T, a agent) {
	for command, want := range map[string]string{
		"true":                           "Exit code: 0",
		"echo out":                       "Exit code: 0\n\nSTDOUT:\nout\n",
		"echo err >&2; exit 2":           "Exit code: 2\n\nSTDERR:\nerr\n",
		"echo out; echo err >&2; exit 3": "Exit code: 3\n\nSTDOUT:\nout\n\n\nSTDERR:\nerr\n",
		"sudo ls":                        "Command not allowed: 'sudo' is blocked",
	} {
		if got := a.run(t, command).Text; got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

func universalFailing(t *testing.T, a agent) {
	r := a.run(t, "echo before; no-such-program-here")
	ends(t, r, "exited", "", "")
	gives(t, r, fields{"exit_code": 127, "stdout": "before\n"})
}

func universalEmpty(t *testing.T, a agent) {
	for _, command := range []string{"", "  "} {
		if _, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": command}), client.CallOptions{}); err == nil || !strings.Contains(err.Error(), "empty") {
			t.Errorf("%q: %v", command, err)
		}
	}
}

// universalUses: whether a program is there is the image's matter.
func universalUses(t *testing.T, a agent, what string) {
	commands := map[string]string{"ls-wc": "ls | wc -l", "du": "du -sh .", "wc": "wc -w /etc/passwd", "file": "file /etc/passwd", "jq": "echo 3 | jq .", "python3": "python3 -c 'print(3)'"}
	command, ours := commands[what]
	if !ours {
		command = what + " --version"
	}
	r := a.run(t, command)
	ends(t, r, "exited", "", "")
	if ours {
		gives(t, r, fields{"exit_code": 0})
	}
}

func universalBlocked(t *testing.T, a agent, name string) {
	for _, spelling := range []string{
		"NAME", "NAME -x y", "/usr/bin/NAME", "/sbin/NAME x", "./NAME", "../x/NAME", `"NAME" x`, `'NAME'`, `\NAME`, "FIRST''REST x", "A=b NAME", "env NAME", "env -i A=b NAME x",
		"echo x | xargs NAME", "xargs -n 1 -I{} NAME {}", "sh -c 'NAME x'", `bash -c "sh -c 'NAME'"`, "true | NAME", "NAME | cat", "true && NAME", "false || NAME", "ls; NAME", "NAME &",
		"(NAME)", "{ NAME; }", "if true; then NAME; fi", "for i in 1; do NAME $i; done", "! NAME", "f() { NAME; }; f", "P=NAME; $P x", `find . -exec NAME {} \;`, "find . -execdir NAME {} +",
		"nohup NAME", "timeout 5 NAME", "nice -n 5 NAME", "time NAME", "exec NAME", "command NAME", "setsid NAME", "echo $(NAME)", "echo `NAME`", "cat <(NAME)", "cat <<E\n$(NAME)\nE", "eval NAME",
		"echo NAME | sh", "sh <<E\nNAME\nE",
	} {
		command := strings.NewReplacer("NAME", name, "FIRST", name[:1], "REST", name[1:]).Replace(spelling)
		notAllowed(t, command, name, a.run(t, command))
	}
	near := strings.ReplaceAll("echo NAME; echo 'NAME; NAME'; ls NAME; grep NAME /etc/passwd; not-NAME; NAME-not; true # NAME", "NAME", name)
	gives(t, a.run(t, near), fields{"exit_code": 0})
}

func universalCount(t *testing.T, _ *harness.Server, _ line) {
	n := 0
	for _, l := range read(t, "universal.txt") {
		if strings.HasPrefix(l.id, "blocked/") {
			n++
		}
	}
	if n != 33 {
		t.Errorf("%d programs are listed", n)
	}
}

func universalMkfs(t *testing.T, a agent) {
	for _, name := range []string{"mkfs.ext4", "mkfs.xfs", "mkfs.vfat"} {
		notAllowed(t, name, name, a.run(t, "/sbin/"+name+" /dev/sda"))
	}
}

func universalError(t *testing.T, a agent) {
	for _, name := range []string{"sudo", "apt-get", "kill"} {
		ends(t, a.run(t, "env "+name+" x"), "policy_denied", "CommandNotAllowed", "Command not allowed: '"+name+"' is blocked")
	}
}

func universalNothing(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	a.run(t, "touch "+mark+"; sudo ls")
	gives(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func universalUnknown(t *testing.T, a agent) {
	for _, command := range []string{"$X ls", "$(cat name) x", "cat script | sh", "eval \"$X\""} {
		if r := a.run(t, command); r.Ending != "policy_denied" || r.Error.Type != "CommandNotAllowed" || r.Verdict.Class != "unknown" {
			t.Errorf("%s: %+v %+v", command, r.Error, r.Verdict)
		}
	}
}

func universalLiteral(t *testing.T, a agent, what string) {
	a = a.as("universal-literal")
	if what == "blocked" {
		for _, command := range []string{"sudo ls", "  kill 1", "mkfs x", "ip"} {
			if r := a.run(t, command); r.Ending != "policy_denied" || r.Error.Type != "CommandNotAllowed" {
				t.Errorf("%s: %+v", command, r)
			}
		}
		return
	}
	for _, command := range []string{"env sudo ls", "echo sudo", "sudoers", "true; kill 1"} {
		ends(t, a.run(t, command), "exited", "", "")
	}
}
