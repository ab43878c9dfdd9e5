package netpolicy

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Gateway. The zero value is good: the host's name servers and
// roots, no exceptions, default limits.
type Options struct {
	Resolver Resolver
	Private  []Private
	// Roots are what servers of https rules are verified by; nil: the host's.
	Roots  *x509.CertPool
	Limits Limits // of each session
	// Audit is called once for each tunnel and request, after it ended, and for
	// each connection on which none was understood; concurrently. It must not
	// wait for anything.
	Audit func(Connection)
	Log   *slog.Logger // nil: none
}

// Gateway connects sandboxes to the world outside, as far as their rules allow.
// All methods are safe for concurrent use. One goroutine of its own waits until
// Close.
type Gateway struct {
	o      Options
	log    *slog.Logger
	guard  *Guard
	dialer net.Dialer
	server *http.Server
	inside *handedOver

	ctx   context.Context
	stop  context.CancelCauseFunc
	works sync.WaitGroup // the server and each Serve

	most int          // connections from inside, of all sessions together
	open atomic.Int64 // so many there are

	mu     sync.Mutex
	closed bool
	own    map[netip.Addr]bool
	ownAt  time.Time
}

var errClosed = errors.New("the gateway is closed")

// New makes a Gateway. An error names the option, and is an *InvalidError.
func New(o Options) (*Gateway, error) {
	guard, err := NewGuard(o.Private)
	if err != nil {
		return nil, err
	}
	if o.Resolver == nil {
		o.Resolver = serverResolver(netip.AddrPort{})
	}
	if o.Audit == nil {
		o.Audit = func(Connection) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.withDefaults()
	g := &Gateway{o: o, log: o.Log, guard: guard, inside: newHandedOver(), most: mostOpen()}
	g.ctx, g.stop = context.WithCancelCause(context.Background())
	g.server = newServer(g)
	g.works.Go(func() {
		if err := g.server.Serve(g.inside); !errors.Is(err, http.ErrServerClosed) {
			g.log.Error("serve proxy requests", "error", err)
		}
	})
	return g, nil
}

// Close ends all sessions and waits until nothing of them runs. Idempotent.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.stop(errClosed)
	err := g.server.Close()
	g.works.Wait()
	return err
}

// enter counts a Serve, unless the gateway is closed.
func (g *Gateway) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosed
	}
	g.works.Add(1)
	return nil
}

// Session makes one sandbox's part of the gateway. It holds nothing that has to
// be closed before its Serve is called.
func (g *Gateway) Session(o SessionOptions) *Session {
	s := &Session{
		g: g, name: o.Name, ceiling: o.Ceiling, rules: o.Rules,
		secrets: slices.Clone(o.Secrets), flows: map[*flow]struct{}{},
	}
	s.sent.Store(o.Sent)
	s.received.Store(o.Received)
	s.spent = s.over()
	s.plain, s.upgrades = newTransports(s)
	return s
}
