package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/egress"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/workspaces"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
)

// Operations that accept an idempotency key. They are stored.
const (
	opLease    = "lease"
	opExec     = "exec"
	opRun      = "run"
	opShell    = "shell"
	opTerminal = "terminal"

	opSession     = "session"
	opSessionExec = "session_exec"
)

func marshal(v any) ([]byte, error) { return json.Marshal(v) }

// Lease leases a sandbox.
func (e *Engine) Lease(ctx context.Context, p caller.Principal, r v1.SandboxRequest) (v1.Sandbox, error) {
	return idempotency.Do(ctx, e.idem, p, opLease, "", r, func(ctx context.Context) (v1.Sandbox, error) {
		l, err := e.acquire(ctx, p, r, core.Acquisition{})
		if err != nil {
			return v1.Sandbox{}, err
		}
		return e.describeNewLease(ctx, p, l)
	}, identity)
}

// describeNewLease returns the answer for a new lease. If the caller is gone and has no idempotency
// key to retry with, the lease ends.
func (e *Engine) describeNewLease(ctx context.Context, p caller.Principal, l *scheduler.Lease) (v1.Sandbox, error) {
	read, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	row, err := e.sched.Row(read, p.Caller, l.ID)
	if err == nil && ctx.Err() != nil && p.Key == "" {
		err = context.Cause(ctx)
	}
	if err != nil {
		return v1.Sandbox{}, errors.Join(err, e.sched.End(read, l, scheduler.Abandoned, false))
	}
	return e.sandbox(row), nil
}

func identity[T any](v T) T { return v }

func (e *Engine) acquire(
	ctx context.Context,
	p caller.Principal,
	r v1.SandboxRequest,
	a core.Acquisition,
) (*scheduler.Lease, error) {
	if err := e.Templates.Resolve(&r); err != nil {
		return nil, err
	}
	if err := resolveMode(&r); err != nil {
		return nil, err
	}
	if err := e.checkRequest(r); err != nil {
		return nil, err
	}
	req := scheduler.Request{
		Caller: p.Caller, Template: r.Template, Env: r.Env, Alias: a.Alias,
		Lease: store.Lease{
			Name:      r.Name,
			Workspace: workspaces.DiskName(p.Caller, r.Workspace),
			Named:     r.Workspace,
			ReadOnly:  r.ReadOnly,
			Overlay:   r.Mode == modeOverlay,
			Labels:    r.Labels,
			OneShot:   a.OneShot,
			Private:   a.Private,
			Network:   a.Network,
			Session:   a.Session,
			Attempt:   a.Attempt,
			Key:       p.Key,
		},
		TTL: cmp.Or(
			time.Duration(r.TTLMS)*time.Millisecond,
			e.limits.TTL,
		), Idle: cmp.Or(time.Duration(r.IdleMS)*time.Millisecond, e.limits.Idle),
		Mode: cmp.Or(pool.Mode(r.WhenEmpty), pool.Wait), Wait: cmp.Or(time.Duration(r.WaitMS)*time.Millisecond, e.limits.Wait),
		Quotas: scheduler.Quotas(e.Callers.SandboxQuotas(p)),
	}
	if err := e.checkKnown(p, r); err != nil {
		return nil, err
	}
	req.ReserveClaim = func(ctx context.Context, bytes int64) (func(), error) {
		return e.Workspaces.ReserveClaim(ctx, p, r.Workspace, bytes)
	}
	g, err := e.requestedGrant(p, r, a)
	if err != nil {
		return nil, err
	}
	g.StoreIn(&req.Lease)
	req.Egress = g.GuestConfig()
	hidden, err := e.hideLease(ctx, p.Caller, r.Env)
	if err != nil {
		return nil, err
	}
	var l *scheduler.Lease
	if a.Queued == nil {
		l, err = e.sched.Acquire(ctx, req)
	} else {
		l, err = e.sched.AcquireQueued(ctx, req, *a.Queued)
	}
	hidden(l)
	if err != nil {
		return nil, workspaces.Error(err, req.Lease.Workspace, r.Workspace)
	}
	if err := e.Egress.Begin(ctx, p, l, g, a.Egress == nil); err != nil {
		return nil, errors.Join(err, e.sched.End(context.WithoutCancel(ctx), l, scheduler.Abandoned, false))
	}
	return l, nil
}

// checkRequest validates the fields that need no lookup.
func (e *Engine) checkRequest(r v1.SandboxRequest) error {
	switch {
	case r.TTLMS < 0 || r.TTLMS > e.limits.MaxTTL.Milliseconds():
		return usererror.Invalid("ttl_ms", "is %d: from 0 to %d (leases.max_ttl)", r.TTLMS, e.limits.MaxTTL.Milliseconds())
	case r.IdleMS < 0 || r.IdleMS > e.limits.MaxTTL.Milliseconds():
		return usererror.Invalid("idle_ms", "is %d: from 0 to %d (leases.max_ttl)", r.IdleMS, e.limits.MaxTTL.Milliseconds())
	case r.WaitMS < 0 || r.WaitMS > time.Hour.Milliseconds():
		return usererror.Invalid("wait_ms", "is %d: from 0 to 3600000", r.WaitMS)
	case r.ReadOnly && r.Workspace == "":
		return usererror.Invalid("read_only", "needs a workspace")
	}
	switch pool.Mode(r.WhenEmpty) {
	case "", pool.Wait, pool.Cold, pool.Refuse:
	default:
		return usererror.Invalid("when_empty", "is %q: use wait, cold or refuse", r.WhenEmpty)
	}
	if err := validateEnv("env", r.Env); err != nil {
		return err
	}
	if err := validateSandboxName(r.Name); err != nil {
		return err
	}
	return validateLabels(r.Labels)
}

// requestedGrant returns the egress of a new lease.
func (e *Engine) requestedGrant(p caller.Principal, r v1.SandboxRequest, a core.Acquisition) (*egress.Grant, error) {
	if a.Egress != nil {
		return e.Egress.GrantForTool(a.Egress)
	}
	return e.Egress.Grant(p, r.Egress)
}

// checkKnown refuses an unknown template or workspace before a sandbox is used.
func (e *Engine) checkKnown(p caller.Principal, r v1.SandboxRequest) error {
	if err := e.Templates.Check(p, r.Template); err != nil {
		return err
	}
	if r.Workspace == "" {
		return nil
	}
	if _, err := e.volumes.Get(workspaces.DiskName(p.Caller, r.Workspace)); err != nil {
		return &usererror.InvalidError{
			Field:   "workspace",
			Message: fmt.Sprintf("%q not found: create it first", r.Workspace),
			Class:   errdefs.ErrNotFound,
		}
	}
	return nil
}

// Sandboxes lists the caller's leases, newest first. If ended is set, it includes ended ones.
func (e *Engine) Sandboxes(ctx context.Context, p caller.Principal, ended bool) ([]v1.Sandbox, error) {
	rows, err := e.store.Leases(ctx, p.Caller, ended, core.MaxListed)
	if err != nil {
		return nil, err
	}
	out := make([]v1.Sandbox, 0, len(rows))
	for _, r := range rows {
		out = append(out, e.sandbox(r))
	}
	return out, nil
}

// AllSandboxes lists all sandboxes, newest first: leases of all callers, warm sandboxes, and those
// being created or removed. Only operators may call it.
func (e *Engine) AllSandboxes(ctx context.Context, p caller.Principal) ([]v1.Sandbox, error) {
	if err := p.Operate("see what others have"); err != nil {
		return nil, err
	}
	rows, err := e.store.Live(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b store.Sandbox) int { return b.Created.Compare(a.Created) })
	out := make([]v1.Sandbox, 0, min(len(rows), core.MaxListed))
	for _, r := range rows[:min(len(rows), core.MaxListed)] {
		out = append(out, e.sandbox(r))
	}
	return out, nil
}

// Sandbox describes one lease, including an ended one.
func (e *Engine) Sandbox(ctx context.Context, p caller.Principal, id string) (v1.Sandbox, error) {
	row, err := e.sched.Row(ctx, e.overseen(ctx, p, id).Caller, id)
	if err != nil {
		return v1.Sandbox{}, err
	}
	return e.sandbox(row), nil
}

// overseen returns the principal that may look at a sandbox, and end it or its commands, on behalf
// of p: for an operator the sandbox's owner, for any other caller p itself. It is not for requests
// that start commands or write files.
func (e *Engine) overseen(ctx context.Context, p caller.Principal, id string) caller.Principal {
	if !p.Operator {
		return p
	}
	if l := e.sched.Live(id); l != nil {
		p.Caller = l.Caller
	} else if row, err := e.store.Sandbox(ctx, id); err == nil && row.Caller != "" {
		p.Caller = row.Caller
	}
	return p
}

// Remove destroys a sandbox at once, in any state. Removing an ended sandbox succeeds.
func (e *Engine) Remove(ctx context.Context, p caller.Principal, id string) error {
	if _, err := e.sched.Row(ctx, e.overseen(ctx, p, id).Caller, id); err != nil {
		return err
	}
	if l := e.sched.Live(id); l != nil {
		return e.sched.End(ctx, l, scheduler.Removed, true)
	}
	return nil
}

// Stop ends a sandbox. Every shell first gets TERM and up to grace to exit.
func (e *Engine) Stop(ctx context.Context, p caller.Principal, id string, grace time.Duration) (v1.Sandbox, error) {
	if grace < 0 || grace > time.Minute {
		return v1.Sandbox{}, usererror.Invalid("grace_ms", "is %d: from 0 to 60000", grace.Milliseconds())
	}
	if _, err := e.sched.Row(ctx, e.overseen(ctx, p, id).Caller, id); err != nil {
		return v1.Sandbox{}, err
	}
	if l := e.sched.Live(id); l != nil {
		e.terminateShells(ctx, l, grace)
		if err := e.sched.End(ctx, l, scheduler.Stopped, true); err != nil {
			return v1.Sandbox{}, err
		}
	}
	return e.Sandbox(ctx, p, id)
}

func (e *Engine) sandbox(r store.Sandbox) v1.Sandbox {
	s := v1.Sandbox{
		ID: r.ID, Name: r.Lease.Name, Caller: r.Caller, State: string(r.State), Template: r.Template, Runtime: r.Runtime, Image: r.Image,
		Workspace: cmp.Or(
			r.Lease.Named,
			r.Lease.Workspace,
		), ReadOnly: r.Lease.ReadOnly, Mode: modeOf(r.Lease), Class: r.Lease.Class, Egress: r.Lease.Egress,
		Session: r.Lease.Session, Labels: r.Lease.Labels, Warm: r.Warm,
		CreatedAt: r.Created, ExpiresAt: r.Expires, IdleMS: r.Idle.Milliseconds(), LastUseAt: r.Used, Reason: r.Reason, Detail: r.Lease.Detail,
	}
	if l := e.sched; l != nil {
		if live := l.Live(r.ID); live != nil {
			s.LastUseAt = live.LastUse().UTC()
		}
	}
	if !r.Ended.IsZero() {
		s.EndedAt = &r.Ended
	}
	return s
}

// findLease returns a live lease of the caller by its id. A lease with a profile's network is
// refused to calls of a profile without it: another token of the same caller could otherwise use a
// network it was not given.
func (e *Engine) findLease(ctx context.Context, p caller.Principal, id string) (*scheduler.Lease, error) {
	l, err := e.sched.Lease(ctx, p.Caller, id)
	if err == nil {
		err = e.Governed.CheckNetwork(p, l)
	}
	return l, err
}
