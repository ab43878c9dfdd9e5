package runtimetest

import (
	"context"
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
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// runaway is a way to try to outlive one's ending, see runaway.py.
type runaway struct {
	name    string
	timeout time.Duration // 0: it ends by itself, and leaves others
	ending  runtime.Ending
}

func runaways() []runaway {
	const some = time.Second
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

// checkKill: when an ending is told, nothing of the command is alive, as the host sees it; another shell of the same sandbox lives on.
func checkKill(t *testing.T, s *suite) {
	k := &killer{suite: s, uid: 20_000}
	k.newSandbox(t)
	for _, r := range runaways() {
		t.Run(r.name, func(t *testing.T) { k.ensureSandbox(t); k.checkRunaway(t, r) })
	}
	t.Run("cancelled", func(t *testing.T) { k.ensureSandbox(t); k.checkCancelled(t) })
	t.Run("kept by a tracer", func(t *testing.T) { k.ensureSandbox(t); k.checkTracedCommand(t) })
	t.Run("kept by a tracer of a thread", func(t *testing.T) { k.ensureSandbox(t); k.checkTracedThread(t) })
	t.Run("shell", func(t *testing.T) { k.ensureSandbox(t); k.checkShell(t) })
	t.Run("signals", func(t *testing.T) { k.ensureSandbox(t); k.checkSignals(t) })
	t.Run("output", func(t *testing.T) { k.ensureSandbox(t); checkOutputDescriptors(t, k.box) })
	t.Run("many at once", func(t *testing.T) { k.ensureSandbox(t); checkConcurrentCommands(t, k.box) })
	t.Run("flood of output", func(t *testing.T) { checkLargeOutput(t, s) })
	t.Run("input", func(t *testing.T) { checkInputs(t, s) })
}

// killer is a sandbox in which commands are killed while a bystander lives. Each command has a user of its own, so that what is left of it
// is known whatever it did to its name, environment, session and parents.
type killer struct {
	suite *suite
	box   *box
	outer *testing.T
	uid   int
}

// newSandbox makes the sandbox, or another when one had to be given up.
func (k *killer) newSandbox(t *testing.T) {
	t.Helper()
	if k.outer == nil {
		k.outer = t
	}
	k.box = k.suite.newSandbox(k.outer, func(spec *runtime.Spec) {
		// So much memory that the pids cap is met first.
		spec.Limits.Pids, spec.Limits.MemoryBytes = runtime.GuestReservePids+200, 1<<30
		if k.suite.hidesProcesses() {
			spec.Limits.Pids, spec.Limits.MemoryBytes = runtime.GuestReservePids+100, 2<<30
		}
	})
	cmd := bash("while :; do echo tick; sleep 0.2; done")
	cmd.ID = "bystander"
	if _, err := k.box.Start(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
}

// withNextUser gives the next command its user.
func (k *killer) withNextUser(cmd wire.Command) wire.Command {
	k.uid++
	cmd.User = strconv.Itoa(k.uid)
	return cmd
}

// replaceIfLost renews a sandbox that a flood took along, as one of a kernel in user space may go: nothing of the command lives on either way, and
// that is what is to be shown.
func (k *killer) replaceIfLost(t *testing.T, err error) bool {
	t.Helper()
	if err == nil || !k.suite.hidesProcesses() || !errors.Is(err, guest.ErrLost) && !errdefs.IsUnavailable(err) {
		return false
	}
	t.Logf("the sandbox went with the flood: %v", err)
	k.replaceSandbox(t)
	return true
}

// checkRunaway runs a runaway until its ending. One that a busy machine did not let get under way is begun again with more time.
func (k *killer) checkRunaway(t *testing.T, r runaway) {
	timeout := r.timeout
	if k.suite.hidesProcesses() {
		timeout *= 3 // a kernel in user space starts processes slowly
	}
	for !k.checkRunawayWithin(t, r, timeout) {
		t.Logf("it did not get under way in %s", timeout)
		timeout *= 3
	}
}

// checkRunawayWithin is false if the time was over before it was under way, and more may be enough.
func (k *killer) checkRunawayWithin(t *testing.T, r runaway, timeout time.Duration) bool {
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
		t.Errorf("it did not get under way: %v", o)
	}
	// gVisor hangs up a group that stops itself and has nobody who could continue it.
	hungUp := k.suite.hidesProcesses() && r.name == "stopped" && o.Ending == runtime.Signalled && o.Signal == 1
	if o.Ending != r.ending && !hungUp {
		t.Errorf("the ending is %v, want %s", o, r.ending)
	}
	k.checkNothingAlive(t, o.Result)
	return true
}

// checkNothingAlive checks that nothing of the last command is alive. A guest without cgroups may have to give up, if it says so: then the sandbox
// is destroyed, as whoever uses it has to.
func (k *killer) checkNothingAlive(t *testing.T, res runtime.Result) {
	t.Helper()
	if res.Unclean {
		if k.suite.driver.Capabilities(k.suite.Class).Has(runtime.CapCommandCgroup) {
			t.Errorf("the guest could not kill it: %+v", res)
		}
		t.Logf("the guest could not kill it and said so: %+v", res)
		k.replaceSandbox(t)
		return
	}
	k.box.checkDead(t, k.uid)
	k.waitBystander(t)
}

// ensureSandbox makes another sandbox if a kernel in user space did not outlive what was done last.
func (k *killer) ensureSandbox(t *testing.T) {
	t.Helper()
	if !k.suite.hidesProcesses() {
		return
	}
	select {
	case <-k.box.Done():
		t.Log("the sandbox went after the flood")
		k.replaceSandbox(t)
	default:
	}
}

// replaceSandbox destroys the sandbox, with which everything in it has to go, and makes another.
func (k *killer) replaceSandbox(t *testing.T) {
	t.Helper()
	k.box.destroy(t)
	k.box.checkDead(t, k.uid)
	k.newSandbox(t)
}

// waitBystander waits until the other shell has gone on.
func (k *killer) waitBystander(t *testing.T) {
	t.Helper()
	end := func() int64 {
		sh, err := k.box.Shell(t.Context(), "bystander")
		if err != nil {
			t.Fatal(err)
		}
		if sh.Result != nil {
			t.Fatalf("the other shell has ended: %+v", sh.Result)
		}
		return sh.Stdout.End
	}
	before := end()
	eventually(t, "the other shell goes on", func() (bool, string) { n := end(); return n > before, fmt.Sprint(n) })
}

// checkCancelled: a caller that gives up.
func (k *killer) checkCancelled(t *testing.T) {
	r := k.box.startCommand(t, k.withNextUser(python("runaway", "runners-waited-for")), guest.IO{})
	r.waitOutput(t, "ready")
	r.cancel(errors.New("given up"))
	<-r.ended
	if errors.Is(r.err, guest.ErrLost) {
		// On a machine as busy as that the guest may be too late to tell; it has to kill it all the same.
		t.Logf("the ending was not told: %v", r.err)
		if k.suite.hidesProcesses() {
			k.replaceSandbox(t) // as whoever uses it has to, where no cgroup kills what forks faster than one can look
			return
		}
		eventually(t, "nothing of it is alive", func() (bool, string) {
			left := slices.DeleteFunc(k.box.commandProcesses(t), func(p process) bool { return p.uid != k.uid || !p.alive })
			return len(left) == 0, fmt.Sprint(left)
		})
		return
	}
	if r.err != nil || r.res.Ending != runtime.Cancelled {
		t.Errorf("the ending is %+v, %v", r.res, r.err)
	}
	k.checkNothingAlive(t, r.res)
}

// checkTracedCommand: another command of the same user traces the command and does not let go of it when it is dead. It has to find the command first, for
// which a busy machine may need more than the first time-out.
func (k *killer) checkTracedCommand(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, 10 * time.Second} {
		if k.checkTracedWithin(t, timeout) {
			return
		}
		t.Logf("it was not traced in %s", timeout)
		if k.suite.hidesProcesses() {
			return // gVisor lets nobody trace it
		}
	}
}

func (k *killer) checkTracedWithin(t *testing.T, timeout time.Duration) bool {
	keeper := k.withNextUser(python("runaway", "keeper"))
	r := k.box.startCommand(t, keeper, guest.IO{})
	r.waitOutput(t, "ready")
	o := k.box.runCommand(t, wire.Command{Argv: []string{"sleep", "4321"}, User: keeper.User, Timeout: timeout})
	if o.Ending != runtime.Timeout || o.Unclean {
		t.Errorf("the ending is %v", o)
	}
	traced := strings.Contains(r.out.String(), "kept")
	if !traced {
		r.cancel(errors.New("the command has ended"))
	}
	<-r.ended
	k.checkNothingAlive(t, o.Result)
	return traced
}

// checkTracedThread: another command of the same user traces one thread of a command and never waits for it. The command's own exit is its ending.
func (k *killer) checkTracedThread(t *testing.T) {
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
		if !k.suite.hidesProcesses() { // gVisor lets nobody trace another command
			t.Errorf("the thread was not traced: %s", said)
		}
		by.cancel(errors.New("it traces nothing"))
		r.cancel(errors.New("nobody traces it"))
		<-by.ended
		<-r.ended
		return
	}
	o := r.waitResult(t)
	if !o.exited(7) || o.Unclean {
		t.Errorf("the ending is %v, unclean %v, want exit 7", o, o.Unclean)
		by.cancel(errors.New("it was not killed"))
	}
	<-by.ended
	k.checkNothingAlive(t, o.Result)
}

// checkShell: one that is killed, and one that ends by itself and leaves others.
func (k *killer) checkShell(t *testing.T) {
	for name, how := range map[string]string{"killed": "bomb", "ended": "daemon"} {
		cmd := k.withNextUser(python("runaway", how))
		cmd.ID = name
		if _, err := k.box.Start(t.Context(), cmd); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the shell is under way", func() (bool, string) {
			sh, err := k.box.Shell(t.Context(), name)
			return err == nil && sh.Stdout.End > 0, fmt.Sprintf("%+v, %v", sh, err)
		})
		var sh wire.Shell
		var err error
		if name == "killed" {
			sh, err = k.box.Kill(t.Context(), wire.Kill{ID: name, Grace: 50 * time.Millisecond})
		}
		if err != nil && k.suite.hidesProcesses() {
			// A kernel in user space that is full may need longer than a kill waits; the shell says its end when it is there.
			t.Logf("the kill was not over in its time: %v", err)
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
			t.Fatalf("shell %s: %+v, %v", name, sh, err)
		}
		if want := map[string]runtime.Ending{"killed": runtime.Cancelled, "ended": runtime.Exited}[name]; sh.Result.Ending != want {
			t.Errorf("the ending is %+v, want %s", sh.Result, want)
		}
		k.checkNothingAlive(t, *sh.Result)
	}
}

// checkSignals: to the leader alone, and to all.
func (k *killer) checkSignals(t *testing.T) {
	for _, all := range []bool{false, true} {
		cmd := k.withNextUser(bash(`trap "echo got" USR1; trap "echo bye; exit 5" TERM; (trap "echo child" USR1; echo ready; while :; do sleep 0.05; done) & while :; do sleep 0.05; done`))
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
			t.Errorf("signals to all (%v): %v", all, o)
		}
		k.box.checkDead(t, k.uid)
	}
}

// checkOutputDescriptors: what happens to a command's output descriptors does not decide when it ends.
func checkOutputDescriptors(t *testing.T, b *box) {
	for line, code := range map[string]int{
		"sleep 1000 & exit 3":                               3, // a child keeps them
		"exec >&- 2>&-; exit 4":                             4, // they are closed
		"exec >&- 2>&-; sleep 1; exit 5":                    5,
		"setsid sleep 1000 >/tmp/out 2>&1 & disown; exit 6": 6,
		"exec 1<>/proc/self/fd/1; echo x; exit 7":           7, // it has the other end of its pipe
		"echo out; echo err >&2; exit 8":                    8,
	} {
		o := b.sh(t, line)
		if !o.exited(code) {
			t.Errorf("%s: %v", line, o)
		}
		if code == 8 && (o.stdout != "out\n" || o.stderr != "err\n") {
			t.Errorf("%s: %v", line, o)
		}
	}
	cmd := bash("yes")
	cmd.OutputLimit = 100_000
	if o := b.runCommand(t, cmd); o.Ending != runtime.OutputLimit || len(o.stdout) != 100_000 {
		t.Errorf("a limit of 100000 bytes: %s with %d", o.Ending, len(o.stdout))
	}
}

// checkConcurrentCommands: commands that run side by side have each their own ending, output and death.
func checkConcurrentCommands(t *testing.T, b *box) {
	const uid = 30_000
	all := make([]*runningCommand, 50)
	for i := range all {
		cmd := bash(fmt.Sprintf("sleep 1000 & echo %d; exit %d", i, i))
		cmd.User = strconv.Itoa(uid)
		all[i] = b.startCommand(t, cmd, guest.IO{})
	}
	for i, r := range all {
		if o := r.waitResult(t); !o.exited(i) || o.stdout != fmt.Sprintf("%d\n", i) {
			t.Errorf("command %d of %d: %v", i, len(all), o)
		}
	}
	b.checkDead(t, uid)
}

// largeOutputBytes is what a command writes that writes a lot; through an engine's stream it takes ten times as long.
const (
	largeOutputBytes       = 2 << 30
	largeOutputBytesRemote = 256 << 20
)

// checkLargeOutput: every byte comes, and the guest's memory is the same all the while.
func checkLargeOutput(t *testing.T, s *suite) {
	b, size := s.newSandbox(t, nil), int64(largeOutputBytes)
	if !s.driver.Capabilities(s.Class).Has(runtime.CapLateBind) {
		size = largeOutputBytesRemote
	}
	before := b.mustPing(t).RSSBytes
	var count capped
	r := b.startCommand(t, bash(fmt.Sprintf("head -c %d /dev/zero; echo end >&2", size)), guest.IO{Stdout: &count})
	most, pings := before, 0
	began := time.Now()
	for going := true; going; {
		most = max(most, b.mustPing(t).RSSBytes)
		pings++
		select {
		case <-r.ended:
			going = false
		case <-time.After(100 * time.Millisecond):
		}
	}
	o := r.waitResult(t)
	t.Logf("%d MiB in %s, guest at most %d KiB resident (%d before, %d pings)", count.all()>>20, time.Since(began).Round(time.Millisecond), most>>10, before>>10, pings)
	if !o.exited(0) || count.all() != size {
		t.Errorf("%d of %d bytes came: %v", count.all(), size, o.Result)
	}
	if most > before+16<<20 {
		t.Errorf("the guest grew from %d to %d bytes", before, most)
	}
}

// endless gives input for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// silent gives nothing, for ever.
type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, context.Cause(s.ctx)
}

// checkInputs: commands that read for ever, from who gives for ever or not at all, and one that never reads.
func checkInputs(t *testing.T, s *suite) {
	b := s.newSandbox(t, nil)
	quiet, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, c := range map[string]struct {
		line string
		rw   guest.IO
	}{
		"reads for ever":          {"cat >/dev/null", guest.IO{Stdin: endless{}}},
		"waits for input":         {"cat", guest.IO{Stdin: silent{quiet}}},
		"never reads":             {"sleep 1000", guest.IO{Stdin: endless{}}},
		"reads in the background": {"exec 3<&0; cat <&3 >/dev/null & sleep 1000", guest.IO{Stdin: endless{}}},
	} {
		cmd := bash(c.line)
		cmd.Timeout = time.Second / 2
		o, err := b.tryCommand(t.Context(), cmd, c.rw)
		if err != nil || o.Ending != runtime.Timeout {
			t.Errorf("a command that %s: %v, %v", name, o, err)
		}
		b.checkDead(t, runtime.CommandUID)
		if rss := b.mustPing(t).RSSBytes; rss > 64<<20 {
			t.Errorf("the guest has %d bytes", rss)
		}
	}
	o, err := b.tryCommand(t.Context(), bash("exec <&-; exit 3"), guest.IO{Stdin: endless{}})
	if err != nil || !o.exited(3) {
		t.Errorf("a command that closes its input: %v, %v", o, err)
	}
	o, err = b.tryCommand(t.Context(), bash("cat; exit 4"), guest.IO{Stdin: strings.NewReader("some input")})
	if err != nil || !o.exited(4) || o.stdout != "some input" {
		t.Errorf("a command that gives back its input: %v, %v", o, err)
	}
	if o := b.sh(t, "cat; exit 5"); !o.exited(5) || o.stdout != "" {
		t.Errorf("a command that was given no input: %v", o)
	}
}
