package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// imageEvents runs do and sends the events that it reports as server-sent events. Each report waits
// until its event is sent, so nothing is queued for a slow client.
func (s *Server) imageEvents(
	ctx context.Context, w http.ResponseWriter, do func(ctx context.Context, tell func(v1.PullEvent)) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	events := make(chan v1.PullEvent)
	done := make(chan error, 1)
	go func() { // waited for below
		done <- recovered(func() error {
			return do(ctx, func(e v1.PullEvent) {
				select {
				case events <- e:
				case <-ctx.Done():
				}
			})
		})
	}()
	out := newSSE(w)
	beat := time.NewTicker(heartbeatTime)
	defer beat.Stop()
	for {
		var err error
		select {
		case e := <-events:
			err = out.send(e.Type, e)
		case <-beat.C:
			err = out.beat()
		case err := <-done:
			if err != nil && out.began {
				return out.problem(err)
			}
			return err
		}
		if err != nil { // the client is gone
			err = fmt.Errorf("%w: %w", context.Canceled, err)
			cancel(err)
			<-done
			return err
		}
	}
}
