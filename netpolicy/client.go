package netpolicy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// client is a connection from inside while HTTP is spoken on it. To the HTTP
// server it is the connection; the goroutine of Session.handle waits meanwhile,
// and goes on with what follows.
type client struct {
	net.Conn
	s     *Session
	ctx   context.Context // ends with the session
	begun time.Time
	// over is why nothing at all is carried for it, if so.
	over error
	// outer is the tunnel in which requests come; nil: they are to the proxy.
	outer *flow
	head  []byte // was read already, and comes first

	next   chan func()   // what is to be done after the server let go of it
	closed chan struct{} // by the server, when it is done
	// between is true while no handler runs, unasked if bytes came then that have
	// not become a request.
	between, unasked atomic.Bool
	unread           atomic.Bool // a body was not read to its end
}

func newClient(ctx context.Context, s *Session, nc net.Conn, head []byte) *client {
	c := &client{
		Conn: nc, s: s, ctx: ctx, begun: time.Now(), head: head,
		next: make(chan func(), 1), closed: make(chan struct{}),
	}
	c.between.Store(true)
	return c
}

// Read gives first what was read before. Only the server reads.
func (c *client) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// Write is by a handler, or by the server that refuses what is no request. A
// client that does not read is not waited for longer than one that is silent.
func (c *client) Write(p []byte) (int, error) {
	if c.between.Load() {
		c.unasked.Store(true)
	}
	c.SetWriteDeadline(time.Now().Add(c.s.g.o.Limits.IdleTime))
	return c.Conn.Write(p)
}

// CloseWrite is for the server, which ends so what it answers early.
func (c *client) CloseWrite() error { return closeWrite(c.Conn) }

// Close is what the server calls before it is done.
func (c *client) Close() error {
	if c.unread.Load() && c.ctx.Err() == nil && c.s.g.ctx.Err() == nil {
		lastWord(c.Conn, nil)
	}
	return c.Conn.Close()
}

// serve has the server take requests until it closes the connection or a
// handler takes it over, and then does what that left to do.
func (c *client) serve() {
	if !c.s.g.inside.push(c) {
		return
	}
	select {
	case next := <-c.next:
		next()
	case <-c.closed:
	}
}

// handedOver is the listener of connections that are accepted elsewhere.
type handedOver struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newHandedOver() *handedOver {
	return &handedOver{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// push is false if nobody takes connections any more.
func (l *handedOver) push(nc net.Conn) bool {
	select {
	case l.conns <- nc:
		return true
	case <-l.closed:
		return false
	}
}

// Accept implements net.Listener.
func (l *handedOver) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *handedOver) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *handedOver) Addr() net.Addr { return &net.UnixAddr{Name: "inside", Net: "unix"} }
