package engine

import (
	"context"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// Sync copies a sandbox's files back to its workspace if the workspace was copied into the sandbox.
// For a mounted workspace it does nothing and reports that.
func (e *Engine) Sync(ctx context.Context, p caller.Principal, id string) (v1.Sync, error) {
	l, use, err := e.use(ctx, p, id)
	if err != nil {
		return v1.Sync{}, err
	}
	defer use.Leave()
	sum, carried, err := e.sched.Sync(use.Ctx, l)
	if err != nil {
		return v1.Sync{}, l.Explain(err)
	}
	return v1.Sync{Carried: carried, Entries: sum.Entries, Bytes: sum.Bytes}, nil
}
