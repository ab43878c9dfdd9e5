//go:build integration

package contracts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

func testConfirmTime(t *testing.T, s *harness.Server, _ line) {
	if caps := toolNamed(t, s, "confirm", "bash").Caps; caps.TimeoutMS != 120_000 || caps.MaxTimeoutMS != 120_000 {
		t.Errorf("caps of bash = %+v, want 120 s", caps)
	}
	assertFields(t, operator(s, "confirm-seen", "bash").run(t, "true"), fields{"timeout_ms": 120_000})
}

func testConfirmTimeout(t *testing.T, a agent) {
	r := a.run(t, "echo before; sleep 600")
	assertEnding(t, r, "timeout", "Failed", "Command timed out after 1s")
	assertText(t, r, "Command timed out after 1s")
}

func testConfirmTimeoutKills(t *testing.T, a agent) {
	assertTimeoutKills(t, func(command string, seconds int) (agent, fields) {
		if seconds > 1 {
			a = a.as("confirm-patient")
		}
		return a, fields{"command": command}
	})
}

// cancelOnceRunning calls a command and disconnects as soon as the host has n processes with mark
// in their command lines.
func cancelOnceRunning(t *testing.T, a agent, command, mark string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(callContext(t))
	ended := make(chan error, 1)
	go func() { // the result is received below
		_, err := a.client.Tools.Call(ctx, a.tool, a.request(t, fields{"command": command}), client.CallOptions{})
		ended <- err
	}()
	awaitProcesses(t, mark, n)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("call of a disconnected client: %v, want context canceled", err)
	}
}

func testConfirmCancel(t *testing.T, a agent) {
	mark := uniqueWord()
	sleep := `bash -c 'trap "" TERM INT HUP; sleep 600; :' ` + mark
	cancelOnceRunning(t, a, sleep+" & setsid "+sleep+" & nohup "+sleep+" & sleep 600", mark, 4)
	awaitNoProcess(t, mark)
	assertText(t, a.run(t, "echo hello"), "Exit code: 0\nhello\n")
}

func testConfirmCancelTrace(t *testing.T, a agent) {
	before, mark := lastRecord(t, a.s), uniqueWord()
	cancelOnceRunning(t, a, "sleep 600; : "+mark, mark, 1)
	harness.Eventually(t, harness.Short, "the call is recorded as cancelled", func() bool {
		list, err := a.s.Client.Audit.Records(callContext(t), client.AuditFilter{After: before, Action: a.tool, Ending: "cancelled"})
		return err == nil && len(list) == 1 && list[0].Kind == "close"
	})
}

func testConfirmCancelAsked(t *testing.T, a agent) {
	ctx, cancel := context.WithCancel(callContext(t))
	defer cancel()
	mark, id := "/tmp/"+uniqueWord(), ""
	_, err := a.client.Tools.Call(ctx, a.tool, a.request(t, fields{"command": "touch " + mark}),
		client.CallOptions{Asked: func(q v1.Approval) {
			id = q.ID
			cancel()
		}})
	if !errors.Is(err, context.Canceled) || id == "" {
		t.Fatalf("call of a disconnected client: %v, approval %q; want context canceled after a request", err, id)
	}
	harness.Eventually(t, harness.Short, "the approval request is cancelled", func() bool {
		q, err := a.s.Client.Approvals.Get(callContext(t), id)
		return err == nil && q.State == "cancelled"
	})
	if _, err := a.s.Client.Approvals.Answer(callContext(t), id, v1.ApprovalAnswer{Action: "approve"}); err == nil {
		t.Error("AnswerApproval of a cancelled request succeeded, want an error")
	}
	assertFields(t, a.as("confirm").run(t, "ls "+mark), fields{"exit_code": 2})
}

func testConfirmCwdMissing(t *testing.T, a agent) {
	r := a.run(t, "pwd")
	if r.Ending != "failed" || r.Error == nil || r.Error.Type != "Failed" ||
		!strings.HasPrefix(r.Error.Message, "Failed to execute: ") || !strings.Contains(r.Error.Message, "/nowhere") {
		t.Errorf("missing working directory: %+v, error %+v; want Failed with the directory's name", r, r.Error)
	}
}

func testConfirmBoth(t *testing.T, a agent) {
	assertText(t, a.run(t, "echo out; echo err >&2; echo out"), "Exit code: 0\nSTDOUT:\nout\nout\n\nSTDERR:\nerr\n")
}

const (
	confirmLimit  = 256 << 10
	confirmMarker = "\n... (output truncated)"
)

// writes returns a command that writes n times "x".
func writes(n int) string { return fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", n) }

func testConfirmWhole(t *testing.T, a agent) {
	assertText(t, a.run(t, writes(confirmLimit)), "Exit code: 0\n"+strings.Repeat("x", confirmLimit))
}

func testConfirmCut(t *testing.T, a agent) {
	assertText(t, a.run(t, writes(confirmLimit+1)), "Exit code: 0\n"+strings.Repeat("x", confirmLimit)+confirmMarker)
	if caps := toolNamed(t, a.s, "confirm", "bash").Caps; caps.Output != 262_144 || caps.OutputUnit != "bytes" {
		t.Errorf("caps of bash = %+v, want 262144 bytes of output", caps)
	}
}

func testConfirmStderr(t *testing.T, a agent) {
	whole := strings.Repeat("x", confirmLimit)
	assertText(t, a.run(t, writes(confirmLimit)+"; ("+writes(confirmLimit+1)+") >&2"),
		"Exit code: 0\nSTDOUT:\n"+whole+"\nSTDERR:\n"+whole+confirmMarker)
}

func testConfirmFlood(t *testing.T, a agent) {
	assertEnding(t, a.run(t, "cat /dev/urandom"), "timeout", "Failed", "Command timed out after 1s")
	assertText(t, a.as("confirm").run(t, "echo hello"), "Exit code: 0\nhello\n")
}

func testConfirmNarrow(t *testing.T, a agent) {
	assertText(t, a.run(t, "printf 0123456789"), "Exit code: 0\n0123456789")
	assertText(t, a.run(t, "printf 0123456789a"), "Exit code: 0\n0123456789"+confirmMarker)
}

func testConfirmCharacter(t *testing.T, a agent) {
	assertText(t, a.run(t, "printf '12345678€€'"), "Exit code: 0\n12345678"+confirmMarker)
}

func testConfirmUTF8(t *testing.T, a agent) {
	assertText(t, a.run(t, `printf 'a\377b\300\n'; printf '\200' >&2`),
		"Exit code: 0\nSTDOUT:\na\uFFFDb\uFFFD\n\nSTDERR:\n\uFFFD")
	if r := a.run(t, "head -c 100000 /dev/urandom"); r.Ending != "exited" || !utf8.ValidString(r.Text) {
		t.Errorf("invalid UTF-8: ending %s, %d bytes of text; want exited with valid UTF-8", r.Ending, len(r.Text))
	}
}

func testConfirmFailing(t *testing.T, a agent) {
	r := a.run(t, "echo out; exit 3")
	assertEnding(t, r, "exited", "", "")
	assertText(t, r, "Exit code: 3\nout\n")
}

func testConfirmNotFound(t *testing.T, a agent) {
	r := a.run(t, "no-such-program-here")
	assertEnding(t, r, "exited", "", "")
	if !strings.HasPrefix(r.Text, "Exit code: 127\nSTDOUT:\n\nSTDERR:\n") ||
		!strings.Contains(r.Text, "no-such-program-here: command not found") {
		t.Errorf("text %q, want exit code 127 and the shell's message", r.Text)
	}
}

func testConfirmSignal(t *testing.T, a agent) {
	for _, signal := range []string{"KILL", "TERM", "SEGV"} {
		r := a.run(t, "kill -"+signal+" $$")
		assertFields(t, r, fields{"exit_code": -1, "success": false})
		if r.Ending != "signalled" || r.Error != nil {
			t.Errorf("signal %s: %+v, want ending signalled without an error", signal, r)
		}
	}
}

func testConfirmForm(t *testing.T, a agent, what string) {
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
		t.Fatalf("line %s has no case, want one", what)
	}
	assertText(t, a.run(t, c[0]), c[1])
}

func testConfirmDetails(t *testing.T, a agent) {
	for code, success := range map[int]bool{0: true, 1: false, 255: false} {
		r := a.run(t, fmt.Sprintf("exit %d", code))
		assertFields(t, r, fields{"exit_code": code, "success": success})
		if out := outputOf(t, r); len(out) != 2 {
			t.Errorf("output %v, want two fields", out)
		}
	}
}

func testConfirmTrace(t *testing.T, s *harness.Server, l line) {
	a := operator(s, "confirm", "bash")
	switch lastOf(l) {
	case "run":
		closingRecord(t, s, a.run(t, "echo hello"))
	case "failing":
		if got := closingRecord(t, s, a.run(t, "exit 3")); got.ExitCode == nil || *got.ExitCode != 3 {
			t.Errorf("closing record %+v, want exit code 3", got)
		}
	case "denied":
		if got := closingRecord(t, s, a.run(t, "mkfs")); got.Verdict != "deny" || got.Rule != "deny:mkfs" {
			t.Errorf("closing record %+v, want a denial by deny:mkfs", got)
		}
	case "unconfirmed":
		r := a.as("confirm-ask").answered(t, fields{"command": "ls"}, "deny")
		if got := closingRecord(t, s, r); got.Approval != r.Approval || got.Approval == "" {
			t.Errorf("closing record %+v, want approval %s", got, r.Approval)
		}
	case "missing":
		assertInvalidRecorded(t, a, fields{}, "missing 'command' parameter")
	default:
		t.Fatalf("line %s has no case, want one", l.id)
	}
}
