package guest

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
)

// Egress enables or disables the sandbox's proxy, or replaces the environment variables for new
// commands. Disabling closes its connections. If a command uses the proxy's port, the error has
// class FailedPrecondition.
func (c *Client) Egress(ctx context.Context, e wire.Egress) error {
	_, err := ask[struct{}](ctx, c, wire.OpEgress, e, c.times.short)
	return err
}

// Accept waits for the next connection to the sandbox's proxy until ctx ends or the guest is lost.
// ctx does not affect the returned connection, which the caller must close. Its data is untrusted.
// It has a CloseWrite method. If the proxy is disabled, the error has class FailedPrecondition.
func (c *Client) Accept(ctx context.Context) (net.Conn, error) {
	return c.openConn(ctx, wire.OpAccept, nil, 0)
}

// Dial connects to a server on the sandbox's loopback interface. The connection is like that of
// Accept. Errors: NotFound if the port has no listener, ResourceExhausted if too many connections
// are open.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	return c.openConn(ctx, wire.OpDial, wire.Dial{Port: port}, c.times.short)
}

// openConn requests a connection and returns the stream that carries it.
func (c *Client) openConn(ctx context.Context, op wire.Op, body any, within time.Duration) (net.Conn, error) {
	s, err := c.begin(ctx, op, body)
	if err != nil {
		return nil, err
	}
	conn, err := s.awaitConn(ctx, within)
	if err != nil {
		s.close()
		return nil, err
	}
	return conn, nil
}

// awaitConn waits until the stream has become a connection.
func (s *stream) awaitConn(ctx context.Context, within time.Duration) (net.Conn, error) {
	s.within(within)
	kind, payload, err := s.next(ctx)
	switch {
	case err != nil:
		return nil, err
	case kind == wire.KindFailure:
		return nil, s.failure(payload)
	case kind != wire.KindStarted:
		return nil, s.unexpected(kind)
	}
	started, err := decode[wire.Started](s, payload)
	if err != nil {
		return nil, err
	}
	relay.Bound(s.nc, started.Beside)
	s.unwatch()
	if ctx.Err() != nil {
		return nil, s.ended(ctx)
	}
	if err := s.nc.SetDeadline(time.Time{}); err != nil && !errors.Is(err, net.ErrClosed) {
		return nil, s.lost(err)
	}
	return s.nc, nil
}

func becomesConn(op wire.Op) bool { return op == wire.OpAccept || op == wire.OpDial }

// excludeFromCount stops counting a stream as a request if it will carry a connection. If too many
// connections are open, it waits: for Accept until ctx ends, for Dial at most the open time.
func (c *Client) excludeFromCount(ctx context.Context, nc net.Conn, op wire.Op) error {
	m, ok := nc.(carrier)
	if !ok || !becomesConn(op) {
		return nil
	}
	if op == wire.OpDial {
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, c.times.open, errors.New("too many connections to the sandbox are open"))
		defer cancel()
	}
	return m.Carry(ctx)
}

// newConn returns the codec of a stream. If the stream may become a connection, the codec reads no
// bytes beyond its frames.
func newConn(nc net.Conn, op wire.Op) *wire.Conn {
	if becomesConn(op) {
		return wire.NewExactConn(nc)
	}
	return wire.NewConn(nc)
}
