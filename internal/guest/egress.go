package guest

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
)

// Egress switches the sandbox's proxy on or off, or replaces the variables of
// commands that begin from now on. Off ends its connections.
// FailedPrecondition: a command has its port.
func (c *Client) Egress(ctx context.Context, e wire.Egress) error {
	_, err := ask[struct{}](ctx, c, wire.OpEgress, e, c.times.short)
	return err
}

// Accept waits for the next connection to the sandbox's proxy, for as long as
// ctx does and the guest answers pings; ctx has no say in the connection. The
// caller closes it. What comes on it is a command's. It has a CloseWrite where
// the stream can end one direction alone. FailedPrecondition: the proxy is off.
func (c *Client) Accept(ctx context.Context) (net.Conn, error) {
	return c.carry(ctx, wire.OpAccept, nil, 0)
}

// Dial connects to a server on the sandbox's loopback, as Accept says of the
// connection. NotFound: none listens on that port. ResourceExhausted: too many
// connections are open.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	return c.carry(ctx, wire.OpDial, wire.Dial{Port: port}, c.times.short)
}

// carry asks for a connection and returns the stream that carries it.
func (c *Client) carry(ctx context.Context, op wire.Op, body any, within time.Duration) (net.Conn, error) {
	s, err := c.begin(ctx, op, body)
	if err != nil {
		return nil, err
	}
	conn, err := s.carried(ctx, within)
	if err != nil {
		s.close()
		return nil, err
	}
	return conn, nil
}

// carried waits until the stream is a connection.
func (s *stream) carried(ctx context.Context, within time.Duration) (net.Conn, error) {
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

func carries(op wire.Op) bool { return op == wire.OpAccept || op == wire.OpDial }

// count has a stream that is to carry a connection not counted among the requests,
// where those are counted. While there are too many it waits: to accept one for
// as long as ctx lasts.
func (c *Client) count(ctx context.Context, nc net.Conn, op wire.Op) error {
	m, ok := nc.(interface{ Carry(context.Context) error })
	if !ok || !carries(op) {
		return nil
	}
	if op == wire.OpDial {
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, c.times.open, errors.New("too many connections of the sandbox are open"))
		defer cancel()
	}
	return m.Carry(ctx)
}

// newConn makes the codec of a stream: what may become a connection is not read
// beyond its frames.
func newConn(nc net.Conn, op wire.Op) *wire.Conn {
	if carries(op) {
		return wire.NewExactConn(nc)
	}
	return wire.NewConn(nc)
}
