package engine

import (
	"context"
	"net"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Dial connects to a server on the loopback address of the caller's sandbox. ctx bounds only the
// connection setup. The connection counts as use of the lease and closes when the lease ends. If
// nothing listens on the port, Dial returns a *PortError.
func (e *Engine) Dial(ctx context.Context, p caller.Principal, sandbox string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, usererror.Invalid("port", "is %d: from 1 to 65535", port)
	}
	l, err := e.findLease(ctx, p, sandbox)
	if err != nil {
		return nil, err
	}
	return l.Dial(ctx, port)
}
