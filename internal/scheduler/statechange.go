package scheduler

import (
	"cmp"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// StateChange is the event of a stored state change of a sandbox.
type StateChange struct {
	ID, Template string
	State        store.State
	// Caller and Workspace belong to its lease, if any. Workspace is the caller's name of it. A
	// sandbox with a volume claim has Workspace before it is leased.
	Caller, Workspace string
	// Reason says why the sandbox ends.
	Reason string
}

// notifyStateChange calls Options.OnStateChange.
func (s *Scheduler) notifyStateChange(row store.Sandbox) {
	if s.opts.OnStateChange == nil {
		return
	}
	s.opts.OnStateChange(StateChange{
		ID: row.ID, Template: row.Template, State: row.State, Caller: row.Caller,
		Workspace: cmp.Or(row.Lease.Named, row.Lease.Workspace), Reason: row.Reason,
	})
}
