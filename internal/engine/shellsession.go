package engine

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// sessionWait is the default time that a command waits for its turn.
const sessionWait = time.Minute

// withoutBash tells callers what a session in sh lacks.
const withoutBash = "this is sh: what only bash has, such as arrays, [[ ]], shopt, source and process substitution, may be missing"

// StartShellSession starts a shell in a leased sandbox that runs commands one after the other. The
// guest holds it, so it survives a restart of this process.
func (e *Engine) StartShellSession(
	ctx context.Context,
	p caller.Principal,
	sandbox string,
	r v1.ShellSessionRequest,
) (v1.ShellSession, error) {
	request := struct {
		Sandbox string
		v1.ShellSessionRequest
	}{sandbox, r}
	do := func(ctx context.Context, ref string) (v1.ShellSession, error) {
		return e.startShellSession(ctx, p, sandbox, ref, r)
	}
	return idempotency.DoNew(ctx, e.idem, p, opSession, request, do, identity)
}

func (e *Engine) startShellSession(
	ctx context.Context,
	p caller.Principal,
	sandbox, id string,
	r v1.ShellSessionRequest,
) (v1.ShellSession, error) {
	if r.Shell != "" && r.Shell != "bash" && r.Shell != "sh" {
		return v1.ShellSession{}, usererror.Invalid(
			"shell",
			"is %q: use bash or sh, or leave it out for what the image has",
			r.Shell,
		)
	}
	if err := validateEnv("env", r.Env); err != nil {
		return v1.ShellSession{}, err
	}
	l, use, err := e.use(ctx, p, sandbox)
	if err != nil {
		return v1.ShellSession{}, err
	}
	defer use.Leave()
	st := wire.SessionStart{ID: id, Shell: cmp.Or(r.Shell, "bash"), Cwd: r.Cwd, Env: r.Env, User: r.User}
	se, err := startProgram(use, r.Shell == "", &st.Shell, func() (wire.Session, error) {
		return use.StartSession(use.Ctx, st)
	})
	if err != nil {
		e.dropShellSession(ctx, use, id)
		return v1.ShellSession{}, l.Explain(err)
	}
	return presentShellSession(sandbox, se), nil
}

// dropShellSession ends a session whose start failed. If that fails too, the session ends with the
// sandbox.
func (e *Engine) dropShellSession(ctx context.Context, use *scheduler.Use, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, err := use.EndSession(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		e.log.Warn("failed to end a session after a failed start", "session", id, "error", err)
	}
}

// ShellSessions lists a sandbox's sessions, oldest first.
func (e *Engine) ShellSessions(ctx context.Context, p caller.Principal, sandbox string) ([]v1.ShellSession, error) {
	l, use, err := e.use(ctx, p, sandbox)
	if err != nil {
		return nil, err
	}
	defer use.Leave()
	list, err := use.Sessions(use.Ctx)
	if err != nil {
		return nil, l.Explain(err)
	}
	out := make([]v1.ShellSession, 0, len(list))
	for _, se := range list {
		out = append(out, presentShellSession(sandbox, se))
	}
	return out, nil
}

// EndShellSession kills all processes of a session and removes it.
func (e *Engine) EndShellSession(ctx context.Context, p caller.Principal, sandbox, id string) (v1.ShellSession, error) {
	l, use, err := e.use(ctx, p, sandbox)
	if err != nil {
		return v1.ShellSession{}, err
	}
	defer use.Leave()
	se, err := use.EndSession(use.Ctx, id)
	if err != nil {
		return v1.ShellSession{}, l.Explain(sessionNotFound(id, err))
	}
	if se.Result != nil && se.Result.Unclean {
		err = e.sched.End(ctx, l, scheduler.Unclean, false)
	}
	return presentShellSession(sandbox, se), err
}

// ExecShellSession runs a command in a session.
func (e *Engine) ExecShellSession(
	ctx context.Context,
	p caller.Principal,
	sandbox, id string,
	x v1.ShellSessionExec,
	st core.Stream,
) (v1.ExecResult, error) {
	request := struct {
		Sandbox, Session string
		v1.ShellSessionExec
	}{sandbox, id, x}
	do := func(ctx context.Context, ref string) (v1.ExecResult, error) {
		return e.execShellSession(ctx, p, sandbox, id, ref, x, st)
	}
	return idempotency.DoNew(ctx, e.idem, p, opSessionExec, request, do, storedExecResult)
}

func (e *Engine) execShellSession(
	ctx context.Context,
	p caller.Principal,
	sandbox, id, ref string,
	x v1.ShellSessionExec,
	st core.Stream,
) (v1.ExecResult, error) {
	wait, err := sessionWaitTime(x)
	if err != nil {
		return v1.ExecResult{}, err
	}
	l, err := e.findLease(ctx, p, sandbox)
	if err != nil {
		return v1.ExecResult{}, err
	}
	var got wire.SessionResult
	res, err := e.runCommand(
		ctx,
		l,
		ref,
		x.Exec,
		st,
		nil,
		func(use *scheduler.Use, c wire.Command, io guest.IO) (runtime.Result, error) {
			text := x.Command
			if text == "" {
				text = commandLine(x.Argv)
			}
			var err error
			got, err = use.ExecSession(use.Ctx, wire.SessionExec{
				ID: c.ID, Session: id, Text: text, Timeout: c.Timeout, OutputLimit: c.OutputLimit, Wait: wait, Renew: x.Renew,
			}, io)
			return got.Result, sessionNotFound(id, err)
		},
	)
	if err != nil {
		return res, err
	}
	switch {
	case got.Ended || runtime.Ending(res.Ending) == runtime.SandboxLost || l.Ended() != "":
		res.Session = v1.SessionEnded
	case got.Renewed:
		res.Session = v1.SessionRenewed
	default:
		res.Session = v1.SessionOpen
	}
	return res, nil
}

// sessionWaitTime validates a command for a session and returns how long it waits for its turn.
func sessionWaitTime(x v1.ShellSessionExec) (time.Duration, error) {
	switch {
	case x.Cwd != "":
		return 0, usererror.Invalid("cwd", "is the session's: use cd in the command")
	case len(x.Env) > 0:
		return 0, usererror.Invalid("env", "is the session's: use export in the command")
	case x.User != "":
		return 0, usererror.Invalid("user", "is the session's")
	case x.WaitMS < 0 || x.WaitMS > wire.MaxSessionWait.Milliseconds():
		return 0, usererror.Invalid("wait_ms", "is %d: from 0 to %d", x.WaitMS, wire.MaxSessionWait.Milliseconds())
	case x.WhenBusy == "refuse" && x.WaitMS > 0:
		return 0, usererror.Invalid("wait_ms", "needs when_busy wait")
	case x.WhenBusy == "refuse":
		return 0, nil
	case x.WhenBusy != "" && x.WhenBusy != "wait":
		return 0, usererror.Invalid("when_busy", "is %q: use wait or refuse", x.WhenBusy)
	case x.WaitMS > 0:
		return time.Duration(x.WaitMS) * time.Millisecond, nil
	}
	return sessionWait, nil
}

// commandLine quotes an argument vector for a shell.
func commandLine(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}

// sessionNotFound converts the guest's NotFound to an error for the caller.
func sessionNotFound(id string, err error) error {
	if errdefs.IsNotFound(err) {
		return usererror.Errorf(errdefs.ErrNotFound, "session %.128q not found", id)
	}
	return err
}

// recoverShellSession finds the session of an interrupted request in its caller's sandboxes. known
// is false if a guest cannot answer now.
func (e *Engine) recoverShellSession(ctx context.Context, k store.Key) (v1.ShellSession, bool) {
	p := caller.Principal{Caller: k.Caller}
	rows, err := e.store.Leases(ctx, k.Caller, false, core.MaxListed)
	if err != nil {
		return v1.ShellSession{}, false
	}
	for _, row := range rows {
		list, err := e.ShellSessions(ctx, p, row.ID)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			e.log.Warn("failed to look up the session of an earlier request", "session", k.Ref, "error", err)
			return v1.ShellSession{}, false
		}
		for _, se := range list {
			if se.ID == k.Ref {
				return se, true
			}
		}
	}
	return v1.ShellSession{}, true
}

func presentShellSession(sandbox string, se wire.Session) v1.ShellSession {
	out := v1.ShellSession{
		ID: se.ID, SandboxID: sandbox, Shell: se.Shell, State: "idle", StartedAt: se.StartedAt,
		Commands: se.Commands, Waiting: se.Waiting, Left: se.Left,
	}
	if se.Shell == "sh" {
		out.Missing = withoutBash
	}
	if se.Busy {
		out.State = "busy"
	}
	if se.Result != nil {
		r := present(se.ID, *se.Result)
		out.State, out.Result = "ended", &r
	}
	return out
}
