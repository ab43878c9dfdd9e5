package client

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
)

// progress is what a listener reports to watchWithRetry.
type progress struct {
	events      int   // number of events so far
	ended       bool  // the connection that ended was the last one
	callbackErr error // error of the caller's callback, which stops the watch
}

// watchWithRetry calls listen for one connection after the other, until ctx ends or the listener is
// done. It reconnects with growing pauses if the connection is cut, the server is away, or the
// server dropped a slow reader. It returns an error if no server answers at the start or the server
// refuses the request.
func watchWithRetry(ctx context.Context, p *progress, listen func(context.Context) error) error {
	pause := retryPauseMin
	for answered := false; ; {
		heard := p.events
		err := listen(ctx)
		answered = answered || !errors.Is(err, ErrNoServer)
		switch {
		case p.callbackErr != nil:
			return p.callbackErr
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case p.ended || !answered:
			return err
		case !errdefs.IsUnavailable(err) && !errdefs.IsResourceExhausted(err):
			return err
		}
		if p.events > heard {
			pause = retryPauseMin
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, retryPauseMax)
	}
}
