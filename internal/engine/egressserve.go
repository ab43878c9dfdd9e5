package engine

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// guestRetryInterval is the pause between attempts to reach the guest of a lease.
const guestRetryInterval = time.Second

// egressService owns the gateway and the egress sessions of leases. Methods accept a nil receiver
// if their comment says so.
type egressService struct {
	o       EgressOptions
	gateway *netpolicy.Gateway
	auditor *egressAuditor
	ctx     context.Context // parent of all sessions
	stop    context.CancelFunc

	mu       sync.Mutex
	sessions map[string]*egressSession // by sandbox
	// ceilings caches compiled rules, keyed by the subset of Allow that applies. The configuration
	// bounds their number.
	ceilings map[string]*netpolicy.Rules
	// ended holds the traffic of closed sessions of live leases, so that reopening a session does
	// not reset its byte limits.
	ended map[string]traffic
}

// traffic counts the bytes of outside connections.
type traffic struct{ sent, received int64 }

// egressSession is the gateway session of one lease.
type egressSession struct {
	id      string
	grant   *egressGrant // guarded by egressService.mu
	session *netpolicy.Session
	stop    context.CancelFunc
	done    chan struct{} // closed when its goroutine has ended
}

// openEgress starts the gateway. It returns nil if o is nil.
func openEgress(o *EgressOptions, e *Engine) (*egressService, error) {
	if o == nil {
		return nil, nil
	}
	x := &egressService{
		o:        *o,
		sessions: map[string]*egressSession{},
		ceilings: map[string]*netpolicy.Rules{},
		ended:    map[string]traffic{},
	}
	var log *audit.Log
	if g := e.opts.Governance; g != nil {
		log = g.Audit
		for _, c := range o.Secrets { // redact the service's own secrets forever
			g.Redactor.Add(c.Value)
			g.Redactor.Add(c.Bare)
		}
	}
	x.auditor = newEgressAuditor(log, e.log)
	x.o.Gateway.Audit = x.auditor.enqueue
	var err error
	if x.gateway, err = netpolicy.New(x.o.Gateway); err != nil {
		x.auditor.close()
		return nil, err
	}
	x.ctx, x.stop = context.WithCancel(context.Background())
	return x, nil
}

// closeEgress closes all connections and returns when they are recorded.
func (e *Engine) closeEgress() {
	x := e.egress
	if x == nil {
		return
	}
	x.stop()
	if err := x.gateway.Close(); err != nil {
		e.log.Error("failed to close the gateway", "error", err)
	}
	x.auditor.close()
}

// ceiling returns the rules that limit a caller who is not an operator. Callers with the same rules
// get the same pointer, so that serveEgress can compare ceilings.
func (x *egressService) ceiling(p caller.Principal) (*netpolicy.Rules, error) {
	var rules []netpolicy.Rule
	which := make([]byte, len(x.o.Allow))
	for i, a := range x.o.Allow {
		if a.appliesTo(p) {
			rules, which[i] = append(rules, a.Rule), 1
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if had := x.ceilings[string(which)]; had != nil {
		return had, nil
	}
	made, err := netpolicy.Compile(rules)
	if err == nil {
		x.ceilings[string(which)] = made
	}
	return made, err
}

func (x *egressService) credential(p caller.Principal, name string) (Credential, bool) {
	i := slices.IndexFunc(x.o.Secrets, func(c Credential) bool { return c.Name == name })
	if i < 0 {
		return Credential{}, false
	}
	c := x.o.Secrets[i]
	return c, p.Operator || slices.Contains(c.Callers, "*") || slices.Contains(c.Callers, p.Caller)
}

// find returns the sandbox's session and its current grant, or nil. The receiver may be nil.
func (x *egressService) find(id string) (*egressSession, *egressGrant) {
	if x == nil {
		return nil, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if o := x.sessions[id]; o != nil {
		return o, o.grant
	}
	return nil, nil
}

// end stops a session and waits for it. o and the receiver may be nil.
func (x *egressService) end(o *egressSession) {
	if o == nil {
		return
	}
	o.stop()
	<-o.done
}

// serveEgress serves the egress of a lease. If again is set, the guest is told first, because an
// earlier process may have died before it did so.
func (e *Engine) serveEgress(l *scheduler.Lease, g *egressGrant, again bool) {
	x := e.egress
	if old, before := x.find(l.ID); old != nil {
		if before.ceiling == g.ceiling {
			x.mu.Lock()
			old.grant = g
			x.mu.Unlock()
			old.session.Set(g.rules, g.secrets)
			return
		}
		x.end(old) // a session cannot change its ceiling
	}
	ctx, stop := context.WithCancel(x.ctx)
	o := &egressSession{id: l.ID, grant: g, stop: stop, done: make(chan struct{})}
	x.auditor.register(l.ID, l.Caller)
	x.mu.Lock()
	before := x.ended[l.ID]
	o.session = x.gateway.Session(
		netpolicy.SessionOptions{
			Name:     l.ID,
			Rules:    g.rules,
			Ceiling:  g.ceiling,
			Secrets:  g.secrets,
			Sent:     before.sent,
			Received: before.received,
		},
	)
	x.sessions[l.ID] = o
	if len(x.ended) > 2*e.opts.MaxSandboxes { // most of their leases have ended
		for id := range x.ended {
			x.forget(id, e.sched.Live(id) == nil)
		}
	}
	x.mu.Unlock()
	e.work.Go(func() { // Serve waits for it
		defer close(o.done)
		defer stop()
		e.serveEgressSession(ctx, l, o, again, g)
		s := o.session.State()
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.sessions, l.ID)
		x.ended[l.ID] = traffic{s.Sent, s.Received}
		x.forget(l.ID, l.Ended() != "")
	})
}

// forget drops the counters of a lease that is over. The caller holds mu.
func (x *egressService) forget(id string, over bool) {
	if over {
		delete(x.ended, id)
		x.auditor.forget(id)
	}
}

// serveEgressSession serves a session until ctx or the lease ends.
func (e *Engine) serveEgressSession(
	ctx context.Context,
	l *scheduler.Lease,
	o *egressSession,
	again bool,
	g *egressGrant,
) {
	use := e.awaitGuest(ctx, l, again, g)
	if use == nil {
		return
	}
	defer use.Leave()
	err := o.session.Serve(use.Ctx, func(ctx context.Context) (net.Conn, error) { return use.Accept(ctx) })
	if err != nil && ctx.Err() == nil {
		e.log.Error("failed to serve egress of a sandbox", "sandbox", o.id, "error", err)
	}
}

// awaitGuest retries until the lease's sandbox can be used. It returns nil if the lease or ctx
// ends.
func (e *Engine) awaitGuest(ctx context.Context, l *scheduler.Lease, again bool, g *egressGrant) *scheduler.Use {
	for {
		use, err := l.Attend(ctx)
		if err == nil && again {
			if err = use.Egress(use.Ctx, *g.guestConfig()); err != nil {
				use.Leave()
			}
		}
		if err == nil {
			return use
		}
		if errdefs.IsNotFound(err) || ctx.Err() != nil || l.Cause() != nil {
			return nil
		}
		e.log.Warn("failed to reach a guest for egress; will retry", "sandbox", l.ID, "error", err)
		select {
		case <-time.After(guestRetryInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// resumeEgress serves the leases of an earlier process.
func (e *Engine) resumeEgress(rows []store.Sandbox) {
	for _, row := range rows {
		l := e.sched.Live(row.ID)
		if row.State != store.Leased || row.Lease.Egress == nil || l == nil || l.Ended() != "" {
			continue
		}
		g, err := e.storedGrant(row)
		if err != nil || g == nil {
			e.log.Warn("failed to restore egress; sandbox has none", "sandbox", row.ID, "error", err)
			continue
		}
		e.serveEgress(l, g, true)
	}
}
