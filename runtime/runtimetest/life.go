package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// restartDriver closes the driver and opens another on the same state, as the next orchestrator
// process does.
func (s *suite) restartDriver(t *testing.T) {
	t.Helper()
	if err := s.driver.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	s.driver = s.Open(t, s.state)
}

// readopt adopts the sandbox with the current driver.
func (b *box) readopt(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	sandbox, err := b.suite.driver.Adopt(ctx, b.spec.ID)
	if err != nil {
		t.Fatalf("adopt: %v", err)
	}
	b.attach(sandbox)
}

// checkAdopt checks that sandboxes, shells, their output and workspaces survive a restart of the
// orchestrator.
func checkAdopt(t *testing.T, s *suite) {
	t.Helper()
	b, dir := s.newSandbox(t, nil), ""
	binds := s.driver.Capabilities(s.Class).Has(runtime.CapLateBind)
	if binds {
		dir = workspace(t)
		b.bind(t, dir, false)
	}
	if err := b.Claim(t.Context(), wire.Claim{Lease: "lease", Env: map[string]string{"WHO": "lease"}}); err != nil {
		t.Fatal(err)
	}
	cmd := bash("i=0; while :; do echo $((i++)); sleep 0.02; done")
	cmd.ID = "counter"
	if _, err := b.Start(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	b.setEgress(t, wire.Egress{On: true})
	var seen strings.Builder
	b.readOutput(t, &seen, 5)
	uptime := b.mustPing(t).UptimeMS
	for range 2 {
		for _, held := range []*box{b, s.plain} {
			if err := held.Release(); err != nil {
				t.Fatal(err)
			}
		}
		s.restartDriver(t)
		b.readopt(t)
		s.plain.readopt(t)
		b.readOutput(t, &seen, 5)
		b.checkProxyRoundTrip(t)
	}
	for i, line := range strings.Fields(seen.String()) {
		if line != fmt.Sprint(i) {
			t.Fatalf("line %d of the shell = %q, want %d", i, line, i)
		}
	}
	if pong := b.mustPing(t); pong.UptimeMS < uptime || !pong.Claimed || pong.Shells != 1 {
		t.Errorf("pong = %+v, want the same guest, claimed, with one shell", pong)
	}
	if got := b.mustOutput(t, "echo $WHO"); got != "lease" {
		t.Errorf("lease environment: WHO = %q, want %q", got, "lease")
	}
	checkRefusedAdopts(t, b)
	if sh, err := b.Kill(t.Context(), wire.Kill{ID: "counter"}); err != nil || sh.Result == nil ||
		sh.Result.Ending != runtime.Cancelled {
		t.Errorf("kill shell: %+v, %v; want cancelled", sh, err)
	}
	b.checkDead(t, runtime.CommandUID)
	checkPidsEnding(t, s, b)
	if binds {
		if got := b.mustOutput(t, "cat file"); got != "content" {
			t.Errorf("workspace file = %q, want %q", got, "content")
		}
		b.unbind(t)
		b.bind(t, dir, true)
	}
}

// checkPidsEnding checks that a command that reaches the process limit ends with Pids, if the
// driver supports that ending.
func checkPidsEnding(t *testing.T, s *suite, b *box) {
	t.Helper()
	o := b.runCommand(t, python("flood", "pids"))
	if wanted := s.driver.Capabilities(s.Class).Has(runtime.CapEndingPids); wanted != (o.Ending == runtime.Pids) {
		t.Errorf("ending at the PID limit: %v; want %s: %v", o, runtime.Pids, wanted)
	}
}

// checkRefusedAdopts checks that a sandbox this driver already holds and an unknown one cannot be
// adopted.
func checkRefusedAdopts(t *testing.T, b *box) {
	t.Helper()
	if _, err := b.suite.driver.Adopt(t.Context(), b.spec.ID); err == nil {
		t.Error("second Adopt by the same process succeeded, want error")
	}
	if _, err := b.suite.driver.Adopt(t.Context(), "t"+randomName()); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt of an unknown sandbox: %v, want NotFound", err)
	}
}

// readOutput reads the counter's output from where the last call stopped, for the given number of
// lines.
func (b *box) readOutput(t *testing.T, seen *strings.Builder, lines int) {
	t.Helper()
	want := strings.Count(seen.String(), "\n") + lines
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for strings.Count(seen.String(), "\n") < want {
		at := int64(seen.Len())
		_, err := b.Output(ctx, wire.Output{ID: "counter", Stream: wire.Stdout, Offset: at, Wait: 5 * time.Second},
			func(offset int64, data []byte) error {
				if offset != int64(seen.Len()) {
					return fmt.Errorf("bytes from %d to %d are missing", seen.Len(), offset)
				}
				seen.Write(data)
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func checkNoAdopt(t *testing.T, s *suite) {
	t.Helper()
	if _, err := s.driver.Adopt(t.Context(), s.plain.spec.ID); err == nil {
		t.Error("Adopt succeeded, want error")
	}
}

// checkOrphanTimeout checks that an idle sandbox lives as long as a host is connected, and shuts
// itself down after the orphan timeout without one.
func checkOrphanTimeout(t *testing.T, s *suite) {
	t.Helper()
	alone := testtime.Scale(5 * time.Second) // long enough for a host to connect on a busy machine
	b := s.newSandbox(t, func(spec *runtime.Spec) { spec.OrphanTimeout = alone })
	select {
	case <-b.Done():
		t.Error("sandbox ended although its host is connected, want it running")
	case <-time.After(alone + alone/4):
	}
	b.mustPing(t)
	cmd := python("runaway", "daemon")
	cmd.ID = "daemon"
	if _, err := b.Start(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(),
		wire.Command{ID: "busy", Argv: []string{"bash", "-c",
			"trap '' TERM INT HUP; while :; do echo busy; done"}}); err != nil {
		t.Fatal(err)
	}
	for _, held := range []*box{b, s.plain} {
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.driver.Close(); err != nil {
		t.Error(err)
	}
	began := time.Now()
	eventually(t, "the sandbox has ended", func() (bool, string) {
		left := slices.DeleteFunc(b.hostProcesses(t), func(pid int) bool { return !isAlive(pid) })
		return len(left) == 0, fmt.Sprint(left)
	})
	t.Logf("sandbox ended %s after its host, with an orphan timeout of %s", time.Since(began).Round(time.Millisecond),
		alone)
	s.driver = s.Open(t, s.state)
	s.plain.readopt(t)
	eventually(t, "Adopt of the ended sandbox returns NotFound", func() (bool, string) {
		again, err := s.driver.Adopt(t.Context(), b.spec.ID)
		if err == nil {
			err = again.Release()
		}
		return errdefs.IsNotFound(err), fmt.Sprint(err)
	})
	if err := s.remove(t.Context(), t, b.spec.ID); err != nil {
		t.Error(err)
	}
	b.checkRemoved(t)
}

// checkNothingLeft checks that removal leaves nothing, whatever state a sandbox is in and however
// often it is removed.
func checkNothingLeft(t *testing.T, s *suite) {
	t.Helper()
	t.Run("destroyed twice", func(t *testing.T) { checkDestroyTwice(t, s.newBusySandbox(t)) })
	t.Run("init killed", func(t *testing.T) { checkInitKilled(t, s.newBusySandbox(t)) })
	t.Run("ended by its guest", func(t *testing.T) {
		b := s.newBusySandbox(t)
		if err := b.End(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.waitDone(t)
		b.destroy(t)
		b.checkRemoved(t)
	})
	t.Run("released", func(t *testing.T) {
		b := s.newBusySandbox(t)
		if err := b.Release(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.remove(t.Context(), t, b.spec.ID); err != nil {
				t.Fatal(err)
			}
		}
		b.checkRemoved(t)
	})
	t.Run("create cancelled", func(t *testing.T) { checkCancelledCreate(t, s) })
}

// waitDone waits until the sandbox's end is reported.
func (b *box) waitDone(t *testing.T) {
	t.Helper()
	select {
	case <-b.Done():
	case <-time.After(Patience):
		t.Fatalf("end of the sandbox was not reported within %s, want it reported", Patience)
	}
}

// waitLost waits until a command was lost with its sandbox. It must not report a result.
func (r *runningCommand) waitLost(t *testing.T) {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(Patience):
		t.Fatalf("end of the command was not reported within %s, want it reported", Patience)
	}
	if r.err == nil || !errors.Is(r.err, guest.ErrLost) && !errdefs.IsUnavailable(r.err) {
		t.Errorf("command of the lost sandbox: %+v, %v; want ErrLost", r.res, r.err)
	}
}

func checkDestroyTwice(t *testing.T, b *box) {
	t.Helper()
	r := b.startCommand(t, bash("echo here; sleep 1000"), guest.IO{})
	r.waitOutput(t, "here")
	for range 2 {
		b.destroy(t)
	}
	b.checkRemoved(t)
	b.waitDone(t)
	r.waitLost(t)
	if _, err := b.Ping(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("Ping after Destroy: %v, want Unavailable", err)
	}
	if _, err := b.suite.driver.Adopt(t.Context(), b.spec.ID); !errdefs.IsNotFound(err) {
		t.Errorf("Adopt after Destroy: %v, want NotFound", err)
	}
}

func checkInitKilled(t *testing.T, b *box) {
	t.Helper()
	r := b.startCommand(t, bash("echo here; sleep 1000"), guest.IO{})
	r.waitOutput(t, "here")
	if err := syscall.Kill(b.host.init, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.waitDone(t)
	r.waitLost(t)
	eventually(t, "the sandbox is listed as not running", func() (bool, string) {
		found, err := b.suite.driver.List(t.Context(), b.spec.Owner)
		i := slices.IndexFunc(found, func(f runtime.Found) bool { return f.ID == b.spec.ID })
		return err == nil && i >= 0 && !found[i].Running, fmt.Sprintf("%+v, %v", found, err)
	})
	b.destroy(t)
	b.checkRemoved(t)
}

// newBusySandbox creates a sandbox with several kinds of commands running in it.
func (s *suite) newBusySandbox(t *testing.T) *box {
	t.Helper()
	b := s.newSandbox(t, func(spec *runtime.Spec) {
		if !s.hidesProcesses() {
			// Leave room for all commands: where the PID limit has no reserve for the guest, the
			// guest may fail instead.
			spec.Limits.Pids, spec.Limits.MemoryBytes = spec.Limits.Pids+300, 1<<30
		}
	})
	if s.driver.Capabilities(s.Class).Has(runtime.CapLateBind) {
		b.bind(t, workspace(t), false)
	}
	for name, cmd := range map[string]wire.Command{
		"stopped": python("runaway", "stopped"), "writer": bash("while :; do echo x >>/workspace/log; sleep 0.01; done"),
		"runners": python("runaway", "runners-waited-for"),
	} {
		cmd.ID = name
		if _, err := b.Start(t.Context(), cmd); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// checkCancelledCreate checks that a Create cancelled at any moment leaves nothing, or something
// that Remove finds.
func checkCancelledCreate(t *testing.T, s *suite) {
	t.Helper()
	for after := time.Millisecond; after < time.Second; after = after*2 + after/2 {
		spec := s.spec(nil)
		ctx, cancel := context.WithTimeoutCause(t.Context(), after, errors.New("cancelled by the test"))
		sandbox, err := s.driver.Create(ctx, spec)
		cancel()
		clean, stop := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
		if err == nil {
			err = retryUnavailable(clean, t, sandbox.Destroy)
		} else {
			err = s.remove(clean, t, spec.ID)
		}
		stop()
		if err != nil {
			t.Errorf("remove after Create was cancelled at %s: %v", after, err)
		}
		s.checkNoTrace(t, spec.ID)
	}
}

// checkRefusals checks that invalid requests fail with an error class and leave nothing half-made.
func (s *suite) checkRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*runtime.Spec)
		is     func(error) bool
		names  string
	}{
		"invalid id":   {func(p *runtime.Spec) { p.ID = "../../x" }, errdefs.IsInvalidArgument, "id"},
		"duplicate id": {func(p *runtime.Spec) { p.ID = s.plain.spec.ID }, errdefs.IsAlreadyExists, s.plain.spec.ID},
		"no owner":     {func(p *runtime.Spec) { p.Owner = "" }, errdefs.IsInvalidArgument, "owner"},
		"too little memory": {func(p *runtime.Spec) { p.Limits.MemoryBytes = 1 << 20 }, errdefs.IsInvalidArgument,
			"memory_bytes"},
		"too few pids":  {func(p *runtime.Spec) { p.Limits.Pids = 1 }, errdefs.IsInvalidArgument, "pids"},
		"negative CPUs": {func(p *runtime.Spec) { p.Limits.CPUs = -1 }, errdefs.IsInvalidArgument, "cpus"},
		"no image":      {func(p *runtime.Spec) { p.Image = runtime.Image{} }, errdefs.IsInvalidArgument, "image"},
		"unknown image": {func(p *runtime.Spec) {
			p.Image = runtime.Image{Ref: "none", ID: "sha256:" + strings.Repeat("0", 64), Root: "/no/such/root"}
		}, errdefs.IsNotFound, "none"},
		"missing entrypoint": {func(p *runtime.Spec) { p.Entrypoint = []string{"/no/such/program"} }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := s.spec(c.change)
			ctx, cancel := context.WithTimeout(t.Context(), Patience)
			defer cancel()
			sandbox, err := s.driver.Create(ctx, spec)
			if err == nil {
				t.Error("Create succeeded, want error")
				if err := retryUnavailable(ctx, t, sandbox.Destroy); err != nil {
					t.Error(err)
				}
			} else if c.is != nil && !c.is(err) || !strings.Contains(err.Error(), c.names) {
				t.Errorf("Create: %v, want %q in it and the right class", err, c.names)
			}
			if runtime.ValidID(spec.ID) && spec.ID != s.plain.spec.ID {
				s.checkNoTrace(t, spec.ID)
			}
		})
	}
	s.plain.mustPing(t)
}
