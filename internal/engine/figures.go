package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Figures tells what leased sandboxes use now, newest first: the caller's own,
// and for operators those of all. Looking does not keep a lease from being
// idle. One that ends meanwhile is left out.
func (e *Engine) Figures(ctx context.Context, call Call) ([]v1.Figures, error) {
	rows, err := e.leased(ctx, call)
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

// leased are the rows of leases that a caller may see, newest first.
func (e *Engine) leased(ctx context.Context, call Call) ([]store.Sandbox, error) {
	if !call.Operator {
		return e.opts.Store.Leases(ctx, call.Caller, false, maxListed)
	}
	rows, err := e.opts.Store.Live(ctx)
	rows = slices.DeleteFunc(rows, func(r store.Sandbox) bool { return r.State != store.Leased })
	slices.Reverse(rows)
	return rows[:min(len(rows), maxListed)], err
}

// figures are those of one lease; false if it is gone.
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
		f.Missing = "a sandbox of this runtime and class tells none"
	default:
		// Its text may name paths of the host.
		e.log.Warn("figures of a sandbox not read", "sandbox", r.ID, "error", err)
		f.Missing = "they could not be read now"
	}
	if r.Lease.Workspace != "" {
		if w, err := e.opts.Volumes.Get(r.Lease.Workspace); err == nil {
			f.WorkspaceUsedBytes, f.WorkspaceQuotaBytes = w.UsedBytes, w.QuotaBytes
		}
	}
	return f, true
}
