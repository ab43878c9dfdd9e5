//go:build linux

package standalone

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/api"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

// withClient calls do with a client of the engine's HTTP interface, served in this process. So a
// command does the same with a server and without one. Its caller is the local operator. The
// server logs nothing: the client returns the errors.
//
// It returns when the requests under way have ended. Those of a client that gave up end as they do
// on a server.
func withClient(ctx context.Context, e *engine.Engine, do func(*client.Client) error) error {
	l := &pipeListener{accept: make(chan net.Conn), closed: make(chan struct{})}
	transport := &http.Transport{DialContext: l.dial, DisableCompression: true}
	cl, err := client.New(client.Options{Address: "unix:this process", Transport: transport}) // the address is not dialled
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := api.New(api.Options{Engine: e, Log: slog.New(slog.DiscardHandler)})
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l, teardownTime) }() // waited for below
	err = do(cl)
	transport.CloseIdleConnections()
	stop()
	return errors.Join(err, <-served)
}

// pipeListener accepts the connections of dial, which are pipes.
type pipeListener struct {
	accept chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// dial connects to the listener.
func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.accept <- patientConn{theirs}:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. Connections stay open.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

// Network implements net.Addr.
func (pipeAddr) Network() string { return "pipe" }

// String implements net.Addr.
func (pipeAddr) String() string { return "pipe" }

// patientConn ignores deadlines in the future. A server sets them against clients that stall. This
// client stalls only while the user's terminal, pipe or file does, and the command waits for those.
type patientConn struct{ net.Conn }

// SetDeadline implements net.Conn.
func (c patientConn) SetDeadline(t time.Time) error { return c.Conn.SetDeadline(pastOnly(t)) }

// SetReadDeadline implements net.Conn.
func (c patientConn) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(pastOnly(t)) }

// SetWriteDeadline implements net.Conn.
func (c patientConn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(pastOnly(t)) }

// pastOnly returns t if it has passed: net/http interrupts reads with such a deadline. Otherwise it
// returns no deadline.
func pastOnly(t time.Time) time.Time {
	if t.After(time.Now()) {
		return time.Time{}
	}
	return t
}
