package engine

import (
	"context"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Sync brings the workspace of a lease up to what its sandbox has, where it is
// carried and not mounted. Elsewhere there is nothing to do, and that is told.
func (e *Engine) Sync(ctx context.Context, call Call, id string) (v1.Sync, error) {
	l, use, err := e.use(ctx, call, id)
	if err != nil {
		return v1.Sync{}, err
	}
	defer use.Leave()
	sum, carried, err := e.sched.Sync(use.Ctx, l)
	if err != nil {
		return v1.Sync{}, e.endedOr(l, err)
	}
	return v1.Sync{Carried: carried, Entries: sum.Entries, Bytes: sum.Bytes}, nil
}
