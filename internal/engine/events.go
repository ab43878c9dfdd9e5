package engine

import (
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

// publishStateChange publishes a sandbox's new state.
func (e *Engine) publishStateChange(s scheduler.StateChange) {
	e.Events.Publish(v1.ServiceEvent{
		Type: "sandbox." + string(
			s.State,
		), Sandbox: s.ID, Template: s.Template, Caller: s.Caller, Workspace: s.Workspace, Reason: s.Reason,
	})
}
