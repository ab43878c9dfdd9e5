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

func TestSessions(t *testing.T) {
	t.Parallel()
	onServer(t, roomy, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, string)
		}{
			{"state persists", sessionState},
			{"clumsy commands do not end it", sessionClumsy},
			{"it ends with its shell and can be renewed", sessionEnds},
			{"in time what a command started is killed", sessionTimes},
			{"the background lives with it", sessionBackground},
			{"streams as they are", sessionStreams},
			{"one command at a time", sessionBusy},
			{"memory cap", sessionOOM},
			{"an idempotent command runs once", sessionKey},
			{"from the command line", sessionCLI},
			{"it outlives the orchestrator", sessionRestart},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, lease(t, s, v1.SandboxRequest{}).ID)
			})
		}
	})
}

func newSession(t *testing.T, s *harness.Server, sandbox string) *client.Session {
	t.Helper()
	se, got, err := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Shell != "bash" || got.Missing != "" || got.State != "idle" {
		t.Errorf("started as %+v", got)
	}
	return se
}

// sessionRun runs a command of at most so many milliseconds, 0 is the default.
func sessionRun(t *testing.T, se *client.Session, command string, ms int64) v1.ExecResult {
	t.Helper()
	r, err := se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: command, TimeoutMS: ms}})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return r
}

func sessionGives(t *testing.T, se *client.Session, command string, code int, out string) {
	t.Helper()
	r := sessionRun(t, se, command, 0)
	if r.Ending != "exited" || r.ExitCode != code || r.Session != v1.SessionOpen || out != "*" && r.Stdout != out {
		t.Errorf("%s: %+v, want exit %d and %q", command, r, code, out)
	}
}

func sessionState(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	sessionGives(t, se, `cd /tmp; x=5; export Y=6; f() { echo fn $x; }; alias hi='echo aliased'; shopt -s nullglob`, 0, "")
	sessionGives(t, se, `pwd; f; sh -c 'echo $Y'; hi; echo /nope*`, 0, "/tmp\nfn 5\n6\naliased\n\n")
	r, err := se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Argv: []string{"printf", "%s|", "a b", "it's", "$x"}}})
	if err != nil || r.Stdout != "a b|it's|$x|" {
		t.Errorf("got %+v, %v", r, err)
	}
	other := newSession(t, s, sandbox)
	sessionGives(t, other, `pwd; echo "<$x>"`, 0, "/workspace\n<>\n")
	list, err := s.Client.Sessions(within(t), sandbox)
	if err != nil || len(list) != 2 || list[0].ID != se.ID || list[0].Commands != 3 {
		t.Errorf("listed as %+v, %v", list, err)
	}
	for _, bad := range []v1.ShellSessionExec{
		{Exec: v1.Exec{Command: "x", Cwd: "/tmp"}}, {Exec: v1.Exec{Command: "x", User: "1000"}}, {Exec: v1.Exec{Command: "x", Env: map[string]string{"A": "b"}}},
		{}, {Exec: v1.Exec{Command: "x"}, WhenBusy: "later"}, {Exec: v1.Exec{Command: "a\x00b"}},
	} {
		if _, err := se.Exec(within(t), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v gives %v", bad, err)
		}
	}
	if _, _, err := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{Shell: "zsh"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("zsh gives %v", err)
	}
	if _, _, err := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{User: "0"}); err == nil {
		t.Error("a session of root was started")
	}
	if _, err := s.Client.Session(sandbox, "nope").Run(within(t), "x"); !errdefs.IsNotFound(err) {
		t.Errorf("an unknown session gives %v", err)
	}
}

func sessionClumsy(t *testing.T, s *harness.Server, sandbox string) {
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

func sessionEnds(t *testing.T, s *harness.Server, sandbox string) {
	for command, code := range map[string]int{"exit 3": 3, "exec sh -c 'exit 4'": 4, "set -e; (exit 6); echo not reached": 6} {
		se := newSession(t, s, sandbox)
		r := sessionRun(t, se, command, 0)
		if r.ExitCode != code || r.Session != v1.SessionEnded || r.Stdout != "" {
			t.Errorf("%s: %+v", command, r)
		}
		if _, err := se.Run(within(t), "echo x"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("an ended session answers %v", err)
		}
		r, err := se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: "echo x"}, Renew: true})
		if err != nil || r.Stdout != "x\n" || r.Session != v1.SessionRenewed {
			t.Errorf("renewed it answers %+v, %v", r, err)
		}
		if _, err := se.End(within(t)); err != nil {
			t.Error(err)
		}
	}
	se := newSession(t, s, sandbox)
	if r := sessionRun(t, se, `trap '' INT; while :; do :; done`, 1500); r.Ending != "timeout" || r.Session != v1.SessionEnded || r.Detail == "" {
		t.Errorf("got %+v", r)
	}
}

// seconds is a time for sleep that is no other's, so that its processes are known.
func seconds(whole string) string {
	return fmt.Sprintf("%s.%07d%06d", whole, os.Getpid(), marks.Add(1))
}

func sessionTimes(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	// Others run the same on another runtime at the same time.
	brief, long := seconds("12"), seconds("98")
	sessionGives(t, se, `x=kept; sleep `+long+` & disown`, 0, "")
	for _, command := range []string{`while :; do :; done`, `sleep ` + brief, `sh -c 'trap "" INT TERM; sleep ` + brief + `'`, `for i in 1 2 3; do setsid sleep ` + brief + ` & done; wait`} {
		r := sessionRun(t, se, "echo begin; "+command, 1500)
		if r.Ending != "timeout" || r.ExitCode != -1 || r.Session != v1.SessionOpen || r.Stdout != "begin\n" {
			t.Errorf("%s: %+v", command, r)
		}
		sessionGives(t, se, `echo $x`, 0, "kept\n")
	}
	if left := harness.Marked(brief); len(left) > 0 {
		t.Errorf("processes are left: %s", harness.Describe(left))
	}
	if left := harness.Marked(long); len(left) == 0 {
		t.Error("what an earlier command left was killed too")
	}
	if _, err := se.End(within(t)); err != nil {
		t.Error(err)
	}
	if left := harness.Marked(long); len(left) > 0 {
		t.Errorf("processes outlive their session: %s", harness.Describe(left))
	}
}

func sessionBackground(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	began := time.Now()
	sessionGives(t, se, `(sleep 0.3; echo late) & while :; do echo loud; sleep 0.01; done & echo here`, 0, "*")
	if took := time.Since(began); took > harness.Short {
		t.Errorf("it took %s", took)
	}
	sessionGives(t, se, `sleep 0.6; echo clean; kill %2`, 0, "clean\n")
	list, err := s.Client.Sessions(within(t), sandbox)
	if err != nil || len(list) != 1 || list[0].State != "idle" {
		t.Errorf("listed as %+v, %v", list, err)
	}
	began = time.Now() // a session that has nothing to do does not hold up the end
	if _, err := s.Client.StopSandbox(within(t), sandbox, time.Minute); err != nil || time.Since(began) > 50*time.Second {
		t.Errorf("stopped after %s, %v", time.Since(began), err)
	}
}

func sessionStreams(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	var out, errOut bytes.Buffer
	in := bytes.Repeat([]byte{0, 0xff, '\n', 'x'}, 100_000)
	r, err := se.ExecStream(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: `cat; printf '\376' >&2; (exit 9)`}},
		client.Streams{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errOut})
	if err != nil || r.ExitCode != 9 || !bytes.Equal(out.Bytes(), in) || errOut.String() != "\xfe" || r.StdoutBytes != int64(len(in)) {
		t.Errorf("got %+v, %v, %d bytes and %q", r, err, out.Len(), errOut.String())
	}
	r, err = se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: `while :; do echo x; done`, MaxOutputBytes: 1000, StopAtOutput: true}})
	if err != nil || r.Ending != "output_limit" || r.StdoutBytes != 1000 || r.Session != v1.SessionOpen {
		t.Errorf("got %+v, %v", r, err)
	}
	path := "/v1/sandboxes/" + sandbox + "/sessions/" + se.ID + "/exec"
	a := s.Ask(t, "POST", path, `{"command":"echo sse"}`, "Accept", "text/event-stream")
	if a.Status != 200 || !strings.Contains(string(a.Body), `"session":"open"`) || !strings.Contains(string(a.Body), `sse\n`) {
		t.Errorf("events are %d %s", a.Status, a.Body)
	}
	a = s.Ask(t, "POST", path, `{"command":"printf 'a\\0b'"}`, "Accept", "application/octet-stream")
	if string(a.Body) != "a\x00b" {
		t.Errorf("raw is %d %q", a.Status, a.Body)
	}
}

func sessionBusy(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	started, done := make(chan struct{}), make(chan error, 1)
	go func() { // done is waited for
		_, err := se.ExecStream(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: `while [ ! -e /tmp/go ]; do sleep 0.05; done; x=set`}}, client.Streams{Started: func(string) { close(started) }})
		done <- err
	}()
	<-started
	if _, err := se.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: "x=no"}, WhenBusy: "refuse"}); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("a busy session answers %v", err)
	}
	let := make(chan error, 1)
	go func() { // waited for below; by then the next one most likely waits
		time.Sleep(300 * time.Millisecond)
		_, err := s.Client.Exec(within(t), sandbox, v1.Exec{Command: "touch /tmp/go"})
		let <- err
	}()
	sessionGives(t, se, `echo $x`, 0, "set\n")
	if err := <-let; err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func sessionOOM(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	r := sessionRun(t, se, `python3 -c 'x = bytearray(2 << 30)'; (exit 1)`, 0)
	if r.Ending != "oom" && !strings.Contains(r.Stderr, "MemoryError") {
		t.Errorf("got %+v", r)
	}
	if r.Session == v1.SessionOpen {
		sessionGives(t, se, "echo alive", 0, "alive\n")
	}
}

func sessionKey(t *testing.T, s *harness.Server, sandbox string) {
	key := fmt.Sprintf("start-%s", sandbox)
	one, _, err1 := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{}, client.IdempotencyKey(key))
	two, _, err2 := s.Client.StartSession(within(t), sandbox, v1.ShellSessionRequest{}, client.IdempotencyKey(key))
	if err1 != nil || err2 != nil || one.ID != two.ID {
		t.Fatalf("started %v and %v, %v, %v", one, two, err1, err2)
	}
	for range 2 {
		r, err := one.Exec(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: `n=$((n+1)); echo $n`}}, client.IdempotencyKey("n-"+sandbox))
		if err != nil || r.Stdout != "1\n" {
			t.Errorf("got %+v, %v", r, err)
		}
	}
}

func sessionCLI(t *testing.T, s *harness.Server, sandbox string) {
	c := s.CLI(t, "session", "create", "-q", sandbox)
	c.Is(t, 0, "")
	id := strings.TrimSpace(c.Stdout)
	s.Launch(t, strings.NewReader("cd /tmp\nx=5\n"), "session", "exec", sandbox, id).Wait().Is(t, 0, "")
	if c := s.CLI(t, "session", "exec", sandbox, id, "-c", "pwd; echo $x; exit 3"); c.Stdout != "/tmp\n5\n" {
		t.Errorf("got %+v", c)
	} else {
		c.Is(t, 3, "the session has ended")
	}
	s.CLI(t, "session", "exec", sandbox, id, "-c", "true").Is(t, 78, "has ended")
	if c := s.CLI(t, "session", "ls", sandbox); !strings.Contains(c.Stdout, "exited 3") {
		t.Errorf("listed as %s", c.Stdout)
	}
	s.CLI(t, "session", "rm", sandbox, id).Is(t, 0, "")
	s.CLI(t, "session", "rm", sandbox, id).Is(t, 66, "there is no session")
}

func sessionRestart(t *testing.T, s *harness.Server, sandbox string) {
	se := newSession(t, s, sandbox)
	sessionGives(t, se, `cd /tmp; x=kept`, 0, "")
	started, done, long := make(chan struct{}), make(chan error, 1), seconds("54")
	go func() { // done is waited for
		_, err := se.ExecStream(within(t), v1.ShellSessionExec{Exec: v1.Exec{Command: `sleep ` + long}}, client.Streams{Started: func(string) { close(started) }})
		done <- err
	}()
	<-started
	s.Kill9()
	if err := <-done; err == nil {
		t.Error("a command under way ended well with its orchestrator killed")
	}
	s.Start()
	sessionGives(t, se, `pwd; echo $x`, 0, "/tmp\nkept\n")
	if left := harness.Marked(long); len(left) > 0 {
		t.Errorf("processes are left: %s", harness.Describe(left))
	}
}
