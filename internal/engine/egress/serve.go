package egress

import (
	"context"
	"net"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// guestRetryInterval is the pause between attempts to reach the guest of a lease.
const guestRetryInterval = time.Second

// traffic counts the bytes of outside connections.
type traffic struct{ sent, received int64 }

// session is the gateway session of one lease.
type session struct {
	id      string
	grant   *Grant // guarded by Service.mu
	gateway *netpolicy.Session
	stop    context.CancelFunc
	done    chan struct{} // closed when its goroutine has ended
}

// end stops a session and waits for it. o may be nil.
func (o *session) end() {
	if o == nil {
		return
	}
	o.stop()
	<-o.done
}

// serve serves the egress of a lease. If again is set, the guest is told first, because an
// earlier process may have died before it did so.
func (s *Service) serve(l *scheduler.Lease, g *Grant, again bool) {
	if old, before := s.find(l.ID); old != nil {
		if before.ceiling == g.ceiling {
			s.mu.Lock()
			old.grant = g
			s.mu.Unlock()
			old.gateway.Set(g.rules, g.secrets)
			return
		}
		old.end() // a session cannot change its ceiling
	}
	ctx, stop := context.WithCancel(s.ctx)
	o := &session{id: l.ID, grant: g, stop: stop, done: make(chan struct{})}
	s.auditor.register(l.ID, l.Caller)
	s.mu.Lock()
	before := s.ended[l.ID]
	o.gateway = s.gateway.Session(
		netpolicy.SessionOptions{
			Name:     l.ID,
			Rules:    g.rules,
			Ceiling:  g.ceiling,
			Secrets:  g.secrets,
			Sent:     before.sent,
			Received: before.received,
		},
	)
	s.sessions[l.ID] = o
	if len(s.ended) > 2*s.opts.MaxSandboxes { // most of their leases have ended
		for id := range s.ended {
			s.forget(id, s.opts.Leases.Live(id) == nil)
		}
	}
	s.mu.Unlock()
	s.work.Go(func() { // Close waits for it
		defer close(o.done)
		defer stop()
		s.serveSession(ctx, l, o, again, g)
		last := o.gateway.State()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sessions, l.ID)
		s.ended[l.ID] = traffic{last.Sent, last.Received}
		s.forget(l.ID, l.Ended() != "")
	})
}

// forget drops the counters of a lease that is over. The caller holds mu.
func (s *Service) forget(id string, over bool) {
	if over {
		delete(s.ended, id)
		s.auditor.forget(id)
	}
}

// serveSession serves a session until ctx or the lease ends.
func (s *Service) serveSession(
	ctx context.Context,
	l *scheduler.Lease,
	o *session,
	again bool,
	g *Grant,
) {
	use := s.awaitGuest(ctx, l, again, g)
	if use == nil {
		return
	}
	defer use.Leave()
	err := o.gateway.Serve(use.Ctx, func(ctx context.Context) (net.Conn, error) { return use.Accept(ctx) })
	if err != nil && ctx.Err() == nil {
		s.log.Error("failed to serve egress of a sandbox", "sandbox", o.id, "error", err)
	}
}

// awaitGuest retries until the lease's sandbox can be used. It returns nil if the lease or ctx
// ends.
func (s *Service) awaitGuest(ctx context.Context, l *scheduler.Lease, again bool, g *Grant) *scheduler.Use {
	for {
		use, err := l.Attend(ctx)
		if err == nil && again {
			if err = use.Egress(use.Ctx, *g.GuestConfig()); err != nil {
				use.Leave()
			}
		}
		if err == nil {
			return use
		}
		if errdefs.IsNotFound(err) || ctx.Err() != nil || l.Cause() != nil {
			return nil
		}
		s.log.Warn("failed to reach a guest for egress; will retry", "sandbox", l.ID, "error", err)
		select {
		case <-time.After(guestRetryInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// Resume serves the leases of an earlier process.
func (s *Service) Resume(rows []store.Sandbox) {
	for _, row := range rows {
		l := s.opts.Leases.Live(row.ID)
		if row.State != store.Leased || row.Lease.Egress == nil || l == nil || l.Ended() != "" {
			continue
		}
		g, err := s.storedGrant(row)
		if err != nil || g == nil {
			s.log.Warn("failed to restore egress; sandbox has none", "sandbox", row.ID, "error", err)
			continue
		}
		s.serve(l, g, true)
	}
}
