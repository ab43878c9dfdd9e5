package engine

import (
	"context"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// Pools returns the state of the warm pools. Only operators see the last error, which may describe
// the host.
func (e *Engine) Pools(_ context.Context, principal caller.Principal) []v1.Pool {
	stats := e.sched.Pools()
	out := make([]v1.Pool, 0, len(stats))
	for _, p := range stats {
		if !principal.Operator {
			p.LastError = ""
		}
		out = append(out, v1.Pool{
			Template: p.Template, Image: p.Image, Min: p.Settings.Min, Max: p.Settings.Max, Target: p.Target,
			Adaptive: p.Settings.Adaptive, Creating: p.Creating, Warm: p.Warm,
			Leased: p.Leased, Waiting: p.Waiting, Created: p.Created, Failed: p.Failed, LastError: p.LastError,
		})
	}
	return out
}
