//go:build integration

package scenarios

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestSessions runs the scenarios of shell sessions, each in a separate sandbox of one server.
func TestSessions(t *testing.T) {
	t.Parallel()
	onServer(t, roomy, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, string)
		}{
			{"state persists", testSessionState},
			{"careless commands do not end it", testSessionCareless},
			{"it ends with its shell and can be renewed", testSessionEnds},
			{"a timeout kills the command's processes", testSessionTimes},
			{"background processes end with it", testSessionBackground},
			{"streams are unchanged", testSessionStreams},
			{"one command at a time", testSessionBusy},
			{"memory limit", testSessionOOM},
			{"an idempotent command runs once", testSessionKey},
			{"from the command line", testSessionCLI},
			{"it outlives the orchestrator", testSessionRestart},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, lease(t, s, v1.SandboxRequest{}).ID)
			})
		}
	})
}

// newSession starts a shell session in a sandbox.
func newSession(t *testing.T, s *harness.Server, sandbox string) *client.Session {
	t.Helper()
	se, got, err := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Shell != "bash" || got.Missing != "" || got.State != "idle" {
		t.Errorf("StartSession = %+v, want an idle bash with nothing missing", got)
	}
	return se
}

// sessionRun runs a command with a timeout in milliseconds; 0 is the default.
func sessionRun(t *testing.T, se *client.Session, command string, ms int64) v1.ExecResult {
	t.Helper()
	r, err := se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: command, TimeoutMS: ms}})
	if err != nil {
		t.Fatalf("exec %q: %v", command, err)
	}
	return r
}

// sessionGives runs a command that must exit with the code and keep the session open. The output
// "*" is any.
func sessionGives(t *testing.T, se *client.Session, command string, code int, out string) {
	t.Helper()
	r := sessionRun(t, se, command, 0)
	if r.Ending != "exited" || r.ExitCode != code || r.Session != v1.SessionOpen || out != "*" && r.Stdout != out {
		t.Errorf("%s: %+v, want an open session, exit code %d and stdout %q", command, r, code, out)
	}
}

// testSessionState checks that directory, variables, functions and options persist in a session
// only, and that invalid requests are refused.
func testSessionState(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	sessionGives(t, se, `cd /tmp; x=5; export Y=6; f() { echo fn $x; }; alias hi='echo aliased'; shopt -s nullglob`, 0, "")
	sessionGives(t, se, `pwd; f; sh -c 'echo $Y'; hi; echo /nope*`, 0, "/tmp\nfn 5\n6\naliased\n\n")
	r, err := se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Argv: []string{"printf", "%s|", "a b", "it's", "$x"}}})
	if err != nil || r.Stdout != "a b|it's|$x|" {
		t.Errorf("Exec with argv = %+v, %v; want the arguments as they are", r, err)
	}
	other := newSession(t, s, sandbox)
	sessionGives(t, other, `pwd; echo "<$x>"`, 0, "/workspace\n<>\n")
	list, err := s.Client.Sessions(within(t), sandbox)
	if err != nil || len(list) != 2 || list[0].ID != se.ID || list[0].Commands != 3 {
		t.Errorf("Sessions = %+v, %v; want two, the first with 3 commands", list, err)
	}
	for _, bad := range []v1.ShellSessionExec{
		{Exec: v1.Exec{Command: "x", Cwd: "/tmp"}},
		{Exec: v1.Exec{Command: "x", User: "1000"}},
		{Exec: v1.Exec{Command: "x", Env: map[string]string{"A": "b"}}},
		{},
		{Exec: v1.Exec{Command: "x"}, WhenBusy: "later"},
		{Exec: v1.Exec{Command: "a\x00b"}},
	} {
		if _, err := se.Exec(within(t), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Exec of %+v: %v, want invalid argument", bad, err)
		}
	}
	if _, _, err := s.Client.StartSession(within(t), sandbox,
		v1.ShellSessionRequest{Shell: "zsh"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("StartSession with zsh: %v, want invalid argument", err)
	}
	if _, _, err := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{User: "0"}); err == nil {
		t.Error("StartSession as root succeeded, want an error")
	}
	if _, err := s.Client.Session(sandbox, "nope").Run(within(t), "x"); !errdefs.IsNotFound(err) {
		t.Errorf("Run in an unknown session: %v, want not found", err)
	}
}

// testSessionCareless runs commands that would end or block a plain shell. The session must stay
// usable.
func testSessionCareless(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	for _, c := range []struct {
		command string
		code    int
		out     string
	}{
		{`echo "unbalanced`, 2, ""},
		{`if true`, 2, ""},
		{"cat <<EOF\nhi", 0, "hi\n"},
		{`set -u; echo $nope; echo after`, 1, ""},
		{`set +u; readonly r=1; r=2; echo after`, 1, ""},
		{`exec nosuchprogram`, 127, ""},
		{`exec >/tmp/redirected 2>&1; echo hidden`, 0, ""},
		{`echo seen`, 0, "seen\n"},
		{`for f in /proc/$$/fd/*; do eval "exec ${f##*/}>&-"; done`, 0, ""},
		{`echo seen`, 0, "seen\n"},
		{`mkdir -p /tmp/gone && cd /tmp/gone && rmdir /tmp/gone`, 0, ""},
		{`echo seen; cd /`, 0, "seen\n"},
		{`trap 'echo trapped' USR1; kill -USR1 $$`, 0, "trapped\n"},
		{`kill -INT $$; echo x`, 130, ""},
		{`cat; read x`, 1, ""},
		{`return 4`, 4, ""},
		{`echo seen`, 0, "seen\n"},
	} {
		sessionGives(t, se, c.command, c.code, c.out)
	}
}

// testSessionEnds ends sessions by their commands. They must say so, and be renewed on request.
func testSessionEnds(t *testing.T, s *harness.Server, sandbox string) {
	for command, code := range map[string]int{
		"exit 3": 3, "exec sh -c 'exit 4'": 4, "set -e; (exit 6); echo not reached": 6,
	} {
		se := newSession(t, s, sandbox)
		r := sessionRun(t, se, command, 0)
		if r.ExitCode != code || r.Session != v1.SessionEnded || r.Stdout != "" {
			t.Errorf("%s: %+v, want exit code %d and an ended session", command, r, code)
		}
		if _, err := se.Run(within(t), "echo x"); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), "has ended") {
			t.Errorf("Run in an ended session: %v, want failed precondition", err)
		}
		r, err := se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: "echo x"}, Renew: true})
		if err != nil || r.Stdout != "x\n" || r.Session != v1.SessionRenewed {
			t.Errorf("Exec with Renew = %+v, %v; want stdout x in a renewed session", r, err)
		}
		if _, err := se.End(within(t)); err != nil {
			t.Error(err)
		}
	}
	se := newSession(t, s, sandbox)
	if r := sessionRun(t, se, `trap '' INT; while :; do :; done`, 1500); r.Ending != "timeout" ||
		r.Session != v1.SessionEnded || r.Detail == "" {
		t.Errorf("a command that ignores its timeout: %+v, want timeout and an ended session", r)
	}
}

// seconds returns a duration for sleep that no other process uses, so that its processes can be
// found.
func seconds(whole string) string {
	return fmt.Sprintf("%s.%07d%06d", whole, os.Getpid(), uniqueNumber.Add(1))
}

// testSessionTimes checks that a timeout kills what the command has started, but not what earlier
// commands left.
func testSessionTimes(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	// Another runtime runs the same commands at the same time.
	brief, long := seconds("12"), seconds("98")
	sessionGives(t, se, `x=kept; sleep `+long+` & disown`, 0, "")
	for _, command := range []string{
		`while :; do :; done`,
		`sleep ` + brief,
		`sh -c 'trap "" INT TERM; sleep ` + brief + `'`,
		`for i in 1 2 3; do setsid sleep ` + brief + ` & done; wait`,
	} {
		r := sessionRun(t, se, "echo begin; "+command, 1500)
		if r.Ending != "timeout" || r.ExitCode != -1 || r.Session != v1.SessionOpen || r.Stdout != "begin\n" {
			t.Errorf("%s: %+v, want a timeout, stdout begin and an open session", command, r)
		}
		sessionGives(t, se, `echo $x`, 0, "kept\n")
	}
	if left := harness.Marked(brief); len(left) > 0 {
		t.Errorf("processes after the timeouts = %s, want none", harness.Describe(left))
	}
	if left := harness.Marked(long); len(left) == 0 {
		t.Error("the timeouts killed the process of an earlier command, want it running")
	}
	if _, err := se.End(within(t)); err != nil {
		t.Error(err)
	}
	if left := harness.Marked(long); len(left) > 0 {
		t.Errorf("processes after the end of the session = %s, want none", harness.Describe(left))
	}
}

// testSessionBackground checks that background processes neither delay a command nor write into the
// output of later ones.
func testSessionBackground(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	began := time.Now()
	sessionGives(t, se, `(sleep 0.3; echo late) & while :; do echo loud; sleep 0.01; done & echo here`, 0, "*")
	if took := time.Since(began); took > harness.Short {
		t.Errorf("a command beside background processes took %s, want at most %s", took, harness.Short)
	}
	sessionGives(t, se, `sleep 0.6; echo clean; kill %2`, 0, "clean\n")
	list, err := s.Client.Sessions(within(t), sandbox)
	if err != nil || len(list) != 1 || list[0].State != "idle" {
		t.Errorf("Sessions = %+v, %v; want one that is idle", list, err)
	}
	began = time.Now() // an idle session must not delay the end
	if _, err := s.Client.StopSandbox(within(t), sandbox, time.Minute); err != nil || time.Since(began) > 50*time.Second {
		t.Errorf("StopSandbox took %s, %v; want at most 50s", time.Since(began), err)
	}
}

// testSessionStreams checks the forms of input and output of a command: bytes, events and raw.
func testSessionStreams(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	var out, errOut bytes.Buffer
	in := bytes.Repeat([]byte{0, 0xff, '\n', 'x'}, 100_000)
	r, err := se.ExecStream(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: `cat; printf '\376' >&2; (exit 9)`}},
		client.Streams{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errOut})
	if err != nil || r.ExitCode != 9 || !bytes.Equal(out.Bytes(), in) || errOut.String() != "\xfe" ||
		r.StdoutBytes != int64(len(in)) {
		t.Errorf("ExecStream = %+v, %v, stdout of %d bytes, stderr %q; want the input and the byte fe",
			r, err, out.Len(), errOut.String())
	}
	endless := v1.Exec{Command: `while :; do echo x; done`, MaxOutputBytes: 1000, StopAtOutput: true}
	r, err = se.Exec(within(t), v1.ShellSessionExec{Exec: endless})
	if err != nil || r.Ending != "output_limit" || r.StdoutBytes != 1000 || r.Session != v1.SessionOpen {
		t.Errorf("Exec with endless output = %+v, %v; want output_limit at 1000 bytes", r, err)
	}
	path := "/v1/sandboxes/" + sandbox + "/sessions/" + se.ID + "/exec"
	a := s.Ask(t, "POST", path, `{"command":"echo sse"}`, "Accept", "text/event-stream")
	if a.Status != 200 || !strings.Contains(string(a.Body), `"session":"open"`) ||
		!strings.Contains(string(a.Body), `sse\n`) {
		t.Errorf("events: status %d, want 200 with the output and an open session: %s", a.Status, a.Body)
	}
	a = s.Ask(t, "POST", path, `{"command":"printf 'a\\0b'"}`, "Accept", "application/octet-stream")
	if string(a.Body) != "a\x00b" {
		t.Errorf("raw output: status %d, %q; want bytes with NUL", a.Status, a.Body)
	}
}

// testSessionBusy runs a command in a busy session: it must wait, or be refused if it says so.
func testSessionBusy(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	started, done := make(chan struct{}), make(chan error, 1)
	waiting := v1.ShellSessionExec{Exec: v1.Exec{Command: `while [ ! -e /tmp/go ]; do sleep 0.05; done; x=set`}}
	go func() { // the result is received from done
		_, err := se.ExecStream(within(t), waiting, client.Streams{Started: func(string) { close(started) }})
		done <- err
	}()
	<-started
	refuse := v1.ShellSessionExec{Exec: v1.Exec{Command: "x=no"}, WhenBusy: "refuse"}
	if _, err := se.Exec(within(t), refuse); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("Exec in a busy session: %v, want resource exhausted", err)
	}
	released := make(chan error, 1)
	go func() { // the result is received below; the next command most likely waits by then
		time.Sleep(300 * time.Millisecond)
		_, err := s.Client.Exec(within(t), sandbox, v1.Exec{Command: "touch /tmp/go"})
		released <- err
	}()
	sessionGives(t, se, `echo $x`, 0, "set\n")
	if err := <-released; err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// testSessionOOM runs a command over the memory limit. The session may end, but not be broken.
func testSessionOOM(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	r := sessionRun(t, se, `python3 -c 'x = bytearray(2 << 30)'; (exit 1)`, 0)
	if r.Ending != "oom" && !strings.Contains(r.Stderr, "MemoryError") {
		t.Errorf("a command over the memory limit: %+v, want oom or a MemoryError", r)
	}
	if r.Session == v1.SessionOpen {
		sessionGives(t, se, "echo alive", 0, "alive\n")
	}
}

// testSessionKey starts a session and runs a command twice with the same idempotency key.
func testSessionKey(t *testing.T, s *harness.Server, sandbox string) {
	key := fmt.Sprintf("start-%s", sandbox)
	one, _, err1 := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{}, client.IdempotencyKey(key))
	two, _, err2 := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{}, client.IdempotencyKey(key))
	if err1 != nil || err2 != nil || one.ID != two.ID {
		t.Fatalf("StartSession with one key = %v and %v, %v, %v; want one session", one, two, err1, err2)
	}
	for range 2 {
		next := v1.ShellSessionExec{Exec: v1.Exec{Command: `n=$((n+1)); echo $n`}}
		r, err := one.Exec(within(t), next, client.IdempotencyKey("n-"+sandbox))
		if err != nil || r.Stdout != "1\n" {
			t.Errorf("Exec with one key = %+v, %v; want stdout 1", r, err)
		}
	}
}

// testSessionCLI uses a session on the command line.
func testSessionCLI(t *testing.T, s *harness.Server, sandbox string) {
	c := s.CLI(t, "session", "create", "-q", sandbox)
	c.Is(t, 0, "")
	id := strings.TrimSpace(c.Stdout)
	s.Launch(t, strings.NewReader("cd /tmp\nx=5\n"), "session", "exec", sandbox, id).Wait().Is(t, 0, "")
	if c := s.CLI(t, "session", "exec", sandbox, id, "-c", "pwd; echo $x; exit 3"); c.Stdout != "/tmp\n5\n" {
		t.Errorf("session exec = %+v, want stdout %q", c, "/tmp\n5\n")
	} else {
		c.Is(t, 3, "the session ended with the command")
	}
	s.CLI(t, "session", "exec", sandbox, id, "-c", "true").Is(t, 78, "has ended")
	if c := s.CLI(t, "session", "ls", sandbox); !strings.Contains(c.Stdout, "exited 3") {
		t.Errorf("session ls printed %s, want exited 3 in it", c.Stdout)
	}
	s.CLI(t, "session", "rm", sandbox, id).Is(t, 0, "")
	s.CLI(t, "session", "rm", sandbox, id).Is(t, 66, fmt.Sprintf("session %q not found", id))
}

// testSessionRestart kills the service during a command. The session must keep its state, and the
// command must be killed.
func testSessionRestart(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	sessionGives(t, se, `cd /tmp; x=kept`, 0, "")
	started, done, long := make(chan struct{}), make(chan error, 1), seconds("54")
	go func() { // the result is received from done
		sleep := v1.ShellSessionExec{Exec: v1.Exec{Command: `sleep ` + long}}
		_, err := se.ExecStream(within(t), sleep, client.Streams{Started: func(string) { close(started) }})
		done <- err
	}()
	<-started
	s.Kill9()
	if err := <-done; err == nil {
		t.Error("the command succeeded although its server was killed, want error")
	}
	s.Start()
	sessionGives(t, se, `pwd; echo $x`, 0, "/tmp\nkept\n")
	if left := harness.Marked(long); len(left) > 0 {
		t.Errorf("processes of the killed server's command = %s, want none", harness.Describe(left))
	}
}
