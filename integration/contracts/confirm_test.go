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

// confirmFiles are what operators make of the profile, by name.
var confirmFiles = map[string]string{
	"seen":    `tools: [{name: bash, output: {type: object}, result: '{"timeout_ms": end.timeout_ms}'}]`,
	"hasty":   "tools: [{name: bash, caps: {timeout_ms: 1000, max_timeout_ms: 1000}}]",
	"patient": "tools: [{name: bash, caps: {timeout_ms: 16000, max_timeout_ms: 16000}}]",
	"narrow":  "tools: [{name: bash, caps: {output: {limit: 10}}}]",
	"tmp":     `tools: [{name: bash, arguments: '{"command": input.command, "cwd": "/tmp"}'}]`,
	"nowhere": `tools: [{name: bash, arguments: '{"command": input.command, "cwd": "/nowhere"}'}]`,
	"own":     "policy: {match: literal, default: allow, rules: [{id: mine, action: deny, substring: 'secret', message: 'no secrets'}]}",
	"some":    `approvals: [{id: some, tool: bash, action: prompt, when: 'input.command.contains("deploy")'}]`,
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for name, text := range confirmFiles {
		files["confirm-"+name] = "name: confirm-" + name + "\nextends: confirm\n" + text + "\n"
	}
	one := func(profile string, test func(t *testing.T, a agent)) phase2Test {
		return func(t *testing.T, s *harness.Server, _ line) { test(t, operator(s, profile, "bash")) }
	}
	with := func(test func(t *testing.T, a agent, what string)) phase2Test {
		return func(t *testing.T, s *harness.Server, l line) { test(t, operator(s, "confirm", "bash"), lastOf(l)) }
	}
	hold(t, "confirm.txt", profiles(t, files), map[string]phase2Test{
		"name":        confirmName,
		"label":       confirmLabel,
		"description": confirmDescription,
		"schema":      confirmSchema,
		"missing":     confirmMissing,
		"bash":        one("confirm", confirmBash),

		"deny":         with(confirmDeny),
		"deny-count":   confirmCount,
		"deny-message": one("confirm", confirmMessage),
		"deny-nothing": one("confirm", confirmNothing),
		"deny-text":    one("confirm", confirmText),
		"deny-own":     one("confirm-own", confirmOwn),
		"literal":      with(confirmLiteral),

		"confirm-none":   one("confirm", confirmNone),
		"confirm-asks":   one("confirm-ask", confirmAsks),
		"confirm-sees":   one("confirm-ask", confirmSees),
		"confirm-yes":    one("confirm-ask", confirmYes),
		"confirm-no":     one("confirm-ask", confirmNo),
		"confirm-denied": one("confirm-ask", confirmDenied),
		"confirm-some":   one("confirm-some", confirmSome),

		"time-default": confirmTime,
		"time-own":     one("confirm-hasty", confirmTimeout),
		"time-error":   one("confirm-hasty", confirmTimeout),
		"time-kill":    one("confirm-hasty", confirmTimeoutKills),
		"cancel":       one("confirm", confirmCancel),
		"cancel-trace": one("confirm", confirmCancelTrace),
		"cancel-asked": one("confirm-ask", confirmCancelAsked),

		"cwd-none":    one("confirm", func(t *testing.T, a agent) { reads(t, a.run(t, "pwd"), "Exit code: 0\n/workspace\n") }),
		"cwd-own":     one("confirm-tmp", func(t *testing.T, a agent) { reads(t, a.run(t, "pwd"), "Exit code: 0\n/tmp\n") }),
		"cwd-missing": one("confirm-nowhere", confirmCwdMissing),

		"output-both":      one("confirm", confirmBoth),
		"output-whole":     one("confirm", confirmWhole),
		"output-cut":       one("confirm", confirmCut),
		"output-stderr":    one("confirm", confirmStderr),
		"output-flood":     one("confirm-hasty", confirmFlood),
		"output-own":       one("confirm-narrow", confirmNarrow),
		"output-character": one("confirm-narrow", confirmCharacter),
		"utf8":             one("confirm", confirmUTF8),
		"failing":          one("confirm", confirmFailing),
		"not-found":        one("confirm", confirmNotFound),
		"signal":           one("confirm", confirmSignal),
		"text":             with(confirmForm),
		"details":          one("confirm", confirmDetails),
		"trace":            confirmTrace,
	})
}

// reads checks what models read of a call.
func reads(t *testing.T, r v1.ToolResult, want string) {
	t.Helper()
	if r.Text != want {
		t.Errorf("%.300q (%d bytes), want %.300q (%d bytes)", r.Text, len(r.Text), want, len(want))
	}
}

func confirmName(t *testing.T, s *harness.Server, _ line) {
	if list, err := s.Client.Tools(soon(t), "confirm"); err != nil || len(list) != 1 || list[0].Name != "bash" {
		t.Errorf("%+v %v", list, err)
	}
}

func confirmLabel(t *testing.T, s *harness.Server, _ line) {
	if got := toolNamed(t, s, "confirm", "bash").Title; got != "Execute Command" {
		t.Errorf("%q", got)
	}
}

func confirmDescription(t *testing.T, s *harness.Server, _ line) {
	got := toolNamed(t, s, "confirm", "bash").Description
	for _, part := range []string{"bash command", "stdout/stderr", "running scripts", "installing packages", "system state"} {
		if !strings.Contains(got, part) {
			t.Errorf("nothing of %s in %q", part, got)
		}
	}
}

func confirmSchema(t *testing.T, s *harness.Server, _ line) {
	tool := toolNamed(t, s, "confirm", "bash")
	known, required := inputs(t, tool)
	if !slices.Equal(known, []string{"command"}) || !slices.Equal(required, known) || !strings.Contains(string(tool.Input), `"string"`) {
		t.Errorf("%s", tool.Input)
	}
}

func confirmMissing(t *testing.T, s *harness.Server, l line) {
	input, ok := map[string]string{"none": `{}`, "number": `{"command":3}`, "null": `{"command":null}`}[lastOf(l)]
	if !ok {
		t.Fatal(l.id)
	}
	got := s.Ask(t, "POST", "/v1/tools/bash/call", `{"profile":"confirm","input":`+input+`}`)
	if p, ok := v1.Decode(got.Body); !ok || got.Status != 400 || p.Detail != "missing 'command' parameter" || p.Kind != "InvalidArgs" || p.Field != "command" {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

func confirmBash(t *testing.T, a agent) {
	reads(t, a.run(t, `a=(x y z); [[ ${a[1]} == y ]] && echo "${a[@]:1}" && echo "${BASH_VERSION:+bash}"`), "Exit code: 0\ny z\nbash\n")
}

// confirmPatterns are the source's, by their ids.
var confirmPatterns = map[string]string{"rm-rf-root": "rm -rf /", "rm-rf-root-files": "rm -rf /*", "mkfs": "mkfs", "dd": "dd if=", "fork-bomb": ":(){:|:&};:"}

// confirmDenies are spellings of what is denied, and near misses.
var confirmDenies = map[string]commandSet{
	"rm-rf-root": {
		denied: []string{"rm -rf /", "rm -fr /", "rm -r -f /", "rm --recursive --force -- /", "rm -Rf //", `"rm" -rf '/'`, "/bin/rm -rf /", "env rm -rf /", "sh -c 'rm -rf /'", "ls && rm -rf /", "X=/; rm -rf $X"},
		runs:   []string{"rm -rf /tmp/nothing-here", "rm -rf nothing-here", "echo rm -rf /"},
	},
	"rm-rf-root-files": {
		denied: []string{"rm -rf /*", "rm -fr /*", "rm -r -f -- /*", "nice rm -rf /*"},
		runs:   []string{"rm -rf /tmp/nothing-here*", "echo '/*'", "ls -d /*"},
	},
	"mkfs": {
		denied: []string{"mkfs /dev/sda", "mkfs.ext4 /dev/sda", "/sbin/mkfs.xfs x", `mk"fs" x`, "env mkfs x", "bash -c 'mkfs x'", "true | mkfs x", "xargs mkfs"},
		runs:   []string{"echo mkfs", "ls mkfs; true", "man mkfs; true"},
	},
	"dd": {
		denied: []string{"dd if=/dev/zero of=x count=1", "dd of=x if=/dev/zero bs=1 count=1", "/bin/dd if=x", `d"d" if=x`, "nohup dd if=x", "sh -c 'dd if=x'", "dd 'if=x'"},
		runs:   []string{"echo 'dd if=x'", "echo x | dd of=copy", "dd --version"},
	},
	"fork-bomb": {
		denied: []string{":(){:|:&};:", ":(){ :|:& };:", ":() { : | : & }; :", "b(){ b|b& };b", "bomb() {\n bomb | bomb &\n}\nbomb", "bash -c ':(){ :|:& };:'"},
		runs:   []string{"echo ':(){:|:&};:'", "f() { echo x; }; f", "f() { :; }; f | f"},
	},
}

func confirmDeny(t *testing.T, a agent, what string) {
	confirmDenies[what].hold(t, a, blocksPattern(confirmPatterns[what]))
}

// blocksPattern checks a refusal in the words of the source.
func blocksPattern(pattern string) func(t *testing.T, command string, r v1.ToolResult) {
	want := "Command blocked by safety policy: contains '" + pattern + "'. This pattern is denied for safety."
	return func(t *testing.T, command string, r v1.ToolResult) {
		t.Helper()
		if r.Ending != "policy_denied" || r.Error == nil || r.Error.Type != "Failed" || r.Error.Message != want || r.SandboxID != "" {
			t.Errorf("%q: %s %+v; want %q", command, r.Ending, r.Error, want)
		}
	}
}

func confirmCount(t *testing.T, _ *harness.Server, _ line) {
	n := 0
	for _, l := range read(t, "confirm.txt") {
		if strings.HasPrefix(l.id, "deny/") {
			n++
		}
	}
	if n != 5 || len(confirmDenies) != 5 || len(confirmPatterns) != 5 {
		t.Errorf("%d lines, %d sets, %d patterns", n, len(confirmDenies), len(confirmPatterns))
	}
}

func confirmMessage(t *testing.T, a agent) {
	const want = "Command blocked by safety policy: contains 'mkfs'. This pattern is denied for safety."
	r := a.run(t, "mkfs x")
	ends(t, r, "policy_denied", "Failed", want)
	reads(t, r, want)
}

func confirmNothing(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	a.run(t, "touch "+mark+"; mkfs x")
	gives(t, a.run(t, "ls "+mark), fields{"exit_code": 2})
}

func confirmText(t *testing.T, a agent) {
	for _, pattern := range confirmPatterns {
		reads(t, a.run(t, "echo '"+pattern+"'"), "Exit code: 0\n"+pattern+"\n")
	}
}

func confirmOwn(t *testing.T, a agent) {
	ends(t, a.run(t, "echo secret"), "policy_denied", "Failed", "no secrets")
	reads(t, a.run(t, "echo mkfs"), "Exit code: 0\nmkfs\n")
	ends(t, a.run(t, "mkfs.none x"), "exited", "", "")
}

func confirmLiteral(t *testing.T, a agent, what string) {
	pattern := confirmPatterns[what]
	says := pattern
	if what == "rm-rf-root-files" { // the shorter pattern is the first that is found
		says = confirmPatterns["rm-rf-root"]
	}
	through := map[string]string{"rm-rf-root": "rm -r -f /nothing-here", "rm-rf-root-files": "rm -r -f /nothing*", "mkfs": "mk''fs x", "dd": "dd of=copy if=/dev/null", "fork-bomb": "echo ':(){ :|:& };:'"}[what]
	commandSet{denied: []string{pattern, "echo '" + pattern + "'", "# " + pattern + " x"}, runs: []string{through}}.hold(t, a.as("confirm-literal"), blocksPattern(says))
}

func confirmNone(t *testing.T, a agent) {
	for _, command := range []string{"echo hello", "rm -r nothing-here", "git push --force", "sudo ls", "chmod 777 nothing-here"} { // run fails for a question
		ends(t, a.run(t, command), "exited", "", "")
	}
}

func confirmAsks(t *testing.T, a agent) {
	for _, command := range []string{"echo hello", "ls", "true"} {
		ends(t, a.answered(t, fields{"command": command}, "approve"), "exited", "", "")
	}
}

func confirmSees(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	_, err := a.client.CallTool(soon(t), a.tool, a.request(t, fields{"command": "touch " + mark}), client.CallOptions{Asked: func(q v1.Approval) {
		var in struct{ Command string }
		if err := json.Unmarshal(q.Input, &in); err != nil || in.Command != "touch "+mark || q.Tool != "bash" {
			t.Errorf("asked about %+v", q)
		}
		gives(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 2})
		if _, err := a.s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Error(err)
	}
	gives(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 0})
}

func confirmYes(t *testing.T, a agent) {
	reads(t, a.answered(t, fields{"command": "echo hello"}, "approve"), "Exit code: 0\nhello\n")
}

func confirmNo(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	r := a.answered(t, fields{"command": "touch " + mark}, "deny")
	ends(t, r, "approval_denied", "Failed", "Command was not confirmed by the user.")
	reads(t, r, "Command was not confirmed by the user.")
	gives(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 2})
}

func confirmDenied(t *testing.T, a agent) {
	blocksPattern("mkfs")(t, "mkfs", a.run(t, "mkfs x")) // run fails for a question
}

func confirmSome(t *testing.T, a agent) {
	reads(t, a.run(t, "echo hello"), "Exit code: 0\nhello\n")
	reads(t, a.answered(t, fields{"command": "echo deploy"}, "approve"), "Exit code: 0\ndeploy\n")
	ends(t, a.answered(t, fields{"command": "echo deploy"}, "deny"), "approval_denied", "Failed", "Command was not confirmed by the user.")
}
