package scheduler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
)

// PortError reports that a server in the sandbox cannot be reached. Its class is Unavailable.
type PortError struct {
	Port    int
	Message string
}

// Error implements error.
func (e *PortError) Error() string { return fmt.Sprintf("port %d: %s", e.Port, e.Message) }

// Unwrap returns the errdefs class.
func (e *PortError) Unwrap() error { return errdefs.ErrUnavailable }

// Dial connects to a server on the loopback address of the lease's sandbox. ctx bounds only the
// connection setup. The connection counts as use of the lease and closes when the lease ends. If
// nothing listens on the port, Dial returns a *PortError.
func (l *Lease) Dial(ctx context.Context, port int) (net.Conn, error) {
	use, err := l.Enter(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	dctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(use.Ctx, func() { cancel(context.Cause(use.Ctx)) })()
	nc, err := use.Dial(dctx, port)
	if err != nil {
		use.Leave()
		if g, ok := errors.AsType[*guest.Error](err); ok && errdefs.IsNotFound(g) {
			return nil, &PortError{Port: port, Message: "nothing listens on 127.0.0.1 or [::1] of the sandbox"}
		}
		return nil, l.Explain(err)
	}
	c := &portConn{Conn: nc}
	c.end = sync.OnceValue(func() error {
		defer use.Leave()
		return nc.Close()
	})
	c.unwatch = context.AfterFunc(use.Ctx, func() { _ = c.end() }) // close with the lease
	return c, nil
}

// portConn is a connection that uses its lease until it is closed.
type portConn struct {
	net.Conn
	end     func() error
	unwatch func() bool
}

// Close closes the connection and leaves the lease. It may be called more than once.
func (c *portConn) Close() error {
	c.unwatch()
	return c.end()
}

// CloseWrite closes the sending direction. It returns NotImplemented if the transport cannot close
// one direction.
func (c *portConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("the transport of this sandbox cannot close one direction: %w", errdefs.ErrNotImplemented)
}

// Explain returns the reason for which the lease ended if that caused err, else err.
func (l *Lease) Explain(err error) error {
	if err == nil {
		return nil
	}
	if ended := l.Cause(); ended != nil && (errors.Is(err, guest.ErrLost) || errors.Is(err, context.Canceled)) {
		return ended
	}
	return err
}
