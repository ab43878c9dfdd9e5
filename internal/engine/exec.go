package engine

import (
	"context"
	"errors"
	"io"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Exec runs one command in a leased sandbox and waits for it. All processes that it started are
// dead when Exec returns.
func (e *Engine) Exec(ctx context.Context, p caller.Principal, id string, x v1.Exec, st core.Stream) (v1.ExecResult, error) {
	request := struct {
		Sandbox string
		v1.Exec
	}{id, x}
	return idempotency.DoNew(ctx, e.idem, p, opExec, request, func(ctx context.Context, ref string) (v1.ExecResult, error) {
		l, err := e.findLease(ctx, p, id)
		if err != nil {
			return v1.ExecResult{}, err
		}
		return e.exec(ctx, l, ref, x, st, nil)
	}, storedExecResult)
}

// Run leases a sandbox, runs one command in it and destroys it. Run does not wait for the removal.
func (e *Engine) Run(ctx context.Context, p caller.Principal, r v1.Run, st core.Stream) (v1.ExecResult, error) {
	return idempotency.DoNew(ctx, e.idem, p, opRun, r, func(ctx context.Context, ref string) (v1.ExecResult, error) {
		if _, err := e.command("", r.Exec); err != nil { // validate before a sandbox is used
			return v1.ExecResult{}, err
		}
		lease := r.Lease()
		l, err := e.acquire(ctx, p.Keyless(), lease, core.Acquisition{OneShot: true})
		if err != nil {
			return v1.ExecResult{}, err
		}
		res, err := e.exec(ctx, l, ref, r.Exec, st, nil)
		// Wait for an overlay's end, so that the reported overlay can be committed.
		overlay := lease.Mode == modeOverlay
		if err := e.sched.End(ctx, l, scheduler.Finished, overlay); err != nil {
			// The command ran, so return the answer. The next start ends the lease.
			e.log.Error("failed to end a lease", "sandbox", l.ID, "error", err)
		}
		if _, none := e.volumes.FindOverlay(l.ID); overlay && none == nil {
			res.Overlay = l.ID
		}
		return res, err
	}, storedExecResult)
}

// storedExecResult returns the part of a result that is stored under an idempotency key. Long
// output is shortened and streamed output is omitted; both set Truncated.
func storedExecResult(r v1.ExecResult) v1.ExecResult {
	var a, b bool
	r.Stdout, a = idempotency.Shorten(r.Stdout, idempotency.AnswerBytes)
	r.Stderr, b = idempotency.Shorten(r.Stderr, idempotency.AnswerBytes)
	streamed := r.Stdout == "" && r.StdoutBytes > 0 || r.Stderr == "" && r.StderrBytes > 0
	r.Truncated = r.Truncated || a || b || streamed
	return r
}

// exec runs a command in a lease. tune, if set, adjusts the guest's command.
func (e *Engine) exec(
	ctx context.Context,
	l *scheduler.Lease,
	id string,
	x v1.Exec,
	st core.Stream,
	tune func(*wire.Command),
) (v1.ExecResult, error) {
	return e.runCommand(ctx, l, id, x, st, tune, func(use *scheduler.Use, c wire.Command, io guest.IO) (runtime.Result, error) {
		return startProgram(use, x.Command != "", &c.Argv[0], func() (runtime.Result, error) { return use.Exec(use.Ctx, c, io) })
	})
}

// runCommand validates a command, runs it through carryOut and collects its output.
func (e *Engine) runCommand(ctx context.Context, l *scheduler.Lease, id string, x v1.Exec, st core.Stream, tune func(*wire.Command),
	carryOut func(*scheduler.Use, wire.Command, guest.IO) (runtime.Result, error),
) (v1.ExecResult, error) {
	c, err := e.command(id, x)
	if err != nil {
		return v1.ExecResult{}, err
	}
	if tune != nil {
		tune(&c)
	}
	if c.Timeout == 0 {
		c.Timeout = e.limits.Timeout
	}
	in, err := stdin(x)
	if err != nil {
		return v1.ExecResult{}, err
	}
	if st.Stdin != nil {
		in = st.Stdin
	}
	c.Stdin = in != nil
	use, err := l.Enter(ctx)
	if err != nil {
		return v1.ExecResult{}, err
	}
	defer use.Leave()

	limit := x.MaxOutputBytes
	if limit == 0 {
		limit = e.limits.MaxOutput
	}
	cut := tool.Cut{Limit: limit}
	if st.Live() {
		cut.Limit = 0 // count bytes only
	}
	out, errOut := tool.NewKeeper(cut), tool.NewKeeper(cut)
	io := guest.IO{Stdin: in, Stdout: out, Stderr: errOut, Started: func(wire.Started) {
		if st.Started != nil {
			st.Started(id)
		}
	}}
	if st.Live() {
		io.Stdout, io.Stderr = teeOutput(st.Stdout, out), teeOutput(st.Stderr, errOut)
	}
	began := time.Now()
	_, end := stage.Begin(ctx, e.stages, stage.Exec)
	r, err := carryOut(use, c, io)
	r, err = e.resolveResult(ctx, l, began, r, err)
	end(err)
	if err != nil {
		return v1.ExecResult{}, err
	}
	e.metrics.Command(r.Ending)
	res := present(id, r)
	res.StdoutBytes, res.StderrBytes = out.Total(), errOut.Total()
	if !st.Live() {
		var a, b bool
		res.Stdout, a = out.Text()
		res.Stderr, b = errOut.Text()
		res.Truncated = a || b
	}
	return res, nil
}

// resolveResult decides the ending of a command. It ends the lease if processes of the command may
// have survived.
func (e *Engine) resolveResult(
	ctx context.Context,
	l *scheduler.Lease,
	began time.Time,
	r runtime.Result,
	err error,
) (runtime.Result, error) {
	switch {
	case err != nil:
		if r, err = e.lostResult(l, began, err); err != nil {
			return r, err
		}
	case r.Ending == runtime.Cancelled && l.Ended() == scheduler.Lost:
		r.Ending, r.Detail = runtime.SandboxLost, lostDetail(l) // cancelled because the sandbox was lost
	}
	if r.Unclean {
		return r, e.sched.End(ctx, l, scheduler.Unclean, false)
	}
	return r, nil
}

// teeOutput returns a writer to w and c, or to c alone if w is nil.
func teeOutput(w io.Writer, c *tool.Keeper) io.Writer {
	if w == nil {
		return c
	}
	return io.MultiWriter(w, c)
}

const detailLost = "the sandbox or its connection was lost while the command ran"

// lostDetail is detailLost with the reason, if the driver reports one.
func lostDetail(l *scheduler.Lease) string {
	if why := l.LostDetail(); why != "" {
		return detailLost + ": " + why
	}
	return detailLost
}

// lostResult returns the result of a command whose end was not observed: cancelled if the lease was
// ended, else sandbox_lost. Errors about the request stay errors.
func (e *Engine) lostResult(l *scheduler.Lease, began time.Time, err error) (runtime.Result, error) {
	r := runtime.Result{ExitCode: -1, Duration: time.Since(began)}
	if _, refused := errors.AsType[*guest.Error](err); refused {
		return r, err // it never ran
	}
	if ended, ok := errors.AsType[*scheduler.EndedError](l.Cause()); ok && ended.Reason != scheduler.Lost {
		r.Ending, r.Detail = runtime.Cancelled, ended.Error()
		return r, nil
	}
	if errors.Is(err, guest.ErrLost) {
		r.Ending, r.Detail = runtime.SandboxLost, lostDetail(l)
		return r, nil
	}
	return r, err
}

// terminateShells sends TERM to every shell of a lease and waits for their end for at most grace.
//
//nolint:contextcheck // use.Ctx ends with ctx
func (e *Engine) terminateShells(ctx context.Context, l *scheduler.Lease, grace time.Duration) {
	use, err := l.Enter(ctx)
	if err != nil {
		return
	}
	defer use.Leave()
	ctx, cancel := context.WithTimeout(use.Ctx, grace+5*time.Second)
	defer cancel()
	shells, err := use.Shells(ctx)
	if err != nil {
		return // removal kills the rest
	}
	for _, sh := range shells {
		if sh.Result == nil {
			_ = use.Signal(ctx, wire.Signal{ID: sh.ID, Number: 15, All: true}) // removal kills the rest
		}
	}
	deadline := time.Now().Add(grace)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		p, err := use.Ping(ctx)
		if err != nil || p.Commands == 0 {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
