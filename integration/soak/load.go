//go:build integration

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// callTime is the timeout of one call of the load, far more than any needs.
const callTime = 2 * time.Minute

// load is the callers' work and its outcomes.
type load struct {
	client *client.Client
	base   string // workspace shared by overlay leases

	calls, leases atomic.Int64 // still to be started
	// disturbed counts started disturbances, calm finished ones.
	disturbed, calm atomic.Int64

	mu   sync.Mutex
	came map[string]int // outcome → count
	bad  []string
}

// Outcomes besides the endings.
const (
	asExpected = "as expected"
	lost       = "sandbox_lost, typed"
	refused    = "refused, typed"
)

// job is one action of a caller. It returns what went wrong.
type job func(ctx context.Context, n int64) error

// lostError reports that the sandbox was lost and the answer said so.
type lostError struct{ detail string }

func (e *lostError) Error() string { return "sandbox_lost: " + e.detail }

// expiredError reports that the lease expired and the answer said so.
type expiredError struct{ detail string }

func (e *expiredError) Error() string { return "cancelled: " + e.detail }

// run makes the load with the given number of concurrent callers and returns when all is done.
func (l *load) run(ctx context.Context, callers int) {
	var g sync.WaitGroup
	for range callers {
		g.Go(func() {
			for ctx.Err() == nil {
				n, do := l.next()
				if do == nil {
					return
				}
				l.do(ctx, n, do)
			}
		})
	}
	g.Wait()
}

// left returns how many calls and leases are still to be started.
func (l *load) left() int64 { return max(0, l.calls.Load()) + max(0, l.leases.Load()) }

// next returns a lease after every ten calls, then what is left.
func (l *load) next() (int64, job) {
	if n := l.calls.Add(-1); n >= 0 {
		if n%10 == 0 {
			if m := l.leases.Add(-1); m >= 0 {
				l.calls.Add(1)
				return m, l.lease
			}
		}
		return n, l.oneShot
	}
	if n := l.leases.Add(-1); n >= 0 {
		return n, l.lease
	}
	return 0, nil
}

// do runs one job. A job that was refused because the service was down is retried after the
// disturbance, as a caller would.
func (l *load) do(ctx context.Context, n int64, do job) {
	for !l.once(ctx, n, do) {
		for l.disturbed.Load() > l.calm.Load() && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// once returns false if the job was refused because of a disturbance.
func (l *load) once(ctx context.Context, n int64, do job) bool {
	before := l.calm.Load()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := do(ctx, n)
	// A call is disturbed if it ran at any moment of a disturbance.
	disturbed := l.disturbed.Load() > before
	l.mu.Lock()
	defer l.mu.Unlock()
	switch gone, ok := errors.AsType[*lostError](err); {
	case err == nil:
		l.came[asExpected]++
	case disturbed && ok && gone != nil:
		l.came[lost]++
	case disturbed && (errors.Is(err, client.ErrNoServer) || errdefs.IsUnavailable(err) || errdefs.IsNotFound(err)):
		l.came[refused]++
		return false
	default:
		l.bad = append(l.bad, fmt.Sprintf("%v (disturbed: %v)", err, disturbed))
	}
	return true
}

// command is one of the mix, with its expected outcome.
type command struct {
	exec   v1.Exec
	ending string
	code   int
	stdout int64 // bytes, -1 for any
	cancel time.Duration
}

// pick returns the same command for the same number in every run.
func pick(n int64) command {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	switch p := r.IntN(100); {
	case p < 50:
		return command{exec: v1.Exec{Argv: []string{"/bin/true"}}, ending: "exited"}
	case p < 60:
		return command{exec: v1.Exec{Command: "head -c 65536 /dev/zero | tr '\\0' x"}, ending: "exited", stdout: 65536}
	case p < 68:
		return command{exec: v1.Exec{Command: "echo no >&2; exit 3"}, ending: "exited", code: 3}
	case p < 74: // children that leave their session and ignore signals
		stubborn := "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM HUP; sleep 600' &) ; sleep 600"
		return command{exec: v1.Exec{Command: stubborn, TimeoutMS: 300}, ending: "timeout", code: -1}
	case p < 79:
		return command{exec: v1.Exec{Command: "exec python3 -c 'x = bytearray(1 << 30)'"}, ending: "oom", code: -1}
	case p < 83: // not a shell, which retries fork for 15 seconds
		forks := "exec python3 -c 'import os, time; [os.fork() or time.sleep(60) for _ in range(400)]'"
		return command{exec: v1.Exec{Command: forks}, ending: "pids", code: -1}
	case p < 88:
		return command{
			exec:   v1.Exec{Command: "yes", MaxOutputBytes: 1 << 16, StopAtOutput: true},
			ending: "output_limit",
			code:   -1,
			stdout: -1,
		}
	case p < 93:
		return command{exec: v1.Exec{Command: "sleep 600 & sleep 600"}, cancel: 200 * time.Millisecond}
	case p < 96: // a tree of orphans
		return command{
			exec: v1.Exec{Command: "for i in 1 2 3 4 5 6 7 8; do (setsid sleep 600 >/dev/null 2>&1 &); done"}, ending: "exited",
		}
	}
	return command{
		exec: v1.Exec{Argv: []string{"python3", "-c", "import json; print(json.dumps([1]))"}}, ending: "exited", stdout: 4,
	}
}

// judge checks that a result is the command's expected outcome.
func (c command) judge(r v1.ExecResult, err error) error {
	switch {
	case c.cancel > 0 && err != nil && errors.Is(err, context.DeadlineExceeded):
		return nil
	case err != nil:
		return fmt.Errorf("%q: %w", c.text(), err)
	case r.Ending == "sandbox_lost":
		return &lostError{r.Detail}
	case r.Ending == "cancelled" && strings.HasSuffix(r.Detail, ": expired"):
		return &expiredError{r.Detail}
	case c.ending == "pids" && r.Ending == "exited", c.ending == "oom" && r.Ending == "exited" && r.ExitCode != 0:
		return nil // the shell or Python coped with the limit
	case r.Ending != c.ending || c.ending == "exited" && r.ExitCode != c.code:
		return fmt.Errorf("%q ended %s (%d), not %s (%d): %s %s",
			c.text(), r.Ending, r.ExitCode, c.ending, c.code, r.Detail, r.Stderr)
	case c.stdout >= 0 && c.ending == "exited" && r.StdoutBytes != c.stdout:
		return fmt.Errorf("%q wrote %d bytes, not %d", c.text(), r.StdoutBytes, c.stdout)
	}
	return nil
}

func (c command) text() string { return c.exec.Command + strings.Join(c.exec.Argv, " ") }

// bound sets the timeout of a call that is to be cancelled.
func (c command) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.cancel == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cancel)
}

// name adds the job to an error.
func name(err *error, job string, n int64) {
	if *err != nil {
		*err = fmt.Errorf("%s %d: %w", job, n, *err)
	}
}

// oneShot runs one command in a separate sandbox.
func (l *load) oneShot(ctx context.Context, n int64) (err error) {
	defer name(&err, "call", n)
	c := pick(n)
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, err := l.client.Run(ctx, v1.Run{Exec: c.exec, WaitMS: time.Minute.Milliseconds()})
	return c.judge(r, err)
}

// lease uses a sandbox in all supported ways and ends it in one of the supported ways.
func (l *load) lease(ctx context.Context, n int64) (err error) {
	defer name(&err, "lease", n)
	r := v1.SandboxRequest{
		TTLMS: time.Minute.Milliseconds(), WaitMS: time.Minute.Milliseconds(), Env: map[string]string{"N": fmt.Sprint(n)},
	}
	switch n % 3 {
	case 0:
		r.Workspace = fmt.Sprintf("soak-%d", n)
		if _, err := l.client.Workspaces.Create(ctx, r.Workspace); err != nil && !errdefs.IsAlreadyExists(err) {
			return err
		}
		defer func() { err = errors.Join(err, l.deleteWorkspace(ctx, r.Workspace)) }()
	case 1:
		r.Workspace, r.Mode = l.base, "overlay"
	}
	if n%5 == 4 {
		r.TTLMS = 3000 // expires
	}
	b, err := l.client.CreateSandbox(ctx, r)
	if r.TTLMS < 10_000 && errdefs.IsNotFound(err) {
		return nil // it expired before it was returned
	}
	if err != nil {
		return err
	}
	ended, wrote := false, false
	defer func() {
		if !ended {
			if gone := l.remove(ctx, b.ID); gone != nil && err == nil {
				err = gone
			}
		}
		if r.Mode == "overlay" { // changes are kept for a disturbed lease, too
			if left := l.discard(ctx, b.ID, wrote); err == nil {
				err = left
			}
		}
	}()
	if err := l.use(ctx, b.ID, n); err != nil {
		_, expired := errors.AsType[*expiredError](err)
		if r.TTLMS < 10_000 && (expired || errdefs.IsNotFound(err)) {
			return nil // the lease expired
		}
		return err
	}
	wrote = true
	switch {
	case r.TTLMS < 10_000:
		ended = true
		return l.expire(ctx, b.ID)
	case n%4 == 1:
		ended = true
		_, err := l.client.StopSandbox(ctx, b.ID, 200*time.Millisecond)
		return err
	}
	return nil
}

// use works in a lease.
func (l *load) use(ctx context.Context, id string, n int64) error {
	const file = "a/b.txt"
	files := l.client.SandboxFiles(id)
	if _, err := files.Write(ctx, file, strings.NewReader("of a lease\n"), client.WriteOptions{Size: 11}); err != nil {
		return err
	}
	sh, err := l.client.StartShell(ctx, id,
		v1.ShellRequest{Exec: v1.Exec{Command: "while :; do echo tick; sleep 0.1; done"}})
	if err != nil {
		return err
	}
	for i := range int64(3) {
		c := pick(n*7 + i)
		if c.cancel > 0 || c.ending == "pids" {
			c = command{exec: v1.Exec{Argv: []string{"cat", file}}, ending: "exited", stdout: 11}
		}
		r, err := l.client.Exec(ctx, id, c.exec)
		if err := c.judge(r, err); err != nil {
			return err
		}
	}
	if n%2 == 0 { // other shells end with their lease
		if _, err := l.client.KillShell(ctx, sh.ID, 0, true); err != nil {
			return err
		}
	}
	return l.talk(ctx, id, n)
}

// expire waits until a lease has expired.
func (l *load) expire(ctx context.Context, id string) error {
	for {
		b, err := l.client.Sandbox(ctx, id)
		if err != nil {
			return err
		}
		if b.State == "gone" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lease %s is still %s: %w", id, b.State, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// remove ends a lease, also across a restart of the service. Otherwise it would last until it
// expires.
func (l *load) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	for {
		err := l.client.RemoveSandbox(ctx, id)
		if !errdefs.IsUnavailable(err) && !errors.Is(err, client.ErrNoServer) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// deleteWorkspace removes a workspace after its lease has ended, also across a restart of the
// service.
func (l *load) deleteWorkspace(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	for {
		err := l.client.Workspaces.Delete(ctx, name)
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) && !errors.Is(err, client.ErrNoServer) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
