package engine

import (
	"context"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// sandboxes gives services access to leases, commands and shells. Adapters cannot reach the methods
// that it adds to Engine.
type sandboxes struct{ *Engine }

var _ governed.Sandboxes = sandboxes{}

// Acquire leases a sandbox.
func (s sandboxes) Acquire(
	ctx context.Context, p caller.Principal, r v1.SandboxRequest, a core.Acquisition,
) (*scheduler.Lease, error) {
	return s.acquire(ctx, p, r, a)
}

// FindLease returns a live lease of the caller.
func (s sandboxes) FindLease(ctx context.Context, p caller.Principal, id string) (*scheduler.Lease, error) {
	return s.findLease(ctx, p, id)
}

// Session returns the lease of a session and makes one if it has none.
func (s sandboxes) Session(
	ctx context.Context, p caller.Principal, name string, r v1.SandboxRequest, a core.Acquisition,
) (*scheduler.Lease, error) {
	return s.session(ctx, p, name, r, a)
}

// FindSession returns the live lease of a session, or nil.
func (s sandboxes) FindSession(ctx context.Context, p caller.Principal, name string) (*scheduler.Lease, error) {
	return s.findSession(ctx, p, name)
}

// ExecIn runs a command in a lease.
func (s sandboxes) ExecIn(
	ctx context.Context, l *scheduler.Lease, id string, x v1.Exec, st core.Stream, tune func(*wire.Command),
) (v1.ExecResult, error) {
	return s.exec(ctx, l, id, x, st, tune)
}

// RunProgram is ExecIn without the fallback from bash to sh.
func (s sandboxes) RunProgram(
	ctx context.Context, l *scheduler.Lease, id string, x v1.Exec, st core.Stream, tune func(*wire.Command),
) (v1.ExecResult, error) {
	return s.runCommand(
		ctx,
		l,
		id,
		x,
		st,
		tune,
		func(u *scheduler.Use, c wire.Command, io guest.IO) (runtime.Result, error) {
			return u.Exec(u.Ctx, c, io)
		},
	)
}

// StartShellIn starts a background command with the given id.
func (s sandboxes) StartShellIn(
	ctx context.Context, p caller.Principal, sandbox, id string, r v1.ShellRequest, tune func(*wire.Command),
) (v1.Shell, error) {
	return s.startShell(ctx, p, sandbox, id, r, tune)
}

// Live returns the live lease with this id, or nil. It does not check the caller.
func (s sandboxes) Live(id string) *scheduler.Lease { return s.sched.Live(id) }
