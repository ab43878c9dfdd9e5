//go:build integration

package contracts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"orchestrator/client"
	v1 "orchestrator/client/v1"
	"orchestrator/integration/harness"
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

func confirmTime(t *testing.T, s *harness.Server, _ line) {
	if caps := toolNamed(t, s, "confirm", "bash").Caps; caps.TimeoutMS != 120_000 || caps.MaxTimeoutMS != 120_000 {
		t.Errorf("%+v", caps)
	}
	gives(t, operator(s, "confirm-seen", "bash").run(t, "true"), fields{"timeout_ms": 120_000})
}

func confirmTimeout(t *testing.T, a agent) {
	r := a.run(t, "echo before; sleep 600")
	ends(t, r, "timeout", "Failed", "Command timed out after 1s")
	reads(t, r, "Command timed out after 1s")
}

func confirmTimeoutKills(t *testing.T, a agent) {
	timeoutKills(t, func(command string, seconds int) (agent, fields) {
		if seconds > 1 {
			a = a.as("confirm-patient")
		}
		return a, fields{"command": command}
	})
}

// leave calls a command, and goes away as soon as the host has n processes with
// mark in their command lines.
func leave(t *testing.T, a agent, command, mark string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(soon(t))
	ended := make(chan error, 1)
	go func() { // received below
		_, err := a.client.CallTool(ctx, a.tool, a.request(t, fields{"command": command}), client.CallOptions{})
		ended <- err
	}()
	there(t, mark, n)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
}

func confirmCancel(t *testing.T, a agent) {
	mark := word()
	sleep := `bash -c 'trap "" TERM INT HUP; sleep 600; :' ` + mark
	leave(t, a, sleep+" & setsid "+sleep+" & nohup "+sleep+" & sleep 600", mark, 4)
	gone(t, mark)
	reads(t, a.run(t, "echo hello"), "Exit code: 0\nhello\n")
}

func confirmCancelTrace(t *testing.T, a agent) {
	before, mark := newest(t, a.s), word()
	leave(t, a, "sleep 600; : "+mark, mark, 1)
	harness.Eventually(t, harness.Short, "the call is recorded as cancelled", func() bool {
		list, err := a.s.Client.Audit(soon(t), client.AuditFilter{After: before, Action: a.tool, Ending: "cancelled"})
		return err == nil && len(list) == 1 && list[0].Kind == "close"
	})
}

func confirmCancelAsked(t *testing.T, a agent) {
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	mark, id := "/tmp/"+word(), ""
	_, err := a.client.CallTool(ctx, a.tool, a.request(t, fields{"command": "touch " + mark}), client.CallOptions{Asked: func(q v1.Approval) {
		id = q.ID
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || id == "" {
		t.Fatalf("who left got %v", err)
	}
	harness.Eventually(t, harness.Short, "the question is taken back", func() bool {
		q, err := a.s.Client.Approval(soon(t), id)
		return err == nil && q.State == "cancelled"
	})
	if _, err := a.s.Client.AnswerApproval(soon(t), id, v1.ApprovalAnswer{Action: "approve"}); err == nil {
		t.Error("it can be approved")
	}
	gives(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 2})
}

func confirmCwdMissing(t *testing.T, a agent) {
	r := a.run(t, "pwd")
	if r.Ending != "failed" || r.Error == nil || r.Error.Type != "Failed" || !strings.HasPrefix(r.Error.Message, "Failed to execute: ") || !strings.Contains(r.Error.Message, "/nowhere") {
		t.Errorf("%+v %+v", r, r.Error)
	}
}

func confirmBoth(t *testing.T, a agent) {
	reads(t, a.run(t, "echo out; echo err >&2; echo out"), "Exit code: 0\nSTDOUT:\nout\nout\n\nSTDERR:\nerr\n")
}

const (
	confirmLimit  = 256 << 10
	confirmMarker = "\n... (output truncated)"
)

// writes is a command that writes n times "x".
func writes(n int) string { return fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", n) }

func confirmWhole(t *testing.T, a agent) {
	reads(t, a.run(t, writes(confirmLimit)), "Exit code: 0\n"+strings.Repeat("x", confirmLimit))
}

func confirmCut(t *testing.T, a agent) {
	reads(t, a.run(t, writes(confirmLimit+1)), "Exit code: 0\n"+strings.Repeat("x", confirmLimit)+confirmMarker)
	if caps := toolNamed(t, a.s, "confirm", "bash").Caps; caps.Output != 262_144 || caps.OutputUnit != "bytes" {
		t.Errorf("%+v", caps)
	}
}

func confirmStderr(t *testing.T, a agent) {
	whole := strings.Repeat("x", confirmLimit)
	reads(t, a.run(t, writes(confirmLimit)+"; ("+writes(confirmLimit+1)+") >&2"), "Exit code: 0\nSTDOUT:\n"+whole+"\nSTDERR:\n"+whole+confirmMarker)
}

func confirmFlood(t *testing.T, a agent) {
	ends(t, a.run(t, "cat /dev/urandom"), "timeout", "Failed", "Command timed out after 1s")
	reads(t, a.as("confirm").run(t, "echo hello"), "Exit code: 0\nhello\n")
}

func confirmNarrow(t *testing.T, a agent) {
	reads(t, a.run(t, "printf 0123456789"), "Exit code: 0\n0123456789")
	reads(t, a.run(t, "printf 0123456789a"), "Exit code: 0\n0123456789"+confirmMarker)
}

func confirmCharacter(t *testing.T, a agent) {
	reads(t, a.run(t, "printf '12345678€€'"), "Exit code: 0\n12345678"+confirmMarker)
}

func confirmUTF8(t *testing.T, a agent) {
	reads(t, a.run(t, `printf 'a\377b\300\n'; printf '\200' >&2`), "Exit code: 0\nSTDOUT:\na\uFFFDb\uFFFD\n\nSTDERR:\n\uFFFD")
	if r := a.run(t, "head -c 100000 /dev/urandom"); r.Ending != "exited" || !utf8.ValidString(r.Text) {
		t.Errorf("%s, and %d bytes of text", r.Ending, len(r.Text))
	}
}

func confirmFailing(t *testing.T, a agent) {
	r := a.run(t, "echo out; exit 3")
	ends(t, r, "exited", "", "")
	reads(t, r, "Exit code: 3\nout\n")
}

func confirmNotFound(t *testing.T, a agent) {
	r := a.run(t, "no-such-program-here")
	ends(t, r, "exited", "", "")
	if !strings.HasPrefix(r.Text, "Exit code: 127\nSTDOUT:\n\nSTDERR:\n") || !strings.Contains(r.Text, "no-such-program-here: command not found") {
		t.Errorf("%q", r.Text)
	}
}

func confirmSignal(t *testing.T, a agent) {
	for _, signal := range []string{"KILL", "TERM", "SEGV"} {
		r := a.run(t, "kill -"+signal+" $$")
		gives(t, r, fields{"exit_code": -1, "success": false})
		if r.Ending != "signalled" || r.Error != nil {
			t.Errorf("%+v", r)
		}
	}
}

func confirmForm(t *testing.T, a agent, what string) {
	c, ok := map[string][2]string{
		"ok":          {"echo out", "Exit code: 0\nout\n"},
		"empty":       {"true", "Exit code: 0\n"},
		"stderr":      {"echo out; echo err >&2", "Exit code: 0\nSTDOUT:\nout\n\nSTDERR:\nerr\n"},
		"stderr-only": {"printf err >&2", "Exit code: 0\nSTDOUT:\n\nSTDERR:\nerr"},
		"failing":     {"echo out; echo err >&2; exit 3", "Exit code: 3\nSTDOUT:\nout\n\nSTDERR:\nerr\n"},
		"signal":      {"echo out; kill -9 $$", "Exit code: -1\nout\n"},
		"denied":      {"mkfs", "Command blocked by safety policy: contains 'mkfs'. This pattern is denied for safety."},
	}[what]
	if !ok {
		t.Fatal(what)
	}
	reads(t, a.run(t, c[0]), c[1])
}

func confirmDetails(t *testing.T, a agent) {
	for code, success := range map[int]bool{0: true, 1: false, 255: false} {
		r := a.run(t, fmt.Sprintf("exit %d", code))
		gives(t, r, fields{"exit_code": code, "success": success})
		if out := outputOf(t, r); len(out) != 2 {
			t.Errorf("%v", out)
		}
	}
}

func confirmTrace(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "confirm", "bash")
	switch lastOf(l) {
	case "run":
		traced(t, s, a.run(t, "echo hello"))
	case "failing":
		if got := traced(t, s, a.run(t, "exit 3")); got.ExitCode == nil || *got.ExitCode != 3 {
			t.Errorf("%+v", got)
		}
	case "denied":
		if got := traced(t, s, a.run(t, "mkfs")); got.Verdict != "deny" || got.Rule != "deny:mkfs" {
			t.Errorf("%+v", got)
		}
	case "unconfirmed":
		r := a.as("confirm-ask").answered(t, fields{"command": "ls"}, "deny")
		if got := traced(t, s, r); got.Approval != r.Approval || got.Approval == "" {
			t.Errorf("%+v", got)
		}
	case "missing":
		tracesInvalid(t, a, fields{}, "missing 'command' parameter")
	default:
		t.Fatal(l.id)
	}
}
