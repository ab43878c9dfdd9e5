package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/metrics"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
)

// observe sets who is told about stages and writes.
func (e *Engine) observe(opts Options) {
	var observers []stage.Observer
	if opts.Metrics != nil {
		observers = append(observers, opts.Metrics)
		e.store.OnWrite(opts.Metrics.StoreWrite)
	}
	if opts.Tracer != nil {
		observers = append(observers, opts.Tracer)
	}
	e.stages = stage.Join(observers...)
}

// countToolCall counts a tool call that ended.
func (e *Engine) countToolCall(c governed.Ended) {
	e.metrics.ToolCall(metrics.ToolCall{
		Tool: cmp.Or(c.Tool, metrics.Unknown), Profile: cmp.Or(c.Profile, metrics.Unknown), Caller: c.Caller,
		Ending: c.Ending, Class: c.Class,
	})
}

// countVerdict counts a decision of a policy.
func (e *Engine) countVerdict(profile string, verdict policy.Action) {
	e.metrics.Verdict(profile, string(verdict))
}

// watchMetrics has the metrics read what needs no counting.
func (e *Engine) watchMetrics(opts Options) {
	e.metrics.Watch(
		func(ctx context.Context) (metrics.Figures, error) { return e.metricFigures(ctx, opts.Governance) },
		func() metrics.Space { return e.metricSpace(opts) },
	)
}

// metricFigures reads what costs little.
func (e *Engine) metricFigures(ctx context.Context, g *governed.Config) (metrics.Figures, error) {
	f := metrics.Figures{
		Sandboxes: map[string]int{}, FailedRemovals: e.sched.FailedRemovals(), EgressOpen: e.Egress.Open(),
	}
	for _, p := range e.sched.Pools() {
		f.Pools = append(f.Pools, metrics.Pool{
			Template: p.Template, Creating: p.Creating, Warm: p.Warm, Leased: p.Leased, Waiting: p.Waiting,
			Target: p.Target, Min: p.Settings.Min, Max: p.Settings.Max, Created: p.Created, Failed: p.Failed,
		})
	}
	states, err := e.store.States(ctx)
	if err != nil {
		return f, err
	}
	for state, n := range states {
		f.Sandboxes[string(state)] = n
	}
	f.StoreWaits, f.StoreWaited = e.store.Waits()
	if g == nil {
		return f, nil
	}
	f.Audit = &metrics.Audit{Queued: g.Audit.Queued(), Head: g.Audit.Seq()}
	f.Approvals = &metrics.Approvals{}
	var oldest time.Time
	if f.Approvals.Pending, oldest = g.Gate.Waiting(); !oldest.IsZero() {
		f.Approvals.Oldest = max(0, time.Since(oldest))
	}
	return f, nil
}

// metricSpace reads the use of disks.
func (e *Engine) metricSpace(opts Options) metrics.Space {
	var s metrics.Space
	for _, i := range opts.Images.List() {
		s.Images++
		s.ImageBytes += i.SizeBytes
	}
	for _, w := range e.volumes.List() {
		s.Workspaces++
		s.WorkspaceUsedBytes += w.UsedBytes
		s.WorkspaceQuotas += w.QuotaBytes
	}
	return s
}
