//go:build integration

package contracts

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"

	"orchestrator/client"
	v1 "orchestrator/client/v1"
	"orchestrator/integration/harness"
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
	for body, says := range map[string]string{`{}`: "command is missing", `{"command":3}`: "command is a number and must be a string", `{"command":"ls","cwd":"a"}`: "cwd is not known here"} {
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

func universalInJob(t *testing.T, s *harness.Server, _ line) {
	a := universal(s).newJob(t)
	r := a.run(t, "echo hello > file")
	list, err := s.Client.Workspaces(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(w v1.Workspace) bool {
		return w.Name == "job_"+a.job && slices.Contains(w.Sandboxes, r.SandboxID)
	}) {
		t.Errorf("%s is not with the workspace of its job: %+v", r.SandboxID, list)
	}
	if got := traced(t, s, r); got.Workspace != "job_"+a.job {
		t.Errorf("%+v", got)
	}
}

func universalApart(t *testing.T, a agent) {
	one, two := a.newJob(t), a.newJob(t)
	one.run(t, "echo secret > file")
	gives(t, two.run(t, "ls; ls .."), fields{"stdout": outputOf(t, a.newJob(t).run(t, "ls; ls .."))["stdout"].(string)})
	gives(t, two.run(t, "cat file /workspace/../job_"+one.job+"/file"), fields{"exit_code": 1, "stdout": ""})
}

func universalKeeps(t *testing.T, a agent) {
	a = a.newJob(t)
	first := a.run(t, "echo kept > file")
	a.endJob(t)
	second := a.run(t, "cat file")
	gives(t, second, fields{"stdout": "kept\n"})
	if first.SandboxID == second.SandboxID {
		t.Error("it is the same sandbox")
	}
}

func universalNoJob(t *testing.T, a agent) {
	a.job, a.session = "", ""
	gives(t, a.run(t, "pwd; touch left; ls"), fields{"stdout": "/workspace\nleft\n"})
	gives(t, a.run(t, "ls"), fields{"stdout": ""})
}

func universalUUID(t *testing.T, a agent) {
	for _, job := range []string{"x", "../x", "job_" + universalJob, universalJob + "/..", strings.ToUpper(universalJob) + "0"} {
		a.job = job
		if _, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": "ls"}), client.CallOptions{}); err == nil || !strings.Contains(err.Error(), "job") {
			t.Errorf("%q: %v", job, err)
		}
	}
}

func universalCaller(t *testing.T, s *harness.Server, _ line) {
	a := universal(s).newJob(t)
	a.run(t, "echo secret > file")
	b := holder(t, s, v1.TokenRequest{Caller: "other-agent", Profile: "universal"}, "run_command")
	b.job = a.job
	defer b.endJob(t)
	gives(t, b.run(t, "cat file"), fields{"exit_code": 1, "stdout": ""})
}

func universalOutside(t *testing.T, a agent) {
	a = a.newJob(t)
	gives(t, a.run(t, "touch /tmp/left ~/left && ls /tmp/left"), fields{"exit_code": 0})
	a.endJob(t)
	gives(t, a.run(t, "ls /tmp/left ~/left"), fields{"stdout": "", "exit_code": 2})
}

func universalDir(t *testing.T, a agent, what string) {
	a.run(t, "mkdir -p sub/dir; ln -sfn / out; ln -sfn ../../tmp dots; ln -sfn sub/dir in; mkdir -p /tmp/etc")
	if what == "none" {
		gives(t, a.run(t, "pwd"), fields{"stdout": "/workspace\n"})
		return
	}
	c, ok := map[string]struct {
		dir   any
		where string // "": refused
	}{
		"null":            {nil, "/workspace"},
		"relative":        {"sub/dir", "/workspace/sub/dir"},
		"absolute-inside": {"/workspace/sub", "/workspace/sub"},
		"dots-inside":     {"sub/../sub/./dir/..", "/workspace/sub"},
		"dots":            {"..", ""},
		"dots-behind":     {"sub/../../tmp", ""},
		"absolute":        {"/etc", ""},
		"prefix":          {"/workspace-not", ""},
		"link":            {"out", ""},
		"link-behind":     {"out/etc", ""},
		"link-dots":       {"dots", ""},
		"link-inside":     {"in", "/workspace/sub/dir"},
		"missing":         {"nowhere", ""},
	}[what]
	if !ok {
		t.Fatalf("there is no folder for %s", what)
	}
	r := a.call(t, fields{"command": "pwd -P", "working_dir": c.dir})
	switch {
	case c.where != "":
		gives(t, r, fields{"stdout": c.where + "\n", "exit_code": 0})
	case r.Ending != "failed" || r.Error == nil || r.Error.Type != "Failed" || !strings.Contains(r.Text, fmt.Sprint(c.dir)) || strings.Contains(r.Text, a.s.Dir()):
		t.Errorf("%+v", r)
	}
}

// universalTime: with this timeout (nil: none) a command of the profile has so
// many milliseconds.
func universalTime(profile string, given any, has int) func(t *testing.T, a agent) {
	return func(t *testing.T, a agent) {
		in := fields{"command": "ls"}
		if given != nil {
			in["timeout"] = given
		}
		gives(t, a.as(profile).call(t, in), fields{"timeout_ms": has})
	}
}

func universalGiven(t *testing.T, a agent) {
	universalTime("seen", 5, 5_000)(t, a)
	universalTime("seen", 0.25, 250)(t, a)
	universalTime("seen", 600, 600_000)(t, a)
}

func universalAgentCap(t *testing.T, a agent) {
	universalTime("patient", 1200, 1_200_000)(t, a)
	universalTime("patient", 7200, 1_800_000)(t, a)
	universalTime("patient", nil, 120_000)(t, a)
	universalTime("writer-seen", 601, 600_000)(t, a)
	a = a.as("hasty")
	for _, in := range []fields{{"command": "sleep 600"}, {"command": "sleep 600", "timeout": 60}} {
		gives(t, a.call(t, in), fields{"timed_out": true})
	}
}

func universalTimeout(t *testing.T, a agent) {
	r := a.call(t, fields{"command": "echo before; sleep 600", "timeout": 1})
	ends(t, r, "timeout", "Timeout", "Command timed out after 1s")
	gives(t, r, fields{"timed_out": true, "exit_code": -1})
	if !strings.HasPrefix(r.Text, "Command timed out after 1s") {
		t.Errorf("%q", r.Text)
	}
	gives(t, a.run(t, "exit 124"), fields{"timed_out": false, "exit_code": 124})
}

func universalTimeKill(t *testing.T, a agent) {
	timeoutKills(t, func(command string, seconds int) (agent, fields) {
		return a, fields{"command": command, "timeout": seconds}
	})
}

func universalTimeWrong(t *testing.T, a agent) {
	for _, timeout := range []any{0, -1, "10", true} {
		_, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": "ls", "timeout": timeout}), client.CallOptions{})
		if err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("%v: %v", timeout, err)
		}
	}
}

func universalWhole(t *testing.T, a agent) {
	gives(t, a.run(t, "head -c 50000 /dev/zero | tr '\\0' x"), fields{"stdout": strings.Repeat("x", 50_000), "truncated": false})
}

func universalTail(t *testing.T, a agent) {
	r := a.run(t, "printf head; head -c 50000 /dev/zero | tr '\\0' x")
	gives(t, r, fields{"stdout": "... (4 of 50004 characters truncated)\n" + strings.Repeat("x", 50_000), "truncated": true})
	if caps := toolNamed(t, a.s, "universal", "run_command").Caps; caps.Output != 50_000 || caps.OutputUnit != "characters" {
		t.Errorf("%+v", caps)
	}
}

func universalStreams(t *testing.T, a agent) {
	r := a.run(t, "head -c 50000 /dev/zero | tr '\\0' x; (printf head; head -c 50000 /dev/zero | tr '\\0' y) >&2")
	gives(t, r, fields{"stdout": strings.Repeat("x", 50_000), "stderr": "... (4 of 50004 characters truncated)\n" + strings.Repeat("y", 50_000), "truncated": true})
}

func universalCharacters(t *testing.T, a agent) {
	out := outputOf(t, a.run(t, `python3 -c "print('x' + 'é€' * 25000, end='')"`))
	if got := out["stdout"].(string); !strings.HasSuffix(got, strings.Repeat("é€", 25_000)) || strings.Contains(got, "x") || out["truncated"] != true {
		t.Errorf("%d characters, truncated: %v", utf8.RuneCountInString(got), out["truncated"])
	}
}

func universalRest(t *testing.T, a agent) {
	r := a.run(t, "printf head; head -c 50000 /dev/zero | tr '\\0' x")
	if o, err := a.client.CallOutput(soon(t), r.Rest, client.OutputRequest{Limit: 4}); err != nil || o.Data != "head" {
		t.Errorf("the beginning by %q is %+v %v", r.Rest, o, err)
	}
}

const writersPrograms = "biber, cat, find, grep, head, latexmk, ls, pandoc, pdflatex, sort, tail, wc"

func universalAllow(t *testing.T, a agent, name string) {
	a = a.as("writer")
	for _, command := range []string{name + " --version", "/usr/bin/" + name + " --version", "ls | " + name + " --version"} {
		ends(t, a.run(t, command), "exited", "", "")
	}
}

func universalOnly(t *testing.T, a agent) {
	a = a.as("writer")
	for _, name := range []string{"python3", "git", "awk", "sed", "rm", "cp", "tee", "curl", "sh"} {
		notAllowed(t, name, name, a.run(t, name+" --version"))
	}
}

func universalMessage(t *testing.T, a agent) {
	ends(t, a.as("writer").run(t, "git log"), "policy_denied", "CommandNotAllowed", "Command not allowed: 'git'. Allowed: "+writersPrograms)
}

func universalWithin(t *testing.T, a agent) {
	a = a.as("writer")
	for command, program := range map[string]string{
		"ls | tee x": "tee", "ls; git log": "git", "ls && rm x": "rm", "find . -exec rm {} +": "rm", "ls | xargs rm": "rm", "cat <(git log)": "git", "ls $(git log)": "git", "env git log": "git",
	} {
		if r := a.run(t, command); r.Ending != "policy_denied" || r.Error.Type != "CommandNotAllowed" {
			t.Errorf("%s runs %s: %+v", command, program, r)
		}
	}
	gives(t, a.run(t, "find /etc -maxdepth 1 -name passwd | grep -c passwd"), fields{"stdout": "1\n"})
}

func universalNone(t *testing.T, a agent) {
	for _, command := range []string{"git --version", "python3 --version", "sed --version", "no-such-program-here"} {
		ends(t, a.run(t, command), "exited", "", "")
	}
}

func universalGlobal(t *testing.T, a agent) {
	a = a.as("greedy")
	notAllowed(t, "sudo", "sudo", a.run(t, "sudo ls"))
	notAllowed(t, "chmod", "chmod", a.run(t, "chmod u+x x"))
	ends(t, a.run(t, "ls"), "exited", "", "")
}

func universalMerged(t *testing.T, a agent) {
	a = a.as("researcher")
	notAllowed(t, "curl", "curl", a.run(t, "env curl x"))
	notAllowed(t, "sudo", "sudo", a.run(t, "sudo ls"))
	ends(t, a.run(t, "python3 --version"), "exited", "", "")
}

func universalDenyEmpty(t *testing.T, a agent) { // the writer's is
	ends(t, a.as("writer").run(t, "kill 1"), "policy_denied", "CommandNotAllowed", "Command not allowed: 'kill' is blocked")
}

func universalContainer(t *testing.T, a agent, what string) {
	switch what {
	case "root":
		gives(t, a.run(t, "id -u; grep -c '^CapEff:.*[^0]$' /proc/self/status; grep NoNewPrivs /proc/self/status"), fields{"stdout": "1000\n0\nNoNewPrivs:\t1\n"})
	case "alone":
		mark := word() // it is in the command lines of the one that looks
		gives(t, a.run(t, "ls /proc | grep -cx "+fmt.Sprint(os.Getpid())+"; : "+mark), fields{"stdout": "0\n"})
		gives(t, a.run(t, "cat /proc/1/environ"), fields{"stdout": "", "exit_code": 1})
	case "network":
		gives(t, a.run(t, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), fields{"stdout": "lo\n"})
		if r := a.run(t, "curl -sS -m 5 http://1.1.1.1"); outputOf(t, r)["exit_code"] == 0.0 {
			t.Errorf("%+v", r)
		}
	default:
		t.Fatal(what)
	}
}

func universalLimit(t *testing.T, a agent, what string) {
	switch what {
	case "fork-bomb":
		mark := word()
		a.call(t, fields{"command": "bomb() { bomb | bomb & }; bomb; : " + mark + "; sleep 1", "timeout": 1})
		gone(t, mark)
	case "loop":
		gives(t, a.call(t, fields{"command": "while :; do :; done", "timeout": 0.2}), fields{"timed_out": true})
	case "memory":
		ends(t, a.run(t, "head -c 1000000000 /dev/zero | tail"), "oom", "ResourceLimit", "Command ran out of memory")
	case "output":
		out := outputOf(t, a.run(t, "head -c 20000000 /dev/zero | tr '\\0' x"))
		if n := len(out["stdout"].(string)); n > 50_100 || out["truncated"] != true {
			t.Errorf("%d characters, truncated: %v", n, out["truncated"])
		}
	default:
		t.Fatal(what)
	}
	gives(t, a.run(t, "echo hello"), fields{"stdout": "hello\n"})
}

func universalTrace(t *testing.T, s *harness.Server, _ line) {
	a := universal(s)
	for command, ending := range map[string]string{"echo hello": "exited", "exit 3": "exited", "sudo ls": "policy_denied"} {
		if got := traced(t, s, a.run(t, command)); got.Ending != ending {
			t.Errorf("%s: %+v", command, got)
		}
	}
	tracesInvalid(t, a, fields{"command": 3}, "command")
}
