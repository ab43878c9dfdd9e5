package scheduler

import (
	"cmp"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Step is a state that a sandbox has come to, after it was written down.
type Step struct {
	ID, Template string
	State        store.State
	// Caller and Workspace are those of its lease, if it has one, the workspace by
	// the caller's name.
	Caller, Workspace string
	// Reason is why it stops.
	Reason string
}

// step tells who wants to know.
func (s *Scheduler) step(row store.Sandbox) {
	if s.opts.Step == nil {
		return
	}
	s.opts.Step(Step{
		ID: row.ID, Template: row.Template, State: row.State, Caller: row.Caller,
		Workspace: cmp.Or(row.Lease.Named, row.Lease.Workspace), Reason: row.Reason,
	})
}
