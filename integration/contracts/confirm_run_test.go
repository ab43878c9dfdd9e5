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
