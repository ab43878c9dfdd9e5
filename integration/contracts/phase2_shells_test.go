//go:build integration

package contracts

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// started starts a background shell and returns its id.
func started(t *testing.T, a agent, command string) string {
	t.Helper()
	r := a.call(t, fields{"command": command, "run_in_background": true})
	id, _ := outputOf(t, r)["background_task_id"].(string)
	if id == "" || r.Ending != "started" {
		t.Fatalf("%+v", r)
	}
	return id
}

// kill ends a background shell.
func (a agent) kill(t *testing.T, id string) v1.ToolResult {
	t.Helper()
	return a.with("system.kill").call(t, fields{"shell_id": id})
}

// says waits until a background shell has written a text.
func (a agent) says(t *testing.T, id, text string) {
	t.Helper()
	harness.Eventually(t, harness.Short, "the shell says "+text, func() bool {
		out := outputOf(t, a.with("system.output").call(t, fields{"shell_id": id, "wait_ms": 500}))
		return strings.Contains(out["data"].(string), text)
	})
}

func phase2Background(t *testing.T, a agent) {
	r := a.call(t, fields{"command": "sleep 600", "run_in_background": true})
	gives(t, r, fields{"command": "sleep 600", "stdout": "", "stderr": "", "exit_code": 0, "truncated": false})
	id, _ := outputOf(t, r)["background_task_id"].(string)
	if id == "" {
		t.Fatalf("%+v", r)
	}
	// The answer was there while it runs.
	gives(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"state": "running", "data": "", "eof": false})
	a.kill(t, id)
}

func phase2BackgroundOutput(t *testing.T, a agent) {
	id := started(t, a, "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; echo err >&2; exit 7")
	a.says(t, id, "one\n")
	a.run(t, "touch go")
	read := a.with("system.output")
	harness.Eventually(t, harness.Short, "the shell ends", func() bool {
		return outputOf(t, read.call(t, fields{"shell_id": id, "offset": 4, "wait_ms": 500}))["state"] == "ended"
	})
	gives(t, read.call(t, fields{"shell_id": id, "offset": 4}), fields{"data": "two\n", "offset": 4, "next_offset": 8, "eof": true, "exit_code": 7, "ending": "exited"})
	gives(t, read.call(t, fields{"shell_id": id, "stream": "stderr"}), fields{"data": "err\n"})
	a.run(t, "rm go")
}

func phase2BackgroundList(t *testing.T, a agent) {
	id := started(t, a, "sleep 600")
	state := func() any {
		for _, sh := range outputOf(t, a.with("system.shells").call(t, fields{}))["shells"].([]any) {
			if sh := sh.(fields); sh["shell_id"] == id {
				return sh["state"]
			}
		}
		return nil
	}
	if got := state(); got != "running" {
		t.Errorf("its state is %v", got)
	}
	a.kill(t, id)
	if got := state(); got != "ended" {
		t.Errorf("after its end its state is %v", got)
	}
}

func phase2BackgroundPolicy(t *testing.T, a agent) {
	neverRuns(t, "in the background", a.call(t, fields{"command": "sudo ls", "run_in_background": true}))
	if r := a.answered(t, fields{"command": "rm -r x", "run_in_background": true}, "deny"); r.Ending != "approval_denied" {
		t.Errorf("%+v", r)
	}
}

func phase2KillTerm(t *testing.T, a agent) {
	mark := "/tmp/" + word()
	id := started(t, a, "trap 'echo ended > "+mark+"; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	a.says(t, id, "ready\n")
	gives(t, a.kill(t, id), fields{"success": true})
	gives(t, a.run(t, "cat "+mark), fields{"stdout": "ended\n"})
	gives(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"state": "ended", "exit_code": 3})
}

// phase2KillGrace: that it was not killed before its time, the clock shows; that
// it was killed then, the host.
func phase2KillGrace(t *testing.T, a agent) {
	mark := word()
	id := started(t, a, "bash -c 'trap \"\" TERM; echo ready; while :; do sleep 0.05; done' "+mark)
	a.says(t, id, "ready\n")
	there(t, mark, 1)
	began := time.Now()
	gives(t, a.kill(t, id), fields{"success": true})
	if took := time.Since(began); took < 4900*time.Millisecond {
		t.Errorf("it had %s of its 5 s", took)
	}
	gone(t, mark)
}

func phase2KillTree(t *testing.T, a agent) {
	mark := word()
	sleep := "bash -c 'sleep 600; :' " + mark
	id := started(t, a, sleep+" & setsid "+sleep+" & ("+sleep+" &) & nohup "+sleep+" & sleep 600")
	there(t, mark, 5) // with the shell around
	gives(t, a.kill(t, id), fields{"success": true})
	gone(t, mark)
}

func phase2KillResult(t *testing.T, a agent) {
	id := started(t, a, "sleep 600")
	r := a.kill(t, id)
	gives(t, r, fields{"shell_id": id, "success": true, "message": "Shell terminated"})
	if out := outputOf(t, r); len(out) != 3 {
		t.Errorf("%v", out)
	}
}

func phase2KillEnded(t *testing.T, a agent) {
	id := started(t, a, "exit 3")
	harness.Eventually(t, harness.Short, "the shell ends", func() bool {
		return outputOf(t, a.with("system.output").call(t, fields{"shell_id": id, "wait_ms": 500}))["state"] == "ended"
	})
	gives(t, a.kill(t, id), fields{"shell_id": id, "success": true})
	gives(t, a.with("system.output").call(t, fields{"shell_id": id}), fields{"ending": "exited", "exit_code": 3})
}

func phase2KillUnknown(t *testing.T, a agent) {
	for _, id := range []string{"nonexistent", "01a200ad-855e-7df9-ac3e-1ffd28fcc142", "../x"} {
		r := a.kill(t, id)
		ends(t, r, "ok", "", "")
		gives(t, r, fields{"shell_id": id, "success": false, "message": "Shell " + id + " not found"})
	}
}

func phase2KillForeign(t *testing.T, s *harness.Server, _ line) {
	a := operator(s, "phase2", "system.bash")
	mark := word()
	id := started(t, a, "bash -c 'sleep 600; :' "+mark)
	there(t, mark, 1)
	other := holder(t, s, v1.TokenRequest{Caller: "stranger", Profile: "phase2", Trust: 3}, "system.bash")
	gives(t, other.kill(t, id), fields{"success": false, "message": "Shell " + id + " not found"})
	there(t, mark, 1)
	a.kill(t, id)
}
