package engine

import (
	"context"

	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

// hideLease redacts a lease's secrets from the caller's records. The caller must call until: with a
// lease, the redaction lasts until that lease is gone; with nil, it ends at once. The values are
// not stored: after a restart only patterns redact them.
func (e *Engine) hideLease(
	ctx context.Context, caller string, env map[string]string,
) (until func(*scheduler.Lease), err error) {
	show, err := e.Governed.HideEnv(ctx, caller, env)
	if show == nil {
		return func(*scheduler.Lease) {}, err
	}
	return func(l *scheduler.Lease) {
		if l == nil {
			show()
			return
		}
		e.work.Go(func() { // Serve waits for it
			select {
			case <-l.Gone():
			case <-e.closing:
			}
			show()
		})
	}, err
}
