package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

const (
	// fenceTime limits the wait for requests of earlier hosts.
	fenceTime = 5 * time.Second
	// cutTime is how long a session's shell may take to come back from a command whose request was
	// cut.
	cutTime = 2 * time.Second
)

// errReplaced is the cause of the end of a request's context.
var errReplaced = errors.New("a newer host has replaced this one")

// fence refuses the requests of hosts that a newer one has replaced.
type fence struct {
	log *slog.Logger

	mu    sync.Mutex
	epoch int64                       // the highest one seen; guarded by mu
	until time.Time                   // when no request waits for earlier hosts any more; guarded by mu
	open  map[*fencedRequest]struct{} // guarded by mu
}

// fencedRequest is a request that is being served.
type fencedRequest struct {
	epoch  int64
	conn   net.Conn
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// enter admits a request. It returns the request's context and what to call at the request's end.
// The first request of a newer host cuts all others: it closes their streams, ends their contexts
// and calls cut, which closes what outlives a request. Requests of the newer host wait until those
// have ended, but at most until fenceTime after the cut.
//
// A request that has not ended by then is inside a system call, such as one on storage that does
// not respond, or it kills processes that do not die. Admitting the newer host is safe: the system
// call can still take effect, but handlers check the context before they start a command, write
// input or a file, dial, or claim. The answer goes nowhere. Without this limit, such a request
// would make the sandbox unusable.
func (f *fence) enter(ctx context.Context, req wire.Request, conn net.Conn, cut func()) (
	_ context.Context, leave func(), err error) {
	f.mu.Lock()
	if req.Epoch < f.epoch {
		defer f.mu.Unlock()
		return nil, nil, wire.Failf(wire.FailedPrecondition, wire.FieldEpoch,
			"the sandbox belongs to a newer host with epoch %d; this host has epoch %d", f.epoch, req.Epoch)
	}
	newer := req.Epoch > f.epoch
	if newer {
		f.epoch, f.until = req.Epoch, time.Now().Add(fenceTime)
	}
	older := f.cutOlder()
	if newer {
		cut()
	}
	r := &fencedRequest{epoch: req.Epoch, conn: conn, done: make(chan struct{})}
	ctx, r.cancel = context.WithCancelCause(ctx)
	if f.open == nil {
		f.open = map[*fencedRequest]struct{}{}
	}
	f.open[r] = struct{}{}
	until := f.until
	f.mu.Unlock()
	leave = func() {
		f.mu.Lock()
		delete(f.open, r)
		f.mu.Unlock()
		r.cancel(nil)
		close(r.done)
	}
	if len(older) > 0 {
		if !awaitEnds(ctx, older, until) && newer {
			f.log.Warn("requests of an earlier host have not ended; admitted the newer host", "after", fenceTime)
		}
		if ctx.Err() != nil {
			leave()
			return nil, nil, errShutDown()
		}
	}
	return ctx, leave, nil
}

// cutOlder cuts and returns the requests of hosts with a lower epoch. f.mu must be held.
func (f *fence) cutOlder() (older []*fencedRequest) {
	for r := range f.open {
		if r.epoch < f.epoch {
			_ = r.conn.Close() // before the handler can answer that its context has ended
			r.cancel(errReplaced)
			older = append(older, r)
		}
	}
	return older
}

// awaitEnds reports whether all requests end before a time and before ctx does.
func awaitEnds(ctx context.Context, requests []*fencedRequest, until time.Time) bool {
	late := time.NewTimer(time.Until(until))
	defer late.Stop()
	for _, r := range requests {
		select {
		case <-r.done:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// errShutDown is the answer to a request whose context has ended. If a newer host has cut the
// request, the stream is closed and nobody gets the answer.
func errShutDown() *wire.Failure {
	return wire.Failf(wire.Unavailable, "", "the sandbox is shutting down")
}
