package server

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// tracedEnv makes the tests' program the traced process of a test, and tracerEnv its tracer.
const (
	tracedEnv = "SERVER_TEST_TRACED"
	tracerEnv = "SERVER_TEST_TRACER"
)

// helper runs the part that the environment selects, and returns if it selects none.
func helper() {
	if how := os.Getenv(tracedEnv); how != "" {
		if err := beTraced(how); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(7)
	}
	if how := os.Getenv(tracerEnv); how != "" {
		if err := trace(strings.Fields(how)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		time.Sleep(time.Hour) // until it is killed
	}
}

// beTraced prints the ids of the process and of another of its threads. It returns when the thread
// that how names, or both, are traced. With "stay" it does not return.
func beTraced(how string) error {
	other := make(chan int)
	for range 2 { // one of them may be the first thread
		go func() {
			goruntime.LockOSThread()
			other <- unix.Gettid()
			select {}
		}()
	}
	id := <-other
	if id == os.Getpid() {
		id = <-other
	}
	fmt.Println(os.Getpid(), id)
	want := map[string][]int{"leader": {os.Getpid()}, "both": {os.Getpid(), id}}[how]
	if want == nil {
		want = []int{id}
	}
	for _, id := range want {
		for {
			t, err := readThread(fmt.Sprintf("%d/task/%d", os.Getpid(), id))
			if err != nil {
				return err
			}
			if t.tracer != 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	fmt.Println("traced")
	if how == "stay" {
		time.Sleep(time.Hour)
	}
	return nil
}

// trace seizes threads by their ids and never waits for them.
func trace(args []string) error {
	goruntime.LockOSThread()
	for _, arg := range args {
		switch arg {
		case "stop":
			return unix.Kill(os.Getpid(), unix.SIGSTOP)
		case "child":
			return traceChild()
		}
		id, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(id), 0, unix.PTRACE_O_EXITKILL, 0,
			0); errno != 0 {
			return fmt.Errorf("seize %d: %w", id, errno)
		}
	}
	fmt.Println(os.Getpid())
	return nil
}

// traceChild starts a child, traces it and does not wait for its end.
func traceChild() error {
	child, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		return err
	}
	if _, err := unix.Wait4(child.Pid, nil, unix.WALL, nil); err != nil { // it stops before its first instruction
		return err
	}
	fmt.Println(child.Pid)
	return unix.PtraceCont(child.Pid, 0)
}

// helperProgram is a copy of the test program that commands can execute.
var helperProgram = sync.OnceValues(func() (string, error) {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer in.Close()
	name := filepath.Join(workspace, "helper")
	out, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	if cErr := out.Close(); err == nil {
		err = cErr
	}
	return name, err
})

// noPreemption keeps Go from preempting a helper with signals: a traced thread stops at every
// signal, and its tracer here never lets it continue.
const noPreemption = "asyncpreemptoff=1"

// helperCommand runs the tests' program as a helper.
func helperCommand(t *testing.T, env, how string) wire.Command {
	t.Helper()
	name, err := helperProgram()
	if err != nil {
		t.Fatal(err)
	}
	return wire.Command{Argv: []string{name}, Env: map[string]string{env: how, "GODEBUG": noPreemption}}
}

// line waits for the first line of a command's output.
func line(k *call) string {
	a := k.untilStarted()
	for !bytes.Contains(a.stdout.Bytes(), []byte("\n")) {
		if k.read(a) {
			k.t.Fatalf("the command ended with reply %s and stderr %q, want a line of output first", a.reply,
				a.stderr.String())
		}
	}
	text, _, _ := strings.Cut(a.stdout.String(), "\n")
	return text
}

// tracerOf starts a tracer as a separate command.
func tracerOf(t *testing.T, s *Server, how string) wire.Shell {
	t.Helper()
	cmd := helperCommand(t, tracerEnv, how)
	cmd.ID = "tracer." + strings.ReplaceAll(how, " ", ".")
	return start(t, s, cmd)
}

// keep traces a process from a separate command; how is that of beTraced.
func keep(t *testing.T, s *Server, how, ids string) {
	t.Helper()
	leader, other, _ := strings.Cut(ids, " ")
	switch how {
	case "leader":
		tracerOf(t, s, leader)
	case "both":
		tracerOf(t, s, leader)
		tracerOf(t, s, other)
	case "stopped tracer":
		tracerOf(t, s, other+" stop")
	case "traced tracer":
		id := tracerOf(t, s, other).ID
		pid := ""
		eventually(t, "the tracer is under way", func() bool {
			a, _ := output(t, s, wire.Output{ID: id})
			pid, _, _ = strings.Cut(a.data.String(), "\n")
			return pid != ""
		})
		tracerOf(t, s, pid)
	default:
		tracerOf(t, s, other)
	}
}

func TestTracersCannotForgeEnding(t *testing.T) {
	for _, how := range []string{"thread", "leader", "both", "stopped tracer", "traced tracer"} {
		t.Run(how, func(t *testing.T) {
			bothAtOnce(t, func(t *testing.T, s *Server) {
				t.Helper()
				cmd := helperCommand(t, tracedEnv, how)
				cmd.Timeout = bound / 2
				k := dial(t, s, wire.OpExec, cmd)
				keep(t, s, how, line(k))
				wantEnding(t, k.all().result(t), runtime.Exited, 7)
			})
		})
	}
}

func TestTracersCannotHideChild(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := helperCommand(t, tracedEnv, "thread")
		cmd.Argv = []string{"sh", "-c", cmd.Argv[0] + "; exit $?"}
		cmd.Timeout = bound / 2
		k := dial(t, s, wire.OpExec, cmd)
		keep(t, s, "thread", line(k))
		wantEnding(t, k.all().result(t), runtime.Exited, 7)
	})
}

func TestSessionTracersCannotForgeEnding(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		traced, tracing := openSession(t, s, wire.SessionStart{}), openSession(t, s, wire.SessionStart{})
		cmd := helperCommand(t, tracedEnv, "thread")
		k := traced.dial(wire.SessionExec{
			Text:    fmt.Sprintf("GODEBUG=%s %s=thread %s", noPreemption, tracedEnv, cmd.Argv[0]),
			Timeout: bound / 2,
		})
		_, other, _ := strings.Cut(line(k), " ")
		// The shell itself becomes the tracer and must be killed.
		tracing.dial(wire.SessionExec{Text: fmt.Sprintf("%s=%s exec %s", tracerEnv, other, cmd.Argv[0])})
		o := outcomeOf(t, k.all())
		if o.Ending != runtime.Exited || o.ExitCode != 7 || o.Ended || o.Unclean {
			t.Errorf("got %v, want exit 7 in a session that goes on", o)
		}
		if o := traced.exec(wire.SessionExec{Text: "echo on"}); o.out != "on\n" {
			t.Errorf(`the next command gave %v, want output "on\n"`, o)
		}
	})
}

// A command that ended before the stop keeps its ending while a tracer holds it.
func TestLateStopKeepsEnding(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := helperCommand(t, tracedEnv, "thread")
		cmd.ID = "traced"
		sh := start(t, s, cmd)
		ids := ""
		eventually(t, "it is under way", func() bool {
			a, _ := output(t, s, wire.Output{ID: sh.ID})
			text, _, whole := strings.Cut(a.data.String(), "\n")
			ids = text
			return whole
		})
		keep(t, s, "stopped tracer", ids)
		first, _, _ := strings.Cut(ids, " ")
		pid, err := strconv.Atoi(first)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is dead", func() bool {
			dead, _ := processEnded(pid)
			return dead
		})
		got := ask[wire.Shell](t, s, wire.OpKill, wire.Kill{ID: sh.ID})
		if got.Result == nil {
			t.Fatalf("kill = %+v, want a result", got)
		}
		wantEnding(t, *got.Result, runtime.Exited, 7)
	})
}

func TestKillSucceedsDespiteTracers(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := helperCommand(t, tracedEnv, "stay")
		k := dial(t, s, wire.OpExec, cmd)
		ids := line(k)
		_, other, _ := strings.Cut(ids, " ")
		tracerOf(t, s, other)
		a := &answer{}
		for !strings.Contains(a.stdout.String(), "traced\n") {
			if k.read(a) {
				t.Fatalf("the command ended with reply %s, want its output traced first", a.reply)
			}
		}
		if err := k.nc.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantEnding(t, k.all().result(t), runtime.SandboxLost, -1)
	})
}

// A parent may trace its child without waiting for it.
func TestParentsMayTraceTheirChildren(t *testing.T) {
	bothAtOnce(t, func(t *testing.T, s *Server) {
		t.Helper()
		k := dial(t, s, wire.OpExec, helperCommand(t, tracerEnv, "child"))
		pid, err := strconv.Atoi(line(k))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is dead", func() bool {
			dead, keepers := processEnded(pid)
			if len(keepers) > 0 {
				t.Fatalf("tracers %v hide the child's end, want none", keepers)
			}
			return dead
		})
		if th, err := readThread(strconv.Itoa(pid)); err != nil || th.tracer == 0 || th.tracer != th.parent {
			t.Errorf("the child is %+v, %v; want one that its parent traces", th, err)
		}
		k.nc.Close()
	})
	if dead, keepers := processEnded(os.Getpid()); dead || keepers != nil {
		t.Errorf("processEnded of this process = %v, %v; want false and no tracers", dead, keepers)
	}
}
