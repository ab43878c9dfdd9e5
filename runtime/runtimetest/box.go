package runtimetest

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

//go:embed inside/*.py
var inside embed.FS

// baseLimits returns the default limits of the suite's sandboxes: enough for Python, small enough
// to fill quickly.
func baseLimits() runtime.Limits {
	return runtime.Limits{
		MemoryBytes: 192 << 20, CPUs: 2, Pids: runtime.GuestReservePids + 96, TmpBytes: 8 << 20, ScratchBytes: 6 << 20,
		OpenFiles: 2048,
	}
}

// box is a sandbox with its guest client and the host's view of it.
type box struct {
	runtime.Sandbox
	*guest.Client
	suite *suite
	spec  runtime.Spec
	host  hostView
}

func (s *suite) spec(change func(*runtime.Spec)) runtime.Spec {
	spec := runtime.Spec{
		Class: s.Class, UserNamespace: s.UserNamespace,
		ID: "t" + randomName(), Owner: s.owner, Template: "suite", Build: "test", Image: s.Image, Entrypoint: s.Entrypoint,
		Limits: s.defaultLimits(),
	}
	if change != nil {
		change(&spec)
	}
	return spec
}

// newSandbox creates a sandbox. At the end of the test it removes the sandbox and checks that
// nothing of it is left.
func (s *suite) newSandbox(t *testing.T, change func(*runtime.Spec)) *box {
	t.Helper()
	spec := s.spec(change)
	b := &box{suite: s, spec: spec}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := s.remove(ctx, t, spec.ID); err != nil {
			t.Errorf("remove sandbox %s: %v", spec.ID, err)
		}
		b.checkRemoved(t)
		_ = b.host.namespaceFile.Close() // nil if findOnHost failed
	})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	sandbox, err := s.driver.Create(ctx, spec)
	if err != nil {
		t.Fatalf("create sandbox: %v", err)
	}
	b.attach(sandbox)
	b.host = b.findOnHost(t)
	return b
}

// retryUnavailable calls remove until it returns anything but Unavailable, as the scheduler does:
// an engine may not finish within the driver's timeout.
func retryUnavailable(ctx context.Context, t *testing.T, remove func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := remove(ctx)
		if !errdefs.IsUnavailable(err) {
			return err
		}
		t.Logf("not removed yet: %v", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (s *suite) remove(ctx context.Context, t *testing.T, id string) error {
	t.Helper()
	return retryUnavailable(ctx, t, func(ctx context.Context) error { return s.driver.Remove(ctx, id) })
}

// destroy destroys the sandbox.
func (b *box) destroy(t *testing.T) {
	t.Helper()
	if err := retryUnavailable(t.Context(), t, b.Destroy); err != nil {
		t.Fatalf("destroy: %v", err)
	}
}

func (b *box) attach(s runtime.Sandbox) { b.Sandbox, b.Client = s, guest.New(s) }

// outcome is the result and the output of an ended command.
type outcome struct {
	runtime.Result
	stdout, stderr string
}

func (o outcome) String() string {
	return fmt.Sprintf("%s (code %d, signal %d, %s) stdout %.2000q stderr %.2000q", o.Ending, o.ExitCode, o.Signal,
		o.Detail, o.stdout, o.stderr)
}

// exited reports whether the command exited normally with the given code.
func (o outcome) exited(code int) bool { return o.Ending == runtime.Exited && o.ExitCode == code }

// tryCommand runs a command and returns the client's error, if any. It collects output that rw does
// not take.
func (b *box) tryCommand(ctx context.Context, cmd wire.Command, rw guest.IO) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience+cmd.Timeout, errors.New("command exceeded the suite's patience"))
	defer cancel()
	var stdout, stderr capped
	if rw.Stdout == nil {
		rw.Stdout = &stdout
	}
	if rw.Stderr == nil {
		rw.Stderr = &stderr
	}
	res, err := b.Exec(ctx, cmd, rw)
	return outcome{res, stdout.String(), stderr.String()}, err
}

// runCommand runs a command and fails the test if the guest did not report a result.
func (b *box) runCommand(t *testing.T, cmd wire.Command) outcome {
	t.Helper()
	o, err := b.tryCommand(t.Context(), cmd, guest.IO{})
	if err != nil {
		t.Fatalf("run %.80q: %v", cmd.Argv, err)
	}
	return o
}

// bash returns the command that runs a line of bash.
func bash(line string) wire.Command { return wire.Command{Argv: []string{"bash", "-c", line}} }

// sh runs a line of bash.
func (b *box) sh(t *testing.T, line string) outcome {
	t.Helper()
	return b.runCommand(t, bash(line))
}

// mustOutput runs a line of bash, which must exit with 0, and returns its trimmed standard output.
func (b *box) mustOutput(t *testing.T, line string) string {
	t.Helper()
	o := b.sh(t, line)
	if !o.exited(0) {
		t.Fatalf("%s: %v, want exit code 0", line, o)
	}
	return strings.TrimSpace(o.stdout)
}

// python returns the command that runs one of the embedded programs in inside/.
func python(program string, args ...string) wire.Command {
	var text []byte
	for _, name := range []string{"lib", program} {
		part, err := inside.ReadFile("inside/" + name + ".py")
		if err != nil {
			panic(err) // no such program
		}
		text = append(append(text, part...), '\n')
	}
	return wire.Command{Argv: append([]string{"python3", "-c", string(text)}, args...)}
}

// runProgram runs one of the embedded programs, which must exit with 0, and decodes its JSON
// output.
func (b *box) runProgram(t *testing.T, into any, program string, args ...string) {
	t.Helper()
	o := b.runCommand(t, python(program, args...))
	if !o.exited(0) {
		t.Fatalf("%s.py %q: %v, want exit code 0", program, args, o)
	}
	if err := json.Unmarshal([]byte(o.stdout), into); err != nil {
		t.Fatalf("%s.py: decode output %.400q: %v", program, o.stdout, err)
	}
}

// mustPing pings the guest and returns its answer.
func (b *box) mustPing(t *testing.T) wire.Pong {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	pong, err := b.Ping(ctx)
	if err != nil {
		t.Fatalf("ping guest: %v", err)
	}
	return pong
}

// runningCommand is a command that runs while the test does something else.
type runningCommand struct {
	cancel context.CancelCauseFunc
	ended  chan struct{}
	out    capped
	res    runtime.Result
	err    error
}

// startCommand starts a command and cancels it at the end of the test if it still runs.
func (b *box) startCommand(t *testing.T, cmd wire.Command, rw guest.IO) *runningCommand {
	t.Helper()
	r := &runningCommand{ended: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(t.Context())
	r.cancel = cancel
	if rw.Stdout == nil {
		rw.Stdout = &r.out
	}
	go func() {
		defer close(r.ended)
		r.res, r.err = b.Exec(ctx, cmd, rw)
	}()
	t.Cleanup(func() {
		cancel(errors.New("test ended"))
		<-r.ended
	})
	return r
}

// waitResult waits for the command to end.
func (r *runningCommand) waitResult(t *testing.T) outcome {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(Patience):
		t.Fatalf("command still runs after %s, want it ended", Patience)
	}
	if r.err != nil {
		t.Fatalf("command lost: %v", r.err)
	}
	return outcome{Result: r.res, stdout: r.out.String()}
}

// waitOutput waits until the command's output contains what.
func (r *runningCommand) waitOutput(t *testing.T, what string) {
	t.Helper()
	eventually(t, fmt.Sprintf("command output contains %q", what), func() (bool, string) {
		select {
		case <-r.ended:
			if !strings.Contains(r.out.String(), what) {
				t.Fatalf("command ended with %+v, %v; output %.400q, want %q in it", r.res, r.err, r.out.String(), what)
			}
			return true, ""
		default:
			return strings.Contains(r.out.String(), what), fmt.Sprintf("output %.400q", r.out.String())
		}
	})
}

// eventually polls until the condition holds. After [Patience] it fails the test with what it saw
// last.
func eventually(t *testing.T, what string, holds func() (ok bool, saw string)) {
	t.Helper()
	end := time.Now().Add(Patience)
	for {
		ok, saw := holds()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("timed out waiting until %s; last saw %s", what, saw)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// capped keeps the first cappedBytes written to it and counts all bytes. It is safe for concurrent
// use.
type capped struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	count int64
}

const cappedBytes = 1 << 20

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += int64(len(p))
	c.buf.Write(p[:min(len(p), max(0, cappedBytes-c.buf.Len()))])
	return len(p), nil
}

func (c *capped) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

func (c *capped) all() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}
