package server

import (
	"net"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// fenceTime limits the wait for requests of an earlier host. They end soon after their streams.
const fenceTime = 5 * time.Second

// fence refuses the requests of hosts that a newer one has replaced.
type fence struct {
	mu    sync.Mutex
	epoch int64                       // the highest one seen; guarded by mu
	open  map[*fencedRequest]struct{} // guarded by mu
}

// fencedRequest is a request that is being served.
type fencedRequest struct {
	epoch int64
	conn  net.Conn
	done  chan struct{}
}

// enter admits a request, and returns what to call at its end. The first request of a newer host
// ends all others: it closes their streams and calls cut, which closes what outlives a request. No
// request of the newer host is admitted before they have ended.
func (f *fence) enter(req wire.Request, conn net.Conn, cut func()) (leave func(), err error) {
	if req.Op == wire.OpPing && req.Epoch == 0 {
		return func() {}, nil // of a bridge
	}
	f.mu.Lock()
	if req.Epoch < f.epoch {
		defer f.mu.Unlock()
		return nil, wire.Failf(wire.FailedPrecondition, wire.FieldEpoch,
			"the sandbox belongs to a newer host with epoch %d; this host has epoch %d", f.epoch, req.Epoch)
	}
	newer := req.Epoch > f.epoch
	f.epoch = req.Epoch
	var older []*fencedRequest
	for r := range f.open {
		if r.epoch < req.Epoch {
			older = append(older, r)
			_ = r.conn.Close()
		}
	}
	if newer {
		cut()
	}
	r := &fencedRequest{epoch: req.Epoch, conn: conn, done: make(chan struct{})}
	if f.open == nil {
		f.open = map[*fencedRequest]struct{}{}
	}
	f.open[r] = struct{}{}
	f.mu.Unlock()
	leave = func() {
		f.mu.Lock()
		delete(f.open, r)
		f.mu.Unlock()
		close(r.done)
	}
	if !awaitEnds(older) {
		leave()
		return nil, wire.Failf(wire.Unavailable, "", "requests of an earlier host have not ended after %s", fenceTime)
	}
	return leave, nil
}

// awaitEnds reports whether all requests end within fenceTime.
func awaitEnds(requests []*fencedRequest) bool {
	if len(requests) == 0 {
		return true
	}
	late := time.After(fenceTime)
	for _, r := range requests {
		select {
		case <-r.done:
		case <-late:
			return false
		}
	}
	return true
}
