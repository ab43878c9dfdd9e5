package runtimetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// runaway is a way to try to survive the end of a command; see runaway.py.
type runaway struct {
	name    string
	timeout time.Duration // 0: the command exits and leaves other processes
	ending  runtime.Ending
}

func runaways() []runaway {
	some := testtime.Scale(time.Second)
	return []runaway{
		{"daemon", 0, runtime.Exited},
		{"daemon-keeps-output", 0, runtime.Exited},
		{"runners", 0, runtime.Exited},
		{"runners-waited-for", some, runtime.Timeout},
		{"bomb", some, runtime.Timeout},
		{"threads", some, runtime.Timeout},
		{"traced", some, runtime.Timeout},
		{"stopped", some, runtime.Timeout},
		{"headless", some, runtime.Timeout},
		{"subreaper", some, runtime.Timeout},
	}
}

// checkKill checks that when a command's result is reported, no process of it is alive on the host,
// and that another shell of the same sandbox keeps running.
func checkKill(t *testing.T, s *suite) {
	t.Helper()
	k := &killer{suite: s, uid: 20_000}
	k.newSandbox(t)
	for _, r := range runaways() {
		t.Run(r.name, func(t *testing.T) { k.ensureSandbox(t); k.checkRunaway(t, r) })
	}
	t.Run("cancelled", func(t *testing.T) { k.ensureSandbox(t); k.checkCancelled(t) })
	t.Run("traced", func(t *testing.T) { k.ensureSandbox(t); k.checkTracedCommand(t) })
	t.Run("thread traced", func(t *testing.T) { k.ensureSandbox(t); k.checkTracedThread(t) })
	t.Run("shell", func(t *testing.T) { k.ensureSandbox(t); k.checkShell(t) })
	t.Run("signals", func(t *testing.T) { k.ensureSandbox(t); k.checkSignals(t) })
	t.Run("output", func(t *testing.T) { k.ensureSandbox(t); checkOutputDescriptors(t, k.box) })
	t.Run("concurrent commands", func(t *testing.T) { k.ensureSandbox(t); checkConcurrentCommands(t, k.box) })
	t.Run("large output", func(t *testing.T) { checkLargeOutput(t, s) })
	t.Run("input", func(t *testing.T) { checkInputs(t, s) })
}

// killer is a sandbox in which commands are killed while a bystander shell runs. Each command has
// its own user, which identifies its processes whatever they do to their name, environment, session
// and parents.
type killer struct {
	suite *suite
	box   *box
	outer *testing.T
	uid   int
}

// newSandbox creates the sandbox, or a replacement.
func (k *killer) newSandbox(t *testing.T) {
	t.Helper()
	if k.outer == nil {
		k.outer = t
	}
	k.box = k.suite.newSandbox(k.outer, func(spec *runtime.Spec) {
		// Enough memory that the PID limit is reached first.
		spec.Limits.Pids, spec.Limits.MemoryBytes = runtime.GuestReservePids+200, 1<<30
		if k.suite.hidesProcesses() {
			spec.Limits.Pids, spec.Limits.MemoryBytes = runtime.GuestReservePids+100, 2<<30
		}
	})
	// It starts no process once it runs: a flood that is at the process limit for long would end it.
	cmd := bash("mkfifo /tmp/never && exec 3<>/tmp/never; while :; do echo tick; read -rt 0.2 <&3; done")
	cmd.ID = "bystander"
	if _, err := k.box.Start(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
}

// withNextUser returns cmd with a user that no earlier command had.
func (k *killer) withNextUser(cmd wire.Command) wire.Command {
	k.uid++
	cmd.User = strconv.Itoa(k.uid)
	return cmd
}

// replaceIfLost replaces a sandbox that ended with a flood, which a user-space kernel may do, and
// reports whether it did. The command's processes are gone either way.
func (k *killer) replaceIfLost(t *testing.T, err error) bool {
	t.Helper()
	if err == nil || !k.suite.hidesProcesses() || !errors.Is(err, guest.ErrLost) && !errdefs.IsUnavailable(err) {
		return false
	}
	t.Logf("sandbox ended with the flood: %v", err)
	k.replaceSandbox(t)
	return true
}

// checkRunaway runs a runaway until it ends. It repeats with a longer timeout if a busy machine did
// not let the runaway start.
func (k *killer) checkRunaway(t *testing.T, r runaway) {
	t.Helper()
	timeout := r.timeout
	if k.suite.hidesProcesses() {
		timeout *= 3 // a user-space kernel starts processes slowly
	}
	for !k.checkRunawayWithin(t, r, timeout) {
		t.Logf("runaway did not start in %s", timeout)
		timeout *= 3
	}
}

// checkRunawayWithin returns false if the runaway did not start within the timeout and a longer one
// may help.
func (k *killer) checkRunawayWithin(t *testing.T, r runaway, timeout time.Duration) bool {
	t.Helper()
	cmd := k.withNextUser(python("runaway", r.name))
	cmd.Timeout = timeout
	o, err := k.box.tryCommand(t.Context(), cmd, guest.IO{})
	if k.replaceIfLost(t, err) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(o.stdout, "ready") {
		if o.Ending == runtime.Timeout && timeout < Patience/2 {
			k.checkNothingAlive(t, o.Result)
			return false
		}
		t.Errorf("runaway: %v, want %q in its output", o, "ready")
	}
	// gVisor sends SIGHUP to an orphaned process group that stops itself.
	hungUp := k.suite.hidesProcesses() && r.name == "stopped" && o.Ending == runtime.Signalled && o.Signal == 1
	if o.Ending != r.ending && !hungUp {
		t.Errorf("ending = %v, want %s", o, r.ending)
	}
	k.checkNothingAlive(t, o.Result)
	return true
}

// checkNothingAlive checks that nothing of the last command is alive. A guest without cgroups may
// report that it failed to kill; then the sandbox is destroyed, as the scheduler would.
func (k *killer) checkNothingAlive(t *testing.T, res runtime.Result) {
	t.Helper()
	if res.Unclean {
		if k.suite.driver.Capabilities(k.suite.Class).Has(runtime.CapCommandCgroup) {
			t.Errorf("result = %+v, want a clean one: the guest kills by cgroup", res)
		}
		t.Logf("guest reported that it could not kill the command: %+v", res)
		k.replaceSandbox(t)
		return
	}
	k.box.checkDead(t, k.uid)
	k.waitBystander(t)
}

// ensureSandbox replaces the sandbox if a user-space kernel did not survive the previous check.
func (k *killer) ensureSandbox(t *testing.T) {
	t.Helper()
	if !k.suite.hidesProcesses() {
		return
	}
	select {
	case <-k.box.Done():
		t.Log("sandbox ended after the flood")
		k.replaceSandbox(t)
	default:
	}
}

// replaceSandbox destroys the sandbox, checks that nothing in it is alive, and creates another.
func (k *killer) replaceSandbox(t *testing.T) {
	t.Helper()
	k.box.destroy(t)
	k.box.checkDead(t, k.uid)
	k.newSandbox(t)
}

// waitBystander waits until the bystander shell has written more output.
func (k *killer) waitBystander(t *testing.T) {
	t.Helper()
	end := func() int64 {
		sh, err := k.box.Shell(t.Context(), "bystander")
		if err != nil {
			t.Fatal(err)
		}
		if sh.Result != nil {
			t.Fatalf("bystander shell ended with %+v, want it running", sh.Result)
		}
		return sh.Stdout.End
	}
	before := end()
	eventually(t, "the bystander shell has written more",
		func() (bool, string) { n := end(); return n > before, fmt.Sprint(n) })
}

// checkCancelled cancels a command.
func (k *killer) checkCancelled(t *testing.T) {
	t.Helper()
	r := k.box.startCommand(t, k.withNextUser(python("runaway", "runners-waited-for")), guest.IO{})
	r.waitOutput(t, "ready")
	r.cancel(errors.New("cancelled by the test"))
	<-r.ended
	if errors.Is(r.err, guest.ErrLost) {
		// On a very busy machine the guest may report too late, but it must still kill the command.
		t.Logf("ending not reported: %v", r.err)
		if k.suite.hidesProcesses() {
			k.replaceSandbox(t) // as the scheduler would: without cgroups, fast forks escape the guest's scan
			return
		}
		eventually(t, "no process of the command is alive", func() (bool, string) {
			left := slices.DeleteFunc(k.box.commandProcesses(t), func(p process) bool { return p.uid != k.uid || !p.alive })
			return len(left) == 0, fmt.Sprint(left)
		})
		return
	}
	if r.err != nil || r.res.Ending != runtime.Cancelled {
		t.Errorf("ending = %+v, %v; want cancelled", r.res, r.err)
	}
	k.checkNothingAlive(t, r.res)
}

// checkTracedCommand checks that a command can be killed while another command of the same user
// traces it. The tracer has to find the command first, which may take longer than the first
// timeout.
func (k *killer) checkTracedCommand(t *testing.T) {
	t.Helper()
	for _, timeout := range []time.Duration{testtime.Scale(time.Second), testtime.Scale(10 * time.Second)} {
		if k.checkTracedWithin(t, timeout) {
			return
		}
		t.Logf("command was not traced in %s", timeout)
		if k.suite.hidesProcesses() {
			return // gVisor does not allow this ptrace call
		}
	}
}

func (k *killer) checkTracedWithin(t *testing.T, timeout time.Duration) bool {
	t.Helper()
	keeper := k.withNextUser(python("runaway", "keeper"))
	r := k.box.startCommand(t, keeper, guest.IO{})
	r.waitOutput(t, "ready")
	o := k.box.runCommand(t, wire.Command{Argv: []string{"sleep", "4321"}, User: keeper.User, Timeout: timeout})
	if o.Ending != runtime.Timeout || o.Unclean {
		t.Errorf("ending = %v, want timeout", o)
	}
	traced := strings.Contains(r.out.String(), "kept")
	if !traced {
		r.cancel(errors.New("the command has ended"))
	}
	<-r.ended
	k.checkNothingAlive(t, o.Result)
	return traced
}

// checkTracedThread checks that a command's exit ends it although another command of the same user
// traces one of its threads and never waits for it.
func (k *killer) checkTracedThread(t *testing.T) {
	t.Helper()
	quitter := k.withNextUser(python("runaway", "quitter"))
	quitter.Timeout = Patience / 2
	r := k.box.startCommand(t, quitter, guest.IO{})
	r.waitOutput(t, ".")
	thread := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(r.out.String()), "ready "), ".")
	keeper := python("runaway", "thread-keeper", thread)
	keeper.User = quitter.User
	by := k.box.startCommand(t, keeper, guest.IO{})
	by.waitOutput(t, "\n")
	if said := by.out.String(); said != "kept\n" {
		if !k.suite.hidesProcesses() { // gVisor does not allow tracing another command
			t.Errorf("output of the tracer = %q, want %q", said, "kept\n")
		}
		by.cancel(errors.New("tracer traces nothing"))
		r.cancel(errors.New("command is not traced"))
		<-by.ended
		<-r.ended
		return
	}
	o := r.waitResult(t)
	if !o.exited(7) || o.Unclean {
		t.Errorf("ending = %v, unclean %v; want exit 7", o, o.Unclean)
		by.cancel(errors.New("command was not killed"))
	}
	<-by.ended
	k.checkNothingAlive(t, o.Result)
}

// checkShell checks a shell that is killed, and one that exits and leaves other processes.
func (k *killer) checkShell(t *testing.T) {
	t.Helper()
	for name, how := range map[string]string{"killed": "bomb", "ended": "daemon"} {
		cmd := k.withNextUser(python("runaway", how))
		cmd.ID = name
		if _, err := k.box.Start(t.Context(), cmd); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the shell has started", func() (bool, string) {
			sh, err := k.box.Shell(t.Context(), name)
			return err == nil && sh.Stdout.End > 0, fmt.Sprintf("%+v, %v", sh, err)
		})
		var sh wire.Shell
		var err error
		if name == "killed" {
			sh, err = k.box.Kill(t.Context(), wire.Kill{ID: name, Grace: 50 * time.Millisecond})
		}
		if err != nil && k.suite.hidesProcesses() {
			// A full user-space kernel may need longer than a kill waits. The shell then reports
			// its end later.
			t.Logf("kill did not finish in time: %v", err)
		}
		if name != "killed" || err != nil && k.suite.hidesProcesses() {
			eventually(t, "the shell ends", func() (bool, string) {
				sh, err = k.box.Shell(t.Context(), name)
				return err != nil || sh.Result != nil, fmt.Sprintf("%+v", sh)
			})
		}
		if k.replaceIfLost(t, err) {
			continue
		}
		if err != nil || sh.Result == nil {
			t.Fatalf("shell %s = %+v, %v; want a result and no error", name, sh, err)
		}
		if want := map[string]runtime.Ending{"killed": runtime.Cancelled,
			"ended": runtime.Exited}[name]; sh.Result.Ending != want {
			t.Errorf("ending = %+v, want %s", sh.Result, want)
		}
		k.checkNothingAlive(t, *sh.Result)
	}
}

// checkSignals checks signals to the first process only and to all processes of a command.
func (k *killer) checkSignals(t *testing.T) {
	t.Helper()
	for _, all := range []bool{false, true} {
		cmd := k.withNextUser(bash(`trap "echo got" USR1; trap "echo bye; exit 5" TERM; ` +
			`(trap "echo child" USR1; echo ready; while :; do sleep 0.05; done) & while :; do sleep 0.05; done`))
		cmd.ID = fmt.Sprintf("signalled-%v", all)
		r := k.box.startCommand(t, cmd, guest.IO{})
		r.waitOutput(t, "ready")
		send := func(sig wire.Signal) {
			if err := k.box.Signal(t.Context(), sig); err != nil {
				t.Fatal(err)
			}
		}
		send(wire.Signal{ID: cmd.ID, Number: 10, All: all})
		if all {
			r.waitOutput(t, "child")
		}
		r.waitOutput(t, "got")
		send(wire.Signal{ID: cmd.ID, Number: 15})
		if o := r.waitResult(t); !o.exited(5) || strings.Contains(o.stdout, "child") != all {
			t.Errorf("command after a signal (to all: %v): %v; want exit code 5, and %q in its output if to all",
				all, o, "child")
		}
		k.box.checkDead(t, k.uid)
	}
}

// largeOutputBytes is the size of a large output. An engine's stream is about ten times slower and
// gets less.
const (
	largeOutputBytes       = 2 << 30
	largeOutputBytesRemote = 256 << 20
)
