package client

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
)

// progress is what a listener tells whoever connects it again.
type progress struct {
	heard  int   // what came so far
	ended  bool  // the connection that ended was the last one
	failed error // what the listener's owner returned: it wants no more
}

// relisten listens over one connection after the other until ctx or the
// listener ends. A connection that is cut, a server that is away or drops who
// is too slow, are tried again after a while; only no server from the start,
// and what the server refuses, are errors.
func relisten(ctx context.Context, p *progress, listen func(context.Context) error) error {
	pause := persistMin
	for answered := false; ; {
		heard := p.heard
		err := listen(ctx)
		answered = answered || !errors.Is(err, ErrNoServer)
		switch {
		case p.failed != nil:
			return p.failed
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case p.ended || !answered:
			return err
		case !errdefs.IsUnavailable(err) && !errdefs.IsResourceExhausted(err):
			return err
		}
		if p.heard > heard {
			pause = persistMin
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, persistMax)
	}
}
