package engine

import (
	"context"
	"maps"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// sessionKey returns a key that cannot equal an idempotency key, because it contains a NUL.
func sessionKey(p caller.Principal, name string) caller.Principal {
	return caller.Principal{Caller: p.Caller, Key: "\x00session\x00" + name}
}

// session returns the sandbox of a session. It leases one for the session's first call, and again
// after the lease has ended.
func (e *Engine) session(
	ctx context.Context,
	p caller.Principal,
	name string,
	r v1.SandboxRequest,
	a core.Acquisition,
) (*scheduler.Lease, error) {
	leave, err := e.idem.LockKey(ctx, sessionKey(p, name))
	if err != nil {
		return nil, err
	}
	defer leave()
	l, err := e.findSession(ctx, p, name)
	if err != nil {
		return nil, err
	}
	if l == nil {
		a.Session = name
		if l, err = e.acquire(ctx, p.Keyless(), r, a); err != nil {
			return nil, err
		}
	}
	e.mu.Lock()
	if len(e.sessions) > 2*e.limits.MaxSandboxes { // most have ended: a session has one sandbox
		maps.DeleteFunc(e.sessions, func(_ caller.Principal, id string) bool { return e.sched.Live(id) == nil })
	}
	e.sessions[sessionKey(p, name)] = l.ID
	e.mu.Unlock()
	return l, nil
}

// findSession returns the live lease of a session, or nil.
func (e *Engine) findSession(ctx context.Context, p caller.Principal, name string) (*scheduler.Lease, error) {
	e.mu.Lock()
	id := e.sessions[sessionKey(p, name)]
	e.mu.Unlock()
	if l := e.sched.Live(id); l != nil && l.Ended() == "" && l.Caller == p.Caller {
		return l, nil
	}
	rows, err := e.store.Leases(ctx, p.Caller, false, core.MaxListed)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if r.Lease.Session != name {
			continue
		}
		if l := e.sched.Live(r.ID); l != nil && l.Ended() == "" {
			return l, nil
		}
	}
	return nil, nil
}

// EndSession ends a session's sandbox and its approval grants. It returns NotFound if the session
// has no sandbox.
func (e *Engine) EndSession(ctx context.Context, p caller.Principal, name string) error {
	if err := core.ValidateSession(name); err != nil {
		return err
	}
	l, err := e.findSession(ctx, p, name)
	if err != nil {
		return err
	}
	e.mu.Lock()
	delete(e.sessions, sessionKey(p, name))
	e.mu.Unlock()
	// End the grants in any case: they outlive a sandbox that has ended.
	if err := e.Governed.EndGrants(ctx, p, name); err != nil {
		return err
	}
	if l == nil {
		return usererror.Errorf(errdefs.ErrNotFound, "session %q has no sandbox", name)
	}
	return e.sched.End(ctx, l, scheduler.Removed, true)
}
