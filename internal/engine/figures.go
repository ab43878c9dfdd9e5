package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Figures returns the current resource usage of leased sandboxes, newest first. An operator sees
// all sandboxes, another caller only their own. Reading does not count as use of a lease. Leases
// that end during the call are left out.
func (e *Engine) Figures(ctx context.Context, p caller.Principal) ([]v1.Figures, error) {
	rows, err := e.leased(ctx, p)
	if err != nil {
		return nil, err
	}
	out := make([]v1.Figures, 0, len(rows))
	for _, r := range rows {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if l := e.sched.Live(r.ID); l != nil {
			if f, ok := e.figures(ctx, l, r); ok {
				out = append(out, f)
			}
		}
	}
	return out, nil
}

// leased returns the rows of the leases that the caller may see, newest first.
func (e *Engine) leased(ctx context.Context, p caller.Principal) ([]store.Sandbox, error) {
	if !p.Operator {
		return e.store.Leases(ctx, p.Caller, false, core.MaxListed)
	}
	rows, err := e.store.Live(ctx)
	rows = slices.DeleteFunc(rows, func(r store.Sandbox) bool { return r.State != store.Leased })
	slices.Reverse(rows)
	return rows[:min(len(rows), core.MaxListed)], err
}

// figures returns the usage of one lease. ok is false if the sandbox is gone.
func (e *Engine) figures(ctx context.Context, l *scheduler.Lease, r store.Sandbox) (v1.Figures, bool) {
	f := v1.Figures{ID: r.ID, Template: r.Template, Caller: r.Caller, Workspace: cmp.Or(r.Lease.Named, r.Lease.Workspace)}
	got, err := l.Figures(ctx)
	f.At = time.Now().UTC()
	switch {
	case err == nil:
		f.CPUMS = float64(got.CPU) / float64(time.Millisecond)
		f.MemoryBytes, f.MemoryLimitBytes = got.Memory, got.MemoryLimit
		f.Pids, f.PidsLimit = got.Pids, got.PidsLimit
	case errdefs.IsNotFound(err):
		return f, false
	case errdefs.IsNotImplemented(err):
		f.Missing = "not available for this runtime and class"
	default:
		// Log the error: its text may contain host paths.
		e.log.Warn("failed to read figures of a sandbox", "sandbox", r.ID, "error", err)
		f.Missing = "could not be read"
	}
	if r.Lease.Workspace != "" {
		if w, err := e.volumes.Get(r.Lease.Workspace); err == nil {
			f.WorkspaceUsedBytes, f.WorkspaceQuotaBytes = w.UsedBytes, w.QuotaBytes
		}
	}
	return f, true
}
