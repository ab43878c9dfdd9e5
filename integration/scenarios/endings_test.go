//go:build integration

package scenarios

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// testEndings checks common commands as a user would write them. When the ending is reported, none
// of their processes may be left.
func testEndings(t *testing.T, s *harness.Server) {
	word := uniqueWord()
	daemon := "(setsid env -i bash -c 'exec -a " + word + " sleep 3000' >/dev/null 2>&1 &) ; "
	for _, c := range []struct {
		name, ending string
		x            v1.Exec
		code, signal int
	}{
		{"exited 0", "exited", v1.Exec{Command: daemon + "true"}, 0, 0},
		{"exited 7", "exited", v1.Exec{Command: daemon + "exit 7"}, 7, 0},
		{"a program", "exited", v1.Exec{Argv: []string{"sh", "-c", "exit 3"}}, 3, 0},
		{"signalled", "signalled", v1.Exec{Command: daemon + "kill -SEGV $$"}, -1, 11},
		{"timeout", "timeout", v1.Exec{Command: daemon + "sleep 3000", TimeoutMS: 1500}, -1, 0},
		{"oom", "oom", v1.Exec{Argv: []string{"python3", "-c", "x = b'x' * (1 << 30)"}}, -1, 0},
		{"pids", "pids", v1.Exec{Argv: []string{"python3", "-c", forkBomb, word}}, -1, 0},
		{"output limit", "output_limit", v1.Exec{Command: daemon + "yes", MaxOutputBytes: 65536, StopAtOutput: true}, -1, 0},
		{"disk", "disk", v1.Exec{Command: daemon + "head -c 64M /dev/zero > /workspace/big"}, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := lease(t, s, v1.SandboxRequest{}).ID
			r := exec(t, s, id, c.x)
			assertNoProcess(t, word)
			if r.Ending != c.ending {
				t.Fatalf("%s: %+v, want ending %s", c.name, r, c.ending)
			}
			if c.ending == "exited" && r.ExitCode != c.code || c.ending == "signalled" && r.Signal != c.signal {
				t.Errorf("%s: %+v, want exit code %d or signal %d", c.name, r, c.code, c.signal)
			}
			if c.ending != "exited" && r.ExitCode == 0 {
				t.Errorf("%s: %+v, want an exit code other than 0", c.name, r)
			}
			if c.ending == "output_limit" && r.StdoutBytes < c.x.MaxOutputBytes {
				t.Errorf("output of %d bytes, want at least the limit of %d", r.StdoutBytes, c.x.MaxOutputBytes)
			}
			if got := sh(t, s, id, "rm -f /workspace/big; echo next"); got != "next\n" {
				t.Errorf("the next command wrote %q, want %q", got, "next\n")
			}
		})
	}
}

// forkBomb forks until it is refused. Its children stay.
const forkBomb = `
import os, time
while True:
    if os.fork() == 0:
        time.sleep(3000)
`

// testCancelledByRemoval ends a lease under a command, which must be cancelled, not lost.
func testCancelledByRemoval(t *testing.T, s *harness.Server) {
	word := uniqueWord()
	id := lease(t, s, v1.SandboxRequest{}).ID
	type answer struct {
		r   v1.ExecResult
		err error
	}
	answered := make(chan answer, 1)
	ctx := within(t)
	go func() { // the result is received below
		r, err := s.Client.Exec(ctx, id, v1.Exec{Command: "exec -a " + word + " sleep 3000"})
		answered <- answer{r, err}
	}()
	awaitProcesses(t, word, 1)
	release(t, s, id)
	assertNoProcess(t, word)
	a := <-answered
	if a.err != nil || a.r.Ending != "cancelled" || a.r.ExitCode == 0 || a.r.Detail != "sandbox "+id+" is gone: removed" {
		t.Errorf("Exec in a removed sandbox = %+v, %v; want cancelled because the sandbox is gone", a.r, a.err)
	}
}

// testCancelledByClient disconnects a client, which must end its command, for every form of a call.
func testCancelledByClient(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	for _, form := range []string{"whole", "streamed"} {
		word := uniqueWord()
		errGone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(within(t))
		ended := make(chan error, 1)
		x := v1.Exec{Command: "(setsid bash -c 'exec -a " + word + " sleep 3000' &); exec -a " + word + " sleep 3000"}
		go func() { // the result is received below
			var err error
			if form == "whole" {
				_, err = s.Client.Exec(ctx, id, x)
			} else {
				_, err = s.Client.ExecStream(ctx, id, x, streamsOf(nil))
			}
			ended <- err
		}()
		awaitProcesses(t, word, 2)
		cancel(errGone)
		if err := <-ended; !errors.Is(err, errGone) {
			t.Errorf("form %s: Exec of a disconnected client: %v, want the cause of the cancellation", form, err)
		}
		harness.Eventually(t, harness.Short, form+": the command's processes are dead", func() bool {
			return len(harness.Marked(word)) == 0
		})
	}
	if got := sh(t, s, id, "echo next"); got != "next\n" {
		t.Errorf("the next command wrote %q, want %q", got, "next\n")
	}
}

// runners starts 100 processes that replace themselves by forking, each in its own session.
const runners = `
import os, sys, time
def runner():
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            pass
started = 0
while started < 100:
    try:
        if os.fork() == 0:
            os.setsid()
            runner()
        started += 1
    except OSError:
        pass
time.sleep(0.5)
`

// unkillable forks forever, so that there is always a new process.
const unkillable = `
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
`

// testNothingOutlives checks on the host that no process of an exec exists after its ending is
// reported, while a second shell in the same lease keeps running.
func testNothingOutlives(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	ctx := within(t)
	shell, err := s.Client.StartShell(ctx, id,
		v1.ShellRequest{Exec: v1.Exec{Command: "while :; do echo tick; sleep 0.1; done"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		x    v1.Exec
		want string
	}{
		{"daemon", v1.Exec{Command: `(setsid env -i bash -c '(exec -a WORD sleep 3000 &) ; exec -a WORD sleep 3000' ` +
			`</dev/null >/dev/null 2>&1 &) ; sleep 0.3`}, "exited"},
		{"holder of stdout", v1.Exec{Command: `setsid bash -c 'exec -a WORD sleep 3000' & echo started`}, "exited"},
		{"stubborn", v1.Exec{
			Command:   `trap '' HUP INT TERM; exec -a WORD bash -c 'trap "" HUP INT TERM; while :; do sleep 1; done'`,
			TimeoutMS: 1000,
		}, "timeout"},
		{"100 runners", v1.Exec{Argv: []string{"python3", "-c", runners, "WORD"}}, "exited"},
		{"bomb at the cap", v1.Exec{Argv: []string{"python3", "-c", unkillable, "WORD"}, TimeoutMS: 1500}, "timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			word := uniqueWord()
			c.x.Command = strings.ReplaceAll(c.x.Command, "WORD", word)
			for i := range c.x.Argv {
				c.x.Argv[i] = strings.ReplaceAll(c.x.Argv[i], "WORD", word)
			}
			r := exec(t, s, id, c.x)
			assertNoProcess(t, word)
			if r.Ending != c.want {
				t.Errorf("%+v, want ending %s", r, c.want)
			}
		})
	}
	now, err := s.Client.Shell(ctx, shell.ID)
	if err != nil || now.State != "running" {
		t.Fatalf("Shell = %+v, %v; want the second shell running", now, err)
	}
	harness.Eventually(t, harness.Short, "the shell goes on writing", func() bool {
		later, err := s.Client.Shell(ctx, shell.ID)
		return err == nil && later.State == "running" && later.StdoutEnd > now.StdoutEnd
	})
	end, err := s.Client.KillShell(ctx, shell.ID, time.Second, false)
	if err != nil || end.State != "ended" {
		t.Fatalf("KillShell = %+v, %v; want it ended", end, err)
	}
	// Reaping takes a moment.
	harness.Eventually(t, harness.Short, "only the guest runs in the sandbox", func() bool {
		return len(s.Commands(id)) == 0
	})
}
