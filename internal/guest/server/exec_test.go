package server

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestExecReportsEnding(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		cases := []struct {
			cmd    wire.Command
			ending runtime.Ending
			code   int
			signal int
		}{
			{wire.Command{Argv: []string{"true"}}, runtime.Exited, 0, 0},
			{sh("exit 7"), runtime.Exited, 7, 0},
			{sh("exit 255"), runtime.Exited, 255, 0},
			{sh("kill -TERM $$"), runtime.Signalled, -1, 15},
			{sh("kill -KILL $$"), runtime.Signalled, -1, 9},
		}
		for _, c := range cases {
			a, r := run1(t, s, c.cmd)
			wantEnding(t, r, c.ending, c.code)
			if r.Signal != c.signal || !a.started || r.Duration <= 0 {
				t.Errorf("%v: started %v, result %+v; want it started, signal %d and a duration", c.cmd.Argv,
					a.started, r, c.signal)
			}
		}
	})
}

func TestExecSeparatesOrMergesStreams(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := sh("echo out; echo err >&2; printf '\\377\\000x'")
		a, _ := run1(t, s, cmd)
		if a.stdout.String() != "out\n\xff\x00x" || a.stderr.String() != "err\n" {
			t.Errorf(`the outputs are %q and %q, want "out\n\xff\x00x" and "err\n"`, a.stdout.String(),
				a.stderr.String())
		}
		cmd.MergeStderr = true
		a, _ = run1(t, s, cmd)
		if a.stdout.String() != "out\nerr\n\xff\x00x" || a.stderr.Len() > 0 {
			t.Errorf(`the merged outputs are %q and %q, want "out\nerr\n\xff\x00x" and none`, a.stdout.String(),
				a.stderr.String())
		}
	})
}

func TestExecPassesInput(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := wire.Command{Argv: []string{"cat"}, Stdin: true}
		k := dial(t, s, wire.OpExec, cmd)
		want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
		var sent sync.WaitGroup
		sent.Go(func() {
			for rest := want; len(rest) > 0; {
				n := min(len(rest), wire.MaxFrame)
				if err := k.c.WriteFrame(wire.KindStdin, rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			if err := k.c.WriteFrame(wire.KindEOF, nil); err != nil {
				t.Error(err)
			}
		})
		a := k.all()
		sent.Wait()
		wantEnding(t, a.result(t), runtime.Exited, 0)
		if !bytes.Equal(a.stdout.Bytes(), want) {
			t.Errorf("cat wrote %d bytes, want the %d bytes of its input", a.stdout.Len(), len(want))
		}
		// Without Stdin, the input is empty.
		a, r := run1(t, s, wire.Command{Argv: []string{"cat"}})
		wantEnding(t, r, runtime.Exited, 0)
		if a.stdout.Len() != 0 {
			t.Errorf("cat without an input wrote %q, want nothing", a.stdout.String())
		}
	})
}

func TestStreamsCanBeReopened(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := sh("echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin; cat </dev/stdout || echo refused")
		cmd.Stdin = true
		k := dial(t, s, wire.OpExec, cmd)
		if err := k.c.WriteFrame(wire.KindStdin, []byte("in\n")); err != nil {
			t.Fatal(err)
		}
		if err := k.c.WriteFrame(wire.KindEOF, nil); err != nil {
			t.Fatal(err)
		}
		a := k.all()
		wantEnding(t, a.result(t), runtime.Exited, 0)
		if a.stdout.String() != "out\nin\nrefused\n" || !strings.HasPrefix(a.stderr.String(), "err\n") {
			t.Errorf(`the outputs are %q and %q, want "out\nin\nrefused\n" and a beginning "err\n"`,
				a.stdout.String(), a.stderr.String())
		}
	})
}

func TestExecSendsAllOutput(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		a, r := run1(t, s, sh("head -c 10485760 /dev/zero | tr '\\0' x; echo end >&2"))
		wantEnding(t, r, runtime.Exited, 0)
		if a.stdout.Len() != 10<<20 || a.stderr.String() != "end\n" || bytes.Trim(a.stdout.Bytes(), "x") != nil &&
			len(bytes.Trim(a.stdout.Bytes(), "x")) > 0 {
			t.Errorf(`the outputs are %d bytes and %q, want %d times x and "end\n"`, a.stdout.Len(),
				a.stderr.String(), 10<<20)
		}
	})
}

func TestNoProcessOutlivesEnding(t *testing.T) {
	scripts := map[string]string{
		"child that holds stdout": `sleep 7%d & echo ok`,
		"daemon":                  `setsid sh -c 'trap "" TERM HUP; sleep 7%d & sleep 7%[1]d' >/dev/null 2>&1 </dev/null & echo ok`,
		"double fork":             `(setsid setsid sh -c '(sleep 7%d &) ; sleep 7%[1]d' &) ; echo ok`,
		"cleared environment":     `env -i setsid sleep 7%d >/dev/null & echo ok`,
		"stopped child":           `sleep 7%d & kill -STOP $!; echo ok`,
	}
	n := 1000 + os.Getpid()
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		for name, script := range scripts {
			n++
			marker := fmt.Sprintf("7%d", n)
			a, r := run1(t, s, sh(fmt.Sprintf(script, n)))
			wantEnding(t, r, runtime.Exited, 0)
			if a.stdout.String() != "ok\n" {
				t.Errorf(`%s: stdout is %q and stderr %q, want stdout "ok\n"`, name, a.stdout.String(),
					a.stderr.String())
			}
			nothingLeft(t, marker)
		}
	})
}

func TestClosedStreamCancels(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		for name, cmd := range map[string]wire.Command{
			"quiet":         {Argv: []string{"sleep", "8222"}},
			"writes":        {Argv: []string{"sh", "-c", "yes 8222"}},
			"takes nothing": {Argv: []string{"sleep", "8222"}, Stdin: true},
		} {
			k := dial(t, s, wire.OpExec, cmd)
			k.untilStarted()
			if cmd.Stdin {
				k.nc.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
				for k.c.WriteFrame(wire.KindStdin, make([]byte, wire.MaxFrame)) == nil {
				}
			}
			if name == "quiet" { // half of it is enough, and leaves room for the ending
				if err := k.nc.(*net.UnixConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				wantEnding(t, k.all().result(t), runtime.SandboxLost, -1)
			}
			k.nc.Close()
			eventually(t, name+" is dead", func() bool {
				return len(withMarker(t, "8222")) == 0 && ask[wire.Pong](t, s, wire.OpPing, nil).Commands == 0
			})
		}
	})
}

func TestSignalReachesFirstOrAllProcesses(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := sh(`trap 'echo usr1' USR1; trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done`)
		cmd.ID = "signalled"
		k := dial(t, s, wire.OpExec, cmd)
		a := k.untilStarted()
		for !strings.Contains(a.stdout.String(), "ready") {
			k.read(a)
		}
		if err := k.c.WriteJSON(wire.KindSignal, wire.Signal{Number: 10}); err != nil {
			t.Fatal(err)
		}
		for !strings.Contains(a.stdout.String(), "usr1") {
			k.read(a)
		}
		ask[struct{}](t, s, wire.OpSignal, wire.Signal{ID: "signalled", Number: 15, All: true})
		for !k.read(a) {
		}
		wantEnding(t, a.result(t), runtime.Exited, 3)
		for number, want := range map[int]string{0: wire.NotFound, 65: wire.NotFound} {
			f := dial(t, s, wire.OpSignal, wire.Signal{ID: "signalled", Number: number}).all().failure
			if f == nil || f.Code != want {
				t.Errorf("signal %d to an ended command: %s, want %s", number, describe(f), want)
			}
		}
	})
}

func TestInvalidCommandNamesField(t *testing.T) {
	long := strings.Repeat("x", wire.MaxArgBytes)
	cases := []struct {
		cmd         wire.Command
		code, field string
	}{
		{wire.Command{}, wire.InvalidArgument, "argv"},
		{wire.Command{Argv: []string{""}}, wire.InvalidArgument, "argv"},
		{wire.Command{Argv: []string{"a\x00b"}}, wire.InvalidArgument, "argv"},
		{wire.Command{Argv: make([]string, wire.MaxArgs+1)}, wire.InvalidArgument, "argv"},
		{wire.Command{Argv: []string{"echo", long}}, wire.InvalidArgument, "argv"},
		{wire.Command{Argv: []string{"echo", long[:200<<10]}}, wire.InvalidArgument, "argv"}, // the kernel's own limit
		{wire.Command{Argv: []string{"no-such-program"}}, wire.NotFound, "argv"},
		{wire.Command{Argv: []string{"/no/such/program"}}, wire.NotFound, "argv"},
		{wire.Command{Argv: []string{"/etc/passwd"}}, wire.PermissionDenied, "argv"},
		{wire.Command{Argv: []string{"true"}, Cwd: "/no/such/folder"}, wire.NotFound, "cwd"},
		{wire.Command{Argv: []string{"true"}, Cwd: "/etc/passwd"}, wire.InvalidArgument, "cwd"},
		{wire.Command{Argv: []string{"true"}, Cwd: "/root/x"}, wire.PermissionDenied, "cwd"},
		{wire.Command{Argv: []string{"true"}, Cwd: "a\x00"}, wire.InvalidArgument, "cwd"},
		{wire.Command{Argv: []string{"true"}, Dirs: []string{"in"}}, wire.InvalidArgument, "dirs"},
		{wire.Command{Argv: []string{"true"}, User: "root"}, wire.InvalidArgument, "user"},
		{wire.Command{Argv: []string{"true"}, User: "0"}, wire.InvalidArgument, "user"},
		{wire.Command{Argv: []string{"true"}, User: "0:1000"}, wire.InvalidArgument, "user"},
		{wire.Command{Argv: []string{"true"}, User: "4294967295"}, wire.InvalidArgument, "user"},
		{wire.Command{Argv: []string{"true"}, User: "1000:x"}, wire.InvalidArgument, "user"},
		{wire.Command{Argv: []string{"true"}, User: "nobody-knows"}, wire.InvalidArgument, "user"},
		{wire.Command{Argv: []string{"true"}, Env: map[string]string{"a=b": ""}}, wire.InvalidArgument, "env"},
		{wire.Command{Argv: []string{"true"}, Env: map[string]string{"": ""}}, wire.InvalidArgument, "env"},
		{wire.Command{Argv: []string{"true"}, Env: map[string]string{"A": "\x00"}}, wire.InvalidArgument, "env"},
		{wire.Command{Argv: []string{"true"}, Timeout: -1}, wire.InvalidArgument, "timeout_ns"},
		{wire.Command{Argv: []string{"true"}, ID: "a/b"}, wire.InvalidArgument, "id"},
		{wire.Command{Argv: []string{"true"}, MemoryBytes: -1}, wire.InvalidArgument, "memory_bytes"},
		{wire.Command{Argv: []string{"true"}, MemoryBytes: 1}, wire.InvalidArgument, "memory_bytes"},
		{wire.Command{Argv: []string{"true"}, CPUs: -1}, wire.InvalidArgument, "cpus"},
		{wire.Command{Argv: []string{"true"}, CPUs: 0.001}, wire.InvalidArgument, "cpus"},
		{wire.Command{Argv: []string{"true"}, CPUs: 1e9}, wire.InvalidArgument, "cpus"},
	}
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		for _, c := range cases {
			f := dial(t, s, wire.OpExec, c.cmd).all().failure
			if f == nil || f.Code != c.code || f.Field != c.field || f.Message == "" {
				t.Errorf("%.80q cwd %q user %q: %s, want %s of field %s", c.cmd.Argv, c.cmd.Cwd, c.cmd.User,
					describe(f), c.code, c.field)
			}
		}
		if p := ask[wire.Pong](t, s, wire.OpPing, nil); p.Commands != 0 {
			t.Errorf("%d commands are counted after refused ones, want 0", p.Commands)
		}
	})
}

func TestCommandsGetTheirEnvironment(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		a, _ := run1(t, s, wire.Command{Argv: []string{"sh", "-c", `env | sort; id -u; pwd`},
			Env: map[string]string{"LANG": "x", "MINE": "a b"}, Cwd: "/"})
		for _, want := range []string{"HOME=/home/user\n", "LANG=x\n", "MINE=a b\n", "PATH=" + defaultPath + "\n",
			"\n1000\n/\n"} {
			if !strings.Contains(a.stdout.String(), want) {
				t.Errorf("the command wrote %q, want %q in it", a.stdout.String(), want)
			}
		}
		if strings.Contains(a.stdout.String(), inChild) {
			t.Error("a command has the guest's own environment, want none of it")
		}
		a, r := run1(t, s, wire.Command{Argv: []string{"sh", "-c", `id -u; id -g; echo $HOME`}, User: "4242:4343"})
		wantEnding(t, r, runtime.Exited, 0)
		if a.stdout.String() != "4242\n4343\n/\n" {
			t.Errorf(`the command wrote %q, want "4242\n4343\n/\n"`, a.stdout.String())
		}
	})
}

func TestConcurrentCommands(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				for range 3 {
					a, r := run1(t, s, sh("echo ok; sleep 0.01"))
					wantEnding(t, r, runtime.Exited, 0)
					if a.stdout.String() != "ok\n" {
						t.Errorf(`echo wrote %q, want "ok\n"`, a.stdout.String())
					}
				}
			})
		}
		group.Wait()
	})
}

func TestForkingProcessesAreKilled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	if os.Getenv(cgroupEnv) == "" {
		return // without cgroups the result says "unclean" if the guest lost track
	}
	s := testServer(t, true)
	script := `r() { while :; do (sh -c "$0" 8444 & exit); done; }; r`
	_, r := run1(t, s, wire.Command{Argv: []string{"sh", "-c", script, "sleep 0.001 # 8444"}, Timeout: time.Second})
	if r.Ending != runtime.Timeout || r.Unclean {
		t.Errorf("the command ended as %+v, want a clean timeout", r)
	}
	nothingLeft(t, "8444")
	_, r = run1(t, s, wire.Command{Argv: []string{"true"}})
	wantEnding(t, r, runtime.Exited, 0)
}
