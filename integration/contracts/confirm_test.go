//go:build integration

package contracts

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// confirmFiles are profiles of operators that extend the built-in one, by name.
var confirmFiles = map[string]string{
	"seen":    `tools: [{name: bash, output: {type: object}, result: '{"timeout_ms": end.timeout_ms}'}]`,
	"hasty":   "tools: [{name: bash, caps: {timeout_ms: 1000, max_timeout_ms: 1000}}]",
	"patient": "tools: [{name: bash, caps: {timeout_ms: 16000, max_timeout_ms: 16000}}]",
	"narrow":  "tools: [{name: bash, caps: {output: {limit: 10}}}]",
	"tmp":     `tools: [{name: bash, arguments: '{"command": input.command, "cwd": "/tmp"}'}]`,
	"nowhere": `tools: [{name: bash, arguments: '{"command": input.command, "cwd": "/nowhere"}'}]`,
	"own": "policy: {match: literal, default: allow, " +
		"rules: [{id: mine, action: deny, substring: 'secret', message: 'no secrets'}]}",
	"some": `approvals: [{id: some, tool: bash, action: prompt, when: 'input.command.contains("deploy")'}]`,
}

// TestConfirm tests every line of confirm.txt. The lines say what the tests below check.
func TestConfirm(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	files := map[string]string{}
	for name, text := range confirmFiles {
		files["confirm-"+name] = "name: confirm-" + name + "\nextends: confirm\n" + text + "\n"
	}
	one := func(profile string, test func(t *testing.T, a agent)) contractTest {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, operator(s, profile, "bash")) }
	}
	with := func(test func(t *testing.T, a agent, what string)) contractTest {
		return func(t *testing.T, s *harness.Server, l line) { test(t, operator(s, "confirm", "bash"), lastOf(l)) }
	}
	runContract(t, "confirm.txt", profiles(t, files), map[string]contractTest{
		"name":        testConfirmName,
		"label":       testConfirmLabel,
		"description": testConfirmDescription,
		"schema":      testConfirmSchema,
		"missing":     testConfirmMissing,
		"bash":        one("confirm", testConfirmBash),

		"deny":         with(testConfirmDeny),
		"deny-count":   testConfirmCount,
		"deny-message": one("confirm", testConfirmMessage),
		"deny-nothing": one("confirm", testConfirmNothing),
		"deny-text":    one("confirm", testConfirmText),
		"deny-own":     one("confirm-own", testConfirmOwn),
		"literal":      with(testConfirmLiteral),

		"confirm-none":   one("confirm", testConfirmNone),
		"confirm-asks":   one("confirm-ask", testConfirmAsks),
		"confirm-sees":   one("confirm-ask", testConfirmSees),
		"confirm-yes":    one("confirm-ask", testConfirmYes),
		"confirm-no":     one("confirm-ask", testConfirmNo),
		"confirm-denied": one("confirm-ask", testConfirmDenied),
		"confirm-some":   one("confirm-some", testConfirmSome),

		"time-default": testConfirmTime,
		"time-own":     one("confirm-hasty", testConfirmTimeout),
		"time-error":   one("confirm-hasty", testConfirmTimeout),
		"time-kill":    one("confirm-hasty", testConfirmTimeoutKills),
		"cancel":       one("confirm", testConfirmCancel),
		"cancel-trace": one("confirm", testConfirmCancelTrace),
		"cancel-asked": one("confirm-ask", testConfirmCancelAsked),

		"cwd-none": one("confirm", func(t *testing.T, a agent) {
			assertText(t, a.run(t, "pwd"), "Exit code: 0\n/workspace\n")
		}),
		"cwd-own": one("confirm-tmp", func(t *testing.T, a agent) {
			assertText(t, a.run(t, "pwd"), "Exit code: 0\n/tmp\n")
		}),
		"cwd-missing": one("confirm-nowhere", testConfirmCwdMissing),

		"output-both":      one("confirm", testConfirmBoth),
		"output-whole":     one("confirm", testConfirmWhole),
		"output-cut":       one("confirm", testConfirmCut),
		"output-stderr":    one("confirm", testConfirmStderr),
		"output-flood":     one("confirm-hasty", testConfirmFlood),
		"output-own":       one("confirm-narrow", testConfirmNarrow),
		"output-character": one("confirm-narrow", testConfirmCharacter),
		"utf8":             one("confirm", testConfirmUTF8),
		"failing":          one("confirm", testConfirmFailing),
		"not-found":        one("confirm", testConfirmNotFound),
		"signal":           one("confirm", testConfirmSignal),
		"text":             with(testConfirmForm),
		"details":          one("confirm", testConfirmDetails),
		"trace":            testConfirmTrace,
	})
}

// assertText checks the text of a call's result, which models get.
func assertText(t *testing.T, r v1.ToolResult, want string) {
	t.Helper()
	if r.Text != want {
		t.Errorf("text %.300q (%d bytes), want %.300q (%d bytes)", r.Text, len(r.Text), want, len(want))
	}
}

func testConfirmName(t *testing.T, s *harness.Server, _ line) {
	if list, err := s.Client.Tools.List(callContext(t), "confirm"); err != nil || len(list) != 1 || list[0].Name != "bash" {
		t.Errorf("Tools = %+v, %v; want bash only", list, err)
	}
}

func testConfirmLabel(t *testing.T, s *harness.Server, _ line) {
	if got := toolNamed(t, s, "confirm", "bash").Title; got != "Execute Command" {
		t.Errorf("title of bash is %q, want Execute Command", got)
	}
}

func testConfirmDescription(t *testing.T, s *harness.Server, _ line) {
	got := toolNamed(t, s, "confirm", "bash").Description
	for _, part := range []string{
		"bash command", "stdout/stderr", "running scripts", "installing packages", "system state",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("description = %q, want it to mention %s", got, part)
		}
	}
}

func testConfirmSchema(t *testing.T, s *harness.Server, _ line) {
	tool := toolNamed(t, s, "confirm", "bash")
	known, required := inputs(t, tool)
	if !slices.Equal(known, []string{"command"}) || !slices.Equal(required, known) ||
		!strings.Contains(string(tool.Input), `"string"`) {
		t.Errorf("input schema %s, want the required string command", tool.Input)
	}
}

func testConfirmMissing(t *testing.T, s *harness.Server, l line) {
	input, ok := map[string]string{"none": `{}`, "number": `{"command":3}`, "null": `{"command":null}`}[lastOf(l)]
	if !ok {
		t.Fatalf("line %s has no case, want one", l.id)
	}
	got := s.Ask(t, "POST", "/v1/tools/bash/call", `{"profile":"confirm","input":`+input+`}`)
	if p, ok := v1.Decode(got.Body); !ok || got.Status != 400 || p.Detail != "missing 'command' parameter" ||
		p.Kind != "InvalidArgs" || p.Field != "command" {
		t.Errorf("status %d, %s; want 400 InvalidArgs for field command", got.Status, got.Body)
	}
}

func testConfirmBash(t *testing.T, a agent) {
	assertText(t, a.run(t, `a=(x y z); [[ ${a[1]} == y ]] && echo "${a[@]:1}" && echo "${BASH_VERSION:+bash}"`),
		"Exit code: 0\ny z\nbash\n")
}

// confirmPatterns are the denied patterns of the original system, by their ids.
var confirmPatterns = map[string]string{
	"rm-rf-root":       "rm -rf /",
	"rm-rf-root-files": "rm -rf /*",
	"mkfs":             "mkfs",
	"dd":               "dd if=",
	"fork-bomb":        ":(){:|:&};:",
}

// confirmDenies are commands that match each pattern, and similar ones that do not.
var confirmDenies = map[string]commandSet{
	"rm-rf-root": {
		denied: []string{
			"rm -rf /", "rm -fr /", "rm -r -f /", "rm --recursive --force -- /", "rm -Rf //", `"rm" -rf '/'`, "/bin/rm -rf /",
			"env rm -rf /", "sh -c 'rm -rf /'", "ls && rm -rf /", "X=/; rm -rf $X",
		},
		runs: []string{"rm -rf /tmp/nothing-here", "rm -rf nothing-here", "echo rm -rf /"},
	},
	"rm-rf-root-files": {
		denied: []string{"rm -rf /*", "rm -fr /*", "rm -r -f -- /*", "nice rm -rf /*"},
		runs:   []string{"rm -rf /tmp/nothing-here*", "echo '/*'", "ls -d /*"},
	},
	"mkfs": {
		denied: []string{
			"mkfs /dev/sda", "mkfs.ext4 /dev/sda", "/sbin/mkfs.xfs x", `mk"fs" x`, "env mkfs x", "bash -c 'mkfs x'",
			"true | mkfs x", "xargs mkfs",
		},
		runs: []string{"echo mkfs", "ls mkfs; true", "man mkfs; true"},
	},
	"dd": {
		denied: []string{
			"dd if=/dev/zero of=x count=1", "dd of=x if=/dev/zero bs=1 count=1", "/bin/dd if=x", `d"d" if=x`, "nohup dd if=x",
			"sh -c 'dd if=x'", "dd 'if=x'",
		},
		runs: []string{"echo 'dd if=x'", "echo x | dd of=copy", "dd --version"},
	},
	"fork-bomb": {
		denied: []string{
			":(){:|:&};:", ":(){ :|:& };:", ":() { : | : & }; :", "b(){ b|b& };b", "bomb() {\n bomb | bomb &\n}\nbomb",
			"bash -c ':(){ :|:& };:'",
		},
		runs: []string{"echo ':(){:|:&};:'", "f() { echo x; }; f", "f() { :; }; f | f"},
	},
}

func testConfirmDeny(t *testing.T, a agent, what string) {
	confirmDenies[what].assertDecided(t, a, blocksPattern(confirmPatterns[what]))
}

// blocksPattern returns a check for a refusal with the original system's message.
func blocksPattern(pattern string) func(t *testing.T, command string, r v1.ToolResult) {
	want := "Command blocked by safety policy: contains '" + pattern + "'. This pattern is denied for safety."
	return func(t *testing.T, command string, r v1.ToolResult) {
		t.Helper()
		if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != "Failed" || r.Error.Message != want ||
			r.SandboxID != "" {
			t.Errorf("%q: ending %s, error %+v; want policy_denied with %q", command, r.Ending, r.Error, want)
		}
	}
}

func testConfirmCount(t *testing.T, _ *harness.Server, _ line) {
	n := 0
	for _, l := range readContract(t, "confirm.txt") {
		if strings.HasPrefix(l.id, "deny/") {
			n++
		}
	}
	if n != 5 || len(confirmDenies) != 5 || len(confirmPatterns) != 5 {
		t.Errorf("%d lines, %d sets of commands, %d patterns; want 5 each", n, len(confirmDenies), len(confirmPatterns))
	}
}

func testConfirmMessage(t *testing.T, a agent) {
	const want = "Command blocked by safety policy: contains 'mkfs'. This pattern is denied for safety."
	r := a.run(t, "mkfs x")
	assertEnding(t, r, "policy_denied", "Failed", want)
	assertText(t, r, want)
}

func testConfirmNothing(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	a.run(t, "touch "+mark+"; mkfs x")
	assertFields(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func testConfirmText(t *testing.T, a agent) {
	for _, pattern := range confirmPatterns {
		assertText(t, a.run(t, "echo '"+pattern+"'"), "Exit code: 0\n"+pattern+"\n")
	}
}

func testConfirmOwn(t *testing.T, a agent) {
	assertEnding(t, a.run(t, "echo secret"), "policy_denied", "Failed", "no secrets")
	assertText(t, a.run(t, "echo mkfs"), "Exit code: 0\nmkfs\n")
	assertEnding(t, a.run(t, "mkfs.none x"), "exited", "", "")
}

func testConfirmLiteral(t *testing.T, a agent, what string) {
	pattern := confirmPatterns[what]
	says := pattern
	if what == "rm-rf-root-files" { // the shorter pattern matches first
		says = confirmPatterns["rm-rf-root"]
	}
	through := map[string]string{
		"rm-rf-root":       "rm -r -f /nothing-here",
		"rm-rf-root-files": "rm -r -f /nothing*",
		"mkfs":             "mk''fs x",
		"dd":               "dd of=copy if=/dev/null",
		"fork-bomb":        "echo ':(){ :|:& };:'",
	}[what]
	commandSet{
		denied: []string{pattern, "echo '" + pattern + "'", "# " + pattern + " x"}, runs: []string{through},
	}.assertDecided(t, a.as("confirm-literal"), blocksPattern(says))
}

func testConfirmNone(t *testing.T, a agent) {
	for _, command := range []string{"echo hello", "rm -r nothing-here", "git push --force", "sudo ls",
		"chmod 777 nothing-here"} { // run fails if approval is requested
		assertEnding(t, a.run(t, command), "exited", "", "")
	}
}

func testConfirmAsks(t *testing.T, a agent) {
	for _, command := range []string{"echo hello", "ls", "true"} {
		assertEnding(t, a.answered(t, fields{"command": command}, "approve"), "exited", "", "")
	}
}

func testConfirmSees(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	_, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, fields{"command": "touch " + mark}),
		client.CallOptions{Asked: func(q v1.Approval) {
			var in struct{ Command string }
			if err := json.Unmarshal(q.Input, &in); err != nil || in.Command != "touch "+mark || q.Tool != "bash" {
				t.Errorf("approval request %+v, want the command for tool bash", q)
			}
			assertFields(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 2})
			if _, err := a.s.Client.Approvals.Answer(callContext(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
				t.Error(err)
			}
		}})
	if err != nil {
		t.Error(err)
	}
	assertFields(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 0})
}

func testConfirmYes(t *testing.T, a agent) {
	assertText(t, a.answered(t, fields{"command": "echo hello"}, "approve"), "Exit code: 0\nhello\n")
}

func testConfirmNo(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	r := a.answered(t, fields{"command": "touch " + mark}, "deny")
	assertEnding(t, r, "approval_denied", "Failed", "Command was not confirmed by the user.")
	assertText(t, r, "Command was not confirmed by the user.")
	assertFields(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 2})
}

func testConfirmDenied(t *testing.T, a agent) {
	blocksPattern("mkfs")(t, "mkfs", a.run(t, "mkfs x")) // run fails if approval is requested
}

func testConfirmSome(t *testing.T, a agent) {
	assertText(t, a.run(t, "echo hello"), "Exit code: 0\nhello\n")
	assertText(t, a.answered(t, fields{"command": "echo deploy"}, "approve"), "Exit code: 0\ndeploy\n")
	assertEnding(t, a.answered(t, fields{"command": "echo deploy"}, "deny"), "approval_denied", "Failed",
		"Command was not confirmed by the user.")
}
