package netpolicy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// client is a connection from a sandbox while HTTP is spoken on it. The HTTP server uses it as its
// connection. The goroutine of Session.handle waits for the server and continues with what comes
// next.
type client struct {
	net.Conn
	s     *Session
	ctx   context.Context // ends with the session
	begun time.Time
	// limitErr, if not nil, refuses every request on this connection.
	limitErr error
	// outer is the tunnel that contains the requests, or nil for requests to the proxy.
	outer *flow
	head  []byte // bytes that were already read and come first

	afterServer chan func()   // runs after the server released the connection
	closed      chan struct{} // closed by the HTTP server when it is done
	// idle is true while no handler runs. pendingBytes is true if bytes arrived meanwhile that have
	// not become a request.
	idle, pendingBytes atomic.Bool
	unread             atomic.Bool // a request's body was not read to its end
}

func newClient(ctx context.Context, s *Session, nc net.Conn, head []byte) *client {
	c := &client{
		Conn: nc, s: s, ctx: ctx, begun: time.Now(), head: head,
		afterServer: make(chan func(), 1), closed: make(chan struct{}),
	}
	c.idle.Store(true)
	return c
}

// Read returns the bytes that were already read before new ones. Only the HTTP server calls it.
func (c *client) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// Write is called by handlers, and by the HTTP server when it rejects invalid requests. It waits at
// most the idle time for a client that does not read.
func (c *client) Write(p []byte) (int, error) {
	if c.idle.Load() {
		c.pendingBytes.Store(true)
	}
	c.SetWriteDeadline(time.Now().Add(c.s.g.o.Limits.IdleTime))
	return c.Conn.Write(p)
}

// CloseWrite closes the write direction. The HTTP server calls it after an early answer.
func (c *client) CloseWrite() error { return closeWrite(c.Conn) }

// Close is called by the HTTP server before its final state change.
func (c *client) Close() error {
	if c.unread.Load() && c.ctx.Err() == nil && c.s.g.ctx.Err() == nil {
		writeLast(c.Conn, nil)
	}
	return c.Conn.Close()
}

// serve lets the HTTP server handle requests until it closes the connection or a handler takes it
// over. It then runs what the handler left in afterServer.
func (c *client) serve() {
	if !c.s.g.listener.push(c) {
		return
	}
	select {
	case next := <-c.afterServer:
		next()
	case <-c.closed:
	}
}

// connListener is a net.Listener for connections that were accepted elsewhere.
type connListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newConnListener() *connListener {
	return &connListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// push passes a connection to Accept. It returns false if the listener is closed.
func (l *connListener) push(nc net.Conn) bool {
	select {
	case l.conns <- nc:
		return true
	case <-l.closed:
		return false
	}
}

// Accept implements net.Listener.
func (l *connListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *connListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *connListener) Addr() net.Addr { return &net.UnixAddr{Name: "inside", Net: "unix"} }
