package engine

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// guestRetryInterval is between attempts to reach the guest of a lease that an earlier
// process had.
const guestRetryInterval = time.Second

// egressService is the gateway, and the leases that it serves. The methods take nil,
// for a service without.
type egressService struct {
	o       EgressOptions
	gateway *netpolicy.Gateway
	auditor *egressAuditor
	ctx     context.Context // of all that is served
	stop    context.CancelFunc

	mu       sync.Mutex
	sessions map[string]*egressSession // by sandbox
	// ceilings by which of Allow they are of, so there are no more than the
	// configuration tells apart.
	ceilings map[string]*netpolicy.Rules
	// ended is what leases carried that reach nothing now: who has the proxy taken
	// away and given again gets no more by that.
	ended map[string]traffic
}

// traffic are bytes on connections to the outside.
type traffic struct{ sent, received int64 }

// egressSession is one lease's way out.
type egressSession struct {
	id      string
	grant   *egressGrant // of egress.mu
	session *netpolicy.Session
	stop    context.CancelFunc
	done    chan struct{} // closed when nothing of it runs
}

// openEgress makes the gateway; log is nil where nothing is recorded.
func openEgress(o *EgressOptions, e *Engine) (*egressService, error) {
	if o == nil {
		return nil, nil
	}
	x := &egressService{o: *o, sessions: map[string]*egressSession{}, ceilings: map[string]*netpolicy.Rules{}, ended: map[string]traffic{}}
	var log *audit.Log
	if g := e.opts.Governance; g != nil {
		log = g.Audit
		for _, c := range o.Secrets { // for good: they are the service's own
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

// closeEgress ends all connections, and returns when they are recorded.
func (e *Engine) closeEgress() {
	x := e.egress
	if x == nil {
		return
	}
	x.stop()
	if err := x.gateway.Close(); err != nil {
		e.log.Error("gateway not closed", "error", err)
	}
	x.auditor.close()
}

// ceiling is the most that a caller who is no operator may ask for. Who may
// have the same get the same pointer: by it a session is known to go on.
func (x *egressService) ceiling(call Call) (*netpolicy.Rules, error) {
	var rules []netpolicy.Rule
	which := make([]byte, len(x.o.Allow))
	for i, a := range x.o.Allow {
		if a.appliesTo(call) {
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

func (x *egressService) credential(call Call, name string) (Credential, bool) {
	i := slices.IndexFunc(x.o.Secrets, func(c Credential) bool { return c.Name == name })
	if i < 0 {
		return Credential{}, false
	}
	c := x.o.Secrets[i]
	return c, call.Operator || slices.Contains(c.Callers, "*") || slices.Contains(c.Callers, call.Caller)
}

// find gives the outlet of a sandbox and what it is granted now, or nil.
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

// end ends what is served, and waits for that; nil is nothing.
func (x *egressService) end(o *egressSession) {
	if o == nil {
		return
	}
	o.stop()
	<-o.done
}

// serveEgress serves what a lease may reach from now on. again: the guest is to
// be told, since an earlier process may have died before it was.
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
		x.end(old) // a session keeps its ceiling
	}
	ctx, stop := context.WithCancel(x.ctx)
	o := &egressSession{id: l.ID, grant: g, stop: stop, done: make(chan struct{})}
	x.auditor.register(l.ID, l.Caller)
	x.mu.Lock()
	before := x.ended[l.ID]
	o.session = x.gateway.Session(netpolicy.SessionOptions{Name: l.ID, Rules: g.rules, Ceiling: g.ceiling, Secrets: g.secrets, Sent: before.sent, Received: before.received})
	x.sessions[l.ID] = o
	if len(x.ended) > 2*e.opts.MaxSandboxes { // most are over
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

// forget drops what is known of a lease that is over; mu is held.
func (x *egressService) forget(id string, over bool) {
	if over {
		delete(x.ended, id)
		x.auditor.forget(id)
	}
}

// serveEgressSession serves until ctx or the lease ends.
func (e *Engine) serveEgressSession(ctx context.Context, l *scheduler.Lease, o *egressSession, again bool, g *egressGrant) {
	use := e.awaitGuest(ctx, l, again, g)
	if use == nil {
		return
	}
	defer use.Leave()
	err := o.session.Serve(use.Ctx, func(ctx context.Context) (net.Conn, error) { return use.Accept(ctx) })
	if err != nil && ctx.Err() == nil {
		e.log.Error("egress of a sandbox not served", "sandbox", o.id, "error", err)
	}
}

// awaitGuest waits until the sandbox of a lease is there; nil: it never will be.
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
		e.log.Warn("egress of a sandbox not served yet; trying again", "sandbox", l.ID, "error", err)
		select {
		case <-time.After(guestRetryInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// resumeEgress serves leases of an earlier process again.
func (e *Engine) resumeEgress(rows []store.Sandbox) {
	for _, row := range rows {
		l := e.sched.Live(row.ID)
		if row.State != store.Leased || row.Lease.Egress == nil || l == nil || l.Ended() != "" {
			continue
		}
		g, err := e.storedGrant(row)
		if err != nil || g == nil {
			e.log.Warn("a sandbox may reach nothing any more", "sandbox", row.ID, "error", err)
			continue
		}
		e.serveEgress(l, g, true)
	}
}
