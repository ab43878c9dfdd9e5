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

	"github.com/sandbox-orchestrator/orchestrator/internal/descriptors"
)

// Options configures a Gateway. The zero value uses the host's name servers and roots, no
// exceptions and default limits.
type Options struct {
	Resolver Resolver
	Private  []Private
	// Roots verifies the servers of https rules (default: the host's roots).
	Roots  *x509.CertPool
	Limits Limits // of each session
	// Audit is called once for each tunnel and request after it ended, and for each connection
	// without a valid request. Calls are concurrent and must not block.
	Audit func(Connection)
	Log   *slog.Logger // nil: none
}

// Gateway connects sandboxes to external hosts as their rules allow. All methods are safe for
// concurrent use. It runs one goroutine until Close.
type Gateway struct {
	o        Options
	log      *slog.Logger
	guard    *Guard
	dialer   net.Dialer
	server   *http.Server
	listener *connListener

	ctx   context.Context
	stop  context.CancelCauseFunc
	works sync.WaitGroup // the server and each Serve

	maxOpen int          // maximum connections from all sandboxes
	open    atomic.Int64 // current connections

	mu     sync.Mutex
	closed bool
	own    map[netip.Addr]bool
	ownAt  time.Time
}

var errClosed = errors.New("the gateway is closed")

// New returns a Gateway. An error is an *InvalidError that names the option.
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
	g := &Gateway{o: o, log: o.Log, guard: guard, listener: newConnListener(), maxOpen: descriptors.Limit() / filesPerConnection}
	g.ctx, g.stop = context.WithCancelCause(context.Background())
	g.server = newServer(g)
	g.works.Go(func() {
		if err := g.server.Serve(g.listener); !errors.Is(err, http.ErrServerClosed) {
			g.log.Error("proxy server failed", "error", err)
		}
	})
	return g, nil
}

// Close ends all sessions and waits for them. It is idempotent.
func (g *Gateway) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.stop(errClosed)
	err := g.server.Close()
	g.works.Wait()
	return err
}

// Open returns the number of open connections from all sandboxes.
func (g *Gateway) Open() int64 { return g.open.Load() }

// addServe counts a call of Serve. It returns an error if the gateway is closed.
func (g *Gateway) addServe() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosed
	}
	g.works.Add(1)
	return nil
}

// Session returns a session for one sandbox. It needs no cleanup until Serve is called.
func (g *Gateway) Session(o SessionOptions) *Session {
	s := &Session{
		g: g, name: o.Name, ceiling: o.Ceiling, rules: o.Rules,
		secrets: slices.Clone(o.Secrets), flows: map[*flow]struct{}{},
	}
	s.sent.Store(o.Sent)
	s.received.Store(o.Received)
	s.spent = s.exceedsBytes()
	s.plain, s.upgrades = newTransports(s)
	return s
}
