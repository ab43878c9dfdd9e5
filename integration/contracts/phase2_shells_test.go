//go:build integration

package contracts

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// startBackground starts a background shell and returns its id.
func startBackground(t *testing.T, a agent, command string) string {
	t.Helper()
	r := a.call(t, fields{"command": command, "run_in_background": true})
	id, _ := outputOf(t, r)["background_task_id"].(string)
	if id == "" || r.Ending != "started" {
		t.Fatalf("call in the background: %+v, want started with an id", r)
	}
	return id
}

// kill ends a background shell.
func (a agent) kill(t *testing.T, id string) v1.ToolResult {
	t.Helper()
	return a.with("system.kill").call(t, fields{"shell_id": id})
}

// awaitOutput waits until a background shell has written a text.
func (a agent) awaitOutput(t *testing.T, id, text string) {
	t.Helper()
	harness.Eventually(t, harness.Short, "the shell writes "+text, func() bool {
		out := outputOf(t, a.with("system.output").call(t, fields{"shell_id": id, "wait_ms": 500}))
		return strings.Contains(out["data"].(string), text)
	})
}

func testPhase2Background(t *testing.T, a agent) {
	r := a.call(t, fields{"command": "sleep 600", "run_in_background": true})
	assertFields(t, r, fields{"command": "sleep 600", "stdout": "", "stderr": "", "exit_code": 0, "truncated": false})
	id, _ := outputOf(t, r)["background_task_id"].(string)
	if id == "" {
		t.Fatalf("call in the background: %+v, want an id", r)
	}
	// The call returned while the command runs.
	assertFields(t, a.with("system.output").call(t, fields{"shell_id": id}),
		fields{"state": "running", "data": "", "eof": false})
	a.kill(t, id)
}

func testPhase2BackgroundOutput(t *testing.T, a agent) {
	id := startBackground(t, a, "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; echo err >&2; exit 7")
	a.awaitOutput(t, id, "one\n")
	a.run(t, "touch go")
	read := a.with("system.output")
	harness.Eventually(t, harness.Short, "the shell ends", func() bool {
		return outputOf(t, read.call(t, fields{"shell_id": id, "offset": 4, "wait_ms": 500}))["state"] == "ended"
	})
	assertFields(t, read.call(t, fields{"shell_id": id, "offset": 4}),
		fields{"data": "two\n", "offset": 4, "next_offset": 8, "eof": true, "exit_code": 7, "ending": "exited"})
	assertFields(t, read.call(t, fields{"shell_id": id, "stream": "stderr"}), fields{"data": "err\n"})
	a.run(t, "rm go")
}

func testPhase2BackgroundList(t *testing.T, a agent) {
	id := startBackground(t, a, "sleep 600")
	state := func() any {
		for _, sh := range outputOf(t, a.with("system.shells").call(t, fields{}))["shells"].([]any) {
			if sh := sh.(fields); sh["shell_id"] == id {
				return sh["state"]
			}
		}
		return nil
	}
	if got := state(); got != "running" {
		t.Errorf("state %v, want running", got)
	}
	a.kill(t, id)
	if got := state(); got != "ended" {
		t.Errorf("state after the end %v, want ended", got)
	}
}

func testPhase2BackgroundPolicy(t *testing.T, a agent) {
	assertNeverRuns(t, "in the background", a.call(t, fields{"command": "sudo ls", "run_in_background": true}))
	if r := a.answered(t, fields{"command": "rm -r x", "run_in_background": true}, "deny"); r.Ending != "approval_denied" {
		t.Errorf("call that needs approval in the background: %+v, want approval_denied", r)
	}
}

func testPhase2KillTerm(t *testing.T, a agent) {
	mark := "/tmp/" + uniqueWord()
	id := startBackground(t, a, "trap 'echo ended > "+mark+"; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	a.awaitOutput(t, id, "ready\n")
	assertFields(t, a.kill(t, id), fields{"success": true})
	assertFields(t, a.run(t, "cat "+mark), fields{"stdout": "ended\n"})
	assertFields(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"state": "ended", "exit_code": 3})
}

// testPhase2KillGrace measures that a shell gets 5 s before it is killed, and checks on the host
// that it is dead then.
func testPhase2KillGrace(t *testing.T, a agent) {
	mark := uniqueWord()
	id := startBackground(t, a, "bash -c 'trap \"\" TERM; echo ready; while :; do sleep 0.05; done' "+mark)
	a.awaitOutput(t, id, "ready\n")
	awaitProcesses(t, mark, 1)
	began := time.Now()
	assertFields(t, a.kill(t, id), fields{"success": true})
	if took := time.Since(began); took < 4900*time.Millisecond {
		t.Errorf("the shell had %s before it was killed, want 5 s", took)
	}
	awaitNoProcess(t, mark)
}

func testPhase2KillTree(t *testing.T, a agent) {
	mark := uniqueWord()
	sleep := "bash -c 'sleep 600; :' " + mark
	id := startBackground(t, a, sleep+" & setsid "+sleep+" & ("+sleep+" &) & nohup "+sleep+" & sleep 600")
	awaitProcesses(t, mark, 5) // with their shell
	assertFields(t, a.kill(t, id), fields{"success": true})
	awaitNoProcess(t, mark)
}

func testPhase2KillResult(t *testing.T, a agent) {
	id := startBackground(t, a, "sleep 600")
	r := a.kill(t, id)
	assertFields(t, r, fields{"shell_id": id, "success": true, "message": "Shell terminated"})
	if out := outputOf(t, r); len(out) != 3 {
		t.Errorf("output %v, want 3 fields", out)
	}
}

func testPhase2KillEnded(t *testing.T, a agent) {
	id := startBackground(t, a, "exit 3")
	harness.Eventually(t, harness.Short, "the shell ends", func() bool {
		return outputOf(t, a.with("system.output").call(t, fields{"shell_id": id, "wait_ms": 500}))["state"] == "ended"
	})
	assertFields(t, a.kill(t, id), fields{"shell_id": id, "success": true})
	assertFields(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"ending": "exited", "exit_code": 3})
}

func testPhase2KillTwice(t *testing.T, a agent) {
	id := startBackground(t, a, "sleep 600")
	assertFields(t, a.kill(t, id), fields{"shell_id": id, "success": true})
	assertFields(t, a.kill(t, id), fields{"shell_id": id, "success": false, "message": "Shell " + id + " not found"})
}

func testPhase2KillUnknown(t *testing.T, a agent) {
	for _, id := range []string{"nonexistent", "01a200ad-855e-7df9-ac3e-1ffd28fcc142", "../x"} {
		r := a.kill(t, id)
		assertEnding(t, r, "ok", "", "")
		assertFields(t, r, fields{"shell_id": id, "success": false, "message": "Shell " + id + " not found"})
	}
}

func testPhase2KillForeign(t *testing.T, s *harness.Server, _ line) {
	a := operator(s, "phase2", "system.bash")
	mark := uniqueWord()
	id := startBackground(t, a, "bash -c 'sleep 600; :' "+mark)
	awaitProcesses(t, mark, 1)
	other := newTokenAgent(t, s, v1.TokenRequest{Caller: "stranger", Profile: "phase2", Trust: 3}, "system.bash")
	assertFields(t, other.kill(t, id), fields{"success": false, "message": "Shell " + id + " not found"})
	awaitProcesses(t, mark, 1)
	a.kill(t, id)
}
