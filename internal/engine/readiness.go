package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/templates"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// templateFailing is the state of a template whose sandboxes cannot be created.
const templateFailing = "failing"

// Ready says of each template whether a call would get a sandbox of it. It returns an error of
// class Unavailable if that holds for no template, or if the service is starting or stopping. The
// list is complete in both cases if the service runs.
//
// One usable template suffices: a service that is not ready gets no requests at all from a load
// balancer, and an operator could not repair the others. For the same reason a template whose
// creations fail still counts while callers have sandboxes of it.
func (e *Engine) Ready(ctx context.Context, p caller.Principal) ([]v1.TemplateReadiness, error) {
	e.mu.Lock()
	running := e.ready
	e.mu.Unlock()
	if !running || e.handing.Err() != nil {
		return nil, usererror.Errorf(errdefs.ErrUnavailable, "the service is starting or stopping")
	}
	if err := e.store.Ping(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
	}
	pools := map[string]scheduler.PoolStats{}
	for _, pool := range e.sched.Pools() {
		pools[pool.Template] = pool
	}
	var out []v1.TemplateReadiness
	var reasons []string
	usable := false
	for _, t := range e.Templates.List(ctx, caller.Local("")) {
		one, serves := readiness(t, pools[t.Name])
		one.Default = t.Name == e.Templates.Default()
		usable = usable || serves
		if one.Error != "" && !p.Operator {
			one.Error = "the service's log has the reason"
		}
		if !serves {
			reasons = append(reasons, fmt.Sprintf("%s is %s: %s", one.Name, one.State, one.Error))
		}
		out = append(out, one)
	}
	switch {
	case len(out) == 0:
		return out, usererror.Errorf(errdefs.ErrUnavailable, "no template is configured: see docs/templates.md")
	case !usable:
		return out, usererror.Errorf(errdefs.ErrUnavailable, "no template can be used: %s", strings.Join(reasons, "; "))
	}
	return out, nil
}

// readiness returns the state of a template, and whether the template serves callers.
func readiness(t v1.Template, pool scheduler.PoolStats) (v1.TemplateReadiness, bool) {
	out := v1.TemplateReadiness{Name: t.Name, State: t.State}
	switch {
	case t.State != templates.Ready:
		out.Error = t.Error
		return out, false
	case pool.Failing:
		out.State, out.Error = templateFailing, pool.LastError
		return out, pool.Leased > 0
	}
	return out, true
}
