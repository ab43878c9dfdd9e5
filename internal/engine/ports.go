package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

// PortError says that a server inside could not be spoken to. It is of class
// Unavailable.
type PortError struct {
	Port    int
	Message string
}

// Error names the port.
func (e *PortError) Error() string { return fmt.Sprintf("port %d: %s", e.Port, e.Message) }

// Unwrap gives the class.
func (e *PortError) Unwrap() error { return errdefs.ErrUnavailable }

// Dial connects to a server on the loopback of a sandbox of the caller's. ctx
// bounds connecting only. The lease counts as used until the connection is
// closed, and the connection ends with the lease. A *PortError: nothing listens
// there.
func (e *Engine) Dial(ctx context.Context, call Call, sandbox string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, invalid("port", "is %d: from 1 to 65535", port)
	}
	l, err := e.findLease(ctx, call, sandbox)
	if err != nil {
		return nil, err
	}
	return e.dial(ctx, l, port)
}

// dial is Dial for a lease that is known.
func (e *Engine) dial(ctx context.Context, l *scheduler.Lease, port int) (net.Conn, error) {
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
			return nil, &PortError{Port: port, Message: "nothing listens there, on 127.0.0.1 or [::1] of the sandbox"}
		}
		return nil, e.endedOr(l, err)
	}
	c := &portConn{Conn: nc}
	c.end = sync.OnceValue(func() error {
		defer use.Leave()
		return nc.Close()
	})
	c.unwatch = context.AfterFunc(use.Ctx, func() { _ = c.end() }) // with the lease
	return c, nil
}

// portConn is a connection that holds its lease. Close lets go of both.
type portConn struct {
	net.Conn
	end     func() error
	unwatch func() bool
}

// Close is idempotent.
func (c *portConn) Close() error {
	c.unwatch()
	return c.end()
}

// CloseWrite ends what is sent to the server, where the way to the sandbox can
// end one direction alone; else it is of class NotImplemented.
func (c *portConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("the way to this sandbox cannot end one direction alone: %w", errdefs.ErrNotImplemented)
}
