package engine

import (
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// publishStateChange publishes a sandbox's new state.
func (e *Engine) publishStateChange(s scheduler.StateChange) {
	if s.State == store.Gone && s.Caller != "" {
		e.metrics.LeaseEnded(s.Template, s.Reason, scheduler.EndReasons())
	}
	e.Events.Publish(v1.ServiceEvent{
		Type: "sandbox." + string(
			s.State,
		), Sandbox: s.ID, Template: s.Template, Caller: s.Caller, Workspace: s.Workspace, Reason: s.Reason,
	})
}
