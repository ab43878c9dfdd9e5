package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// StartShell starts a background command. The shell is stored before the guest starts it, and a
// retry with the same idempotency key returns the same shell.
func (e *Engine) StartShell(ctx context.Context, p caller.Principal, id string, r v1.ShellRequest) (v1.Shell, error) {
	request := struct {
		Sandbox string
		v1.ShellRequest
	}{id, r}
	return idempotency.DoNew(ctx, e.idem, p, opShell, request, func(ctx context.Context, ref string) (v1.Shell, error) {
		return e.startShell(ctx, p, id, ref, r, nil)
	}, identity)
}

func (e *Engine) startShell(
	ctx context.Context,
	p caller.Principal,
	sandbox, id string,
	r v1.ShellRequest,
	tune func(*wire.Command),
) (v1.Shell, error) {
	switch {
	case r.StopAtOutput || r.MaxOutputBytes != 0:
		return v1.Shell{}, usererror.Invalid("max_output_bytes", "is not for shells: use spool_bytes")
	case r.SpoolBytes < 0 || r.SpoolBytes > maxSpool:
		return v1.Shell{}, usererror.Invalid("spool_bytes", "is %d: from 0 to %d", r.SpoolBytes, maxSpool)
	}
	c, err := e.command(id, r.Exec)
	if err != nil {
		return v1.Shell{}, err
	}
	c.MergeStderr, c.Spool, c.Wait = r.MergeStderr, r.SpoolBytes, r.Lossless
	if tune != nil {
		tune(&c)
	}
	in, err := stdin(r.Exec)
	if err != nil {
		return v1.Shell{}, err
	}
	c.Stdin = in != nil || r.KeepOpen
	l, use, err := e.use(ctx, p, sandbox)
	if err != nil {
		return v1.Shell{}, err
	}
	defer use.Leave()
	chooseProgram(use, r.Command != "", &c.Argv[0])
	row := store.Shell{ID: id, Sandbox: sandbox, Caller: p.Caller, Argv: c.Argv, Started: time.Now(), TTY: c.TTY != nil}
	if err := e.store.InsertShell(ctx, row); err != nil {
		return v1.Shell{}, err
	}
	sh, err := startProgram(use, r.Command != "", &c.Argv[0], func() (wire.Shell, error) { return use.Start(use.Ctx, c) })
	if err == nil && in != nil {
		err = use.Input(use.Ctx, id, in, !r.KeepOpen)
	}
	if err != nil {
		return v1.Shell{}, errors.Join(l.Explain(err), e.abandonShell(ctx, l, use, id))
	}
	e.Events.Publish(v1.ServiceEvent{Type: "shell.started", Caller: row.Caller, Sandbox: row.Sandbox, Shell: row.ID})
	return presentShell(row, sh), nil
}

// recoverShell finds the shell of an interrupted request. known is false if the guest cannot answer
// now. A zero shell means that it does not run.
func (e *Engine) recoverShell(ctx context.Context, k store.Key) (sh v1.Shell, known bool, err error) {
	p := caller.Principal{Caller: k.Caller}
	row, l, use, err := e.shell(ctx, p, k.Ref)
	if errdefs.IsNotFound(err) {
		return v1.Shell{}, true, nil
	}
	if err != nil {
		return v1.Shell{}, false, nil // known says it
	}
	defer use.Leave()
	got, err := use.Shell(use.Ctx, k.Ref)
	switch {
	case errdefs.IsNotFound(err):
		return v1.Shell{}, true, e.store.DeleteShell(ctx, k.Ref)
	case err != nil:
		e.log.Warn("failed to look up the shell of an earlier request", "shell", k.Ref, "error", l.Explain(err))
		return v1.Shell{}, false, nil
	}
	return presentShell(row, got), true, nil
}

// abandonShell kills a shell whose caller gets an error. If the outcome is unknown, the shell stays
// stored.
func (e *Engine) abandonShell(ctx context.Context, l *scheduler.Lease, use *scheduler.Use, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	sh, err := use.Kill(ctx, wire.Kill{ID: id})
	switch {
	case errdefs.IsNotFound(err): // it never ran
	case err != nil && l.Cause() == nil:
		return fmt.Errorf("shell %s: %w: %w", id, idempotency.ErrMayHaveRun, err)
	case err == nil && sh.Result != nil && sh.Result.Unclean:
		return e.sched.End(ctx, l, scheduler.Unclean, false)
	case err == nil:
		_ = use.Forget(ctx, id) // best effort: it holds only a little output
	}
	return e.store.DeleteShell(ctx, id)
}

// Shells lists a sandbox's shells, oldest first.
func (e *Engine) Shells(ctx context.Context, p caller.Principal, sandbox string) ([]v1.Shell, error) {
	if _, err := e.sched.Row(ctx, e.overseen(ctx, p, sandbox).Caller, sandbox); err != nil {
		return nil, err
	}
	rows, err := e.store.Shells(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	live := map[string]wire.Shell{}
	if l := e.sched.Live(sandbox); l != nil {
		if use, err := l.Enter(ctx); err == nil {
			defer use.Leave()
			list, err := use.Shells(use.Ctx)
			if err != nil {
				return nil, l.Explain(err)
			}
			for _, sh := range list {
				live[sh.ID] = sh
			}
		}
	}
	out := make([]v1.Shell, 0, len(rows))
	for _, r := range rows {
		out = append(out, presentShell(r, live[r.ID]))
	}
	return out, nil
}

// shell returns the caller's shell and a use of its sandbox. The caller must call Leave on the use.
// If the sandbox has ended, the error is an *EndedError.
func (e *Engine) shell(
	ctx context.Context,
	p caller.Principal,
	id string,
) (store.Shell, *scheduler.Lease, *scheduler.Use, error) {
	row, err := e.store.Shell(ctx, id)
	if errdefs.IsNotFound(err) || err == nil && row.Caller != p.Caller {
		return store.Shell{}, nil, nil, usererror.Errorf(errdefs.ErrNotFound, "shell %q not found", id)
	}
	if err != nil {
		return row, nil, nil, err
	}
	l, use, err := e.use(ctx, p, row.Sandbox)
	return row, l, use, err
}

// overseenShell is shell for requests that look at a shell, or end it: see overseen.
func (e *Engine) overseenShell(
	ctx context.Context, p caller.Principal, id string,
) (store.Shell, *scheduler.Lease, *scheduler.Use, error) {
	if p.Operator {
		if row, err := e.store.Shell(ctx, id); err == nil {
			p.Caller = row.Caller
		}
	}
	return e.shell(ctx, p, id)
}

// Shell describes a shell, also after its sandbox has ended.
func (e *Engine) Shell(ctx context.Context, p caller.Principal, id string) (v1.Shell, error) {
	row, l, use, err := e.overseenShell(ctx, p, id)
	if _, gone := errors.AsType[*scheduler.EndedError](err); gone {
		row, err = e.store.Shell(ctx, id) // read again: its end may have been stored since
		return presentShell(row, wire.Shell{}), err
	}
	if err != nil {
		return v1.Shell{}, err
	}
	defer use.Leave()
	sh, err := use.Shell(use.Ctx, id)
	if err != nil {
		return v1.Shell{}, l.Explain(err)
	}
	e.recordShellEnd(ctx, sh)
	return presentShell(row, sh), nil
}

// recordShellEnd stores and publishes the end of a shell, if it has ended.
func (e *Engine) recordShellEnd(ctx context.Context, sh wire.Shell) {
	if sh.Result == nil {
		return
	}
	if err := e.store.EndShell(ctx, sh.ID, time.Now(), *sh.Result); err != nil {
		e.log.Warn("failed to record the end of a shell", "shell", sh.ID, "error", err)
	}
	e.Events.Publish(v1.ServiceEvent{Type: "shell.ended", Shell: sh.ID, Reason: string(sh.Result.Ending)})
}

// KillShell ends a shell with TERM, then KILL after grace. No process of it is alive on return. A
// shell that has ended keeps its result. If forget is set, its record and output are deleted.
func (e *Engine) KillShell(
	ctx context.Context,
	p caller.Principal,
	id string,
	grace time.Duration,
	forget bool,
) (v1.Shell, error) {
	if grace < 0 || grace > time.Minute {
		return v1.Shell{}, usererror.Invalid("grace_ms", "is %d: from 0 to 60000", grace.Milliseconds())
	}
	row, l, use, err := e.overseenShell(ctx, p, id)
	if _, gone := errors.AsType[*scheduler.EndedError](err); gone {
		if row, err = e.store.Shell(ctx, id); err == nil && forget {
			err = e.store.DeleteShell(ctx, id)
		}
		return presentShell(row, wire.Shell{}), err
	}
	if err != nil {
		return v1.Shell{}, err
	}
	defer use.Leave()
	sh, err := use.Kill(use.Ctx, wire.Kill{ID: id, Grace: grace})
	if err != nil {
		return v1.Shell{}, l.Explain(err)
	}
	e.recordShellEnd(ctx, sh)
	if sh.Result != nil && sh.Result.Unclean {
		return presentShell(row, sh), e.sched.End(ctx, l, scheduler.Unclean, false)
	}
	if forget {
		if err := use.Forget(use.Ctx, id); err != nil {
			return v1.Shell{}, l.Explain(err)
		}
		return presentShell(row, sh), e.store.DeleteShell(ctx, id)
	}
	return presentShell(row, sh), nil
}

// SignalShell sends a signal to every process of a shell.
func (e *Engine) SignalShell(ctx context.Context, p caller.Principal, id string, number int) error {
	if number < 1 || number > 64 {
		return usererror.Invalid("signal", "is %d: from 1 to 64", number)
	}
	_, l, use, err := e.overseenShell(ctx, p, id)
	if err != nil {
		return err
	}
	defer use.Leave()
	return l.Explain(use.Signal(use.Ctx, wire.Signal{ID: id, Number: number, All: true}))
}

// Input writes to a shell's stdin and closes it if closeIt is set. A terminal's input cannot be
// closed.
func (e *Engine) Input(ctx context.Context, p caller.Principal, id string, r io.Reader, closeIt bool) error {
	row, l, use, err := e.shell(ctx, p, id)
	if err != nil {
		return err
	}
	defer use.Leave()
	if row.TTY {
		if closeIt {
			return usererror.Invalid(
				"close",
				"is not for terminals: write the end-of-file character, 0x04, and leave the input open",
			)
		}
		return l.Explain(use.Type(use.Ctx, id, r, nil))
	}
	return l.Explain(use.Input(use.Ctx, id, r, closeIt))
}

// Output returns at most 1 MiB of output. It waits up to r.Wait for the first byte.
func (e *Engine) Output(
	ctx context.Context,
	principal caller.Principal,
	id string,
	r core.OutputRequest,
) (v1.Output, error) {
	if r.Limit == 0 || r.Limit > core.MaxPiece {
		r.Limit = core.MaxPiece
	}
	r.Follow = false
	var data []byte
	first := int64(-1)
	end, row, err := e.output(ctx, principal, id, &r, func(offset int64, p []byte) error {
		if first < 0 {
			first = offset
		}
		data = append(data, p...)
		return nil
	})
	if err != nil {
		return v1.Output{}, err
	}
	if first < 0 {
		first = max(end.Next, r.Offset)
	}
	out := v1.Output{
		Stream: r.Stream, Offset: first, NextOffset: end.Next, Gap: first - r.Offset, EOF: end.EOF, Shell: presentShell(row, end.Shell),
	}
	out.Data, out.Base64 = core.EncodeOutput(data)
	return out, nil
}

// CopyOutput passes a shell's output to sink as it arrives and returns the offset to continue from.
// A jump in the offsets means that output was dropped.
func (e *Engine) CopyOutput(
	ctx context.Context,
	p caller.Principal,
	id string,
	r core.OutputRequest,
	sink func(offset int64, data []byte) error,
) (int64, error) {
	end, _, err := e.output(ctx, p, id, &r, sink)
	return end.Next, err
}

func (e *Engine) output(
	ctx context.Context,
	p caller.Principal,
	id string,
	r *core.OutputRequest,
	sink func(int64, []byte) error,
) (wire.OutputEnd, store.Shell, error) {
	if err := r.Validate(); err != nil {
		return wire.OutputEnd{}, store.Shell{}, err
	}
	row, l, use, err := e.overseenShell(ctx, p, id)
	if err != nil {
		return wire.OutputEnd{}, row, err
	}
	defer use.Leave()
	end, err := use.Output(use.Ctx, wire.Output{
		ID: id, Stream: wire.Stream(r.Stream), Offset: r.Offset, Limit: r.Limit, Follow: r.Follow, Wait: r.Wait,
	}, sink)
	if err != nil {
		return end, row, l.Explain(err)
	}
	e.recordShellEnd(ctx, end.Shell)
	return end, row, nil
}

func presentShell(row store.Shell, sh wire.Shell) v1.Shell {
	out := v1.Shell{
		ID: row.ID, SandboxID: row.Sandbox, Argv: row.Argv, State: "running", StartedAt: row.Started,
		TTY: row.TTY, StdoutStart: sh.Stdout.Start, StdoutEnd: sh.Stdout.End, StderrStart: sh.Stderr.Start, StderrEnd: sh.Stderr.End,
	}
	result := sh.Result
	if result == nil {
		result = row.Result
	}
	if result != nil {
		out.State = "ended"
		r := present(row.ID, runtime.Result(*result))
		r.StdoutBytes, r.StderrBytes = sh.Stdout.End, sh.Stderr.End
		out.Result = &r
	}
	return out
}
