package guestconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// maxMuxed is how many request streams a mux has at once. MaxCarried limits connections
	// separately, so that connections never delay a request. With muxWindow, yamux's minimum, a
	// guest can make the host buffer at most 96 MiB, and only if the host does not read its
	// streams.
	maxMuxed  = 256
	muxWindow = 256 << 10
	// muxStall is how long yamux waits for its transport. The line below ends a mux before that.
	muxStall = OutageTime + stall
	// lingering is how long a stream that the host closed waits for the guest to read the rest
	// before it is reset.
	lingering = OutageTime + 10*time.Second
)

func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	// The backlog exceeds what Open allows, so that yamux itself never blocks.
	c.AcceptBacklog = 2 * (maxMuxed + MaxCarried)
	c.MaxStreamWindowSize = muxWindow
	c.EnableKeepAlive = false // a line has its own
	c.ConnectionWriteTimeout = muxStall
	c.StreamOpenTimeout = 2 * muxStall
	c.StreamCloseTimeout = lingering
	c.LogOutput = io.Discard // the caller gets errors as the cause in ErrLost
	return c
}

// Mux is the host's end of a bridge: many streams over one connection, which is replaced when it
// breaks (see [DialMux]). It is safe for concurrent use. It is lost when the connection cannot be
// replaced, or the guest breaks the protocol. A lost mux stays lost; the caller must dial the
// bridge again.
type Mux struct {
	t     *transport
	sess  *yamux.Session
	slots chan struct{} // one token per open request stream
	carry chan struct{} // one token per open connection
	// own is set before Close ends the session, so that later errors are ErrClosed and not ErrLost.
	own atomic.Bool
	wg  sync.WaitGroup
}

// newMux starts the host's side over rwc and takes ownership of it. Closing rwc must unblock Read
// and Write on it, as for a net.Conn.
func newMux(rwc io.ReadWriteCloser) (*Mux, error) {
	t := newTransport(rwc)
	sess, err := yamux.Client(t, muxConfig())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start mux: %w", err), rwc.Close())
	}
	m := &Mux{t: t, sess: sess, slots: make(chan struct{}, maxMuxed), carry: make(chan struct{}, MaxCarried)}
	// Only the host opens streams. Otherwise a guest could open streams that are never accepted and
	// fill them.
	m.wg.Go(func() { _ = sess.GoAway() })
	return m, nil
}

// Open opens a stream to the guest. It waits while 256 are open. An opened stream does not show
// that the guest is alive; only its answer does. Errors: [ErrClosed], [ErrLost], or the cause of
// ctx.
func (m *Mux) Open(ctx context.Context) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, openErr(context.Cause(ctx))
	}
	select {
	case m.slots <- struct{}{}:
	case <-m.sess.CloseChan():
		return nil, openErr(m.broken())
	case <-ctx.Done():
		return nil, openErr(context.Cause(ctx))
	}
	type opened struct {
		s   *yamux.Stream
		err error
	}
	// yamux sends the opening frame immediately, which blocks on a stalled transport regardless of
	// ctx.
	result := make(chan opened)
	m.wg.Go(func() {
		s, err := m.sess.OpenStream()
		select {
		case result <- opened{s, err}:
		case <-ctx.Done():
			if err == nil {
				_ = s.Close()
			}
			<-m.slots
		}
	})
	select {
	case r := <-result:
		if r.err != nil {
			<-m.slots
			return nil, openErr(m.explain(r.err))
		}
		return &muxed{m: m, s: r.s, out: framer{w: r.s}, slots: m.slots}, nil
	case <-ctx.Done():
		return nil, openErr(context.Cause(ctx))
	}
}

// Done returns a channel that is closed when the mux is lost or closed.
func (m *Mux) Done() <-chan struct{} { return m.sess.CloseChan() }

// Close ends every stream and the transport, and waits for the goroutines. It is idempotent.
func (m *Mux) Close() error {
	m.own.Store(true)
	err := m.sess.Close()
	m.wg.Wait()
	return err
}

func openErr(cause error) error { return fmt.Errorf("open a stream to the sandbox: %w", cause) }

// broken returns why the session has ended.
func (m *Mux) broken() error {
	if m.own.Load() {
		return ErrClosed
	}
	if cause := m.t.cause(); cause != nil {
		return fmt.Errorf("%w: %w", ErrLost, cause)
	}
	return ErrLost
}

// explain converts yamux's errors to those of this package and of net.
func (m *Mux) explain(err error) error {
	switch {
	case errors.Is(err, yamux.ErrTimeout):
		return os.ErrDeadlineExceeded
	case m.sess.IsClosed():
		return m.broken()
	case errors.Is(err, yamux.ErrStreamClosed):
		return net.ErrClosed
	case errors.Is(err, io.EOF):
		return io.EOF
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// muxed is one stream of a Mux. Write deadlines work while the guest does not read. While the
// connection is broken and much is unsent, a Write can wait longer: until the connection is
// replaced or the mux is lost.
type muxed struct {
	m      *Mux
	s      *yamux.Stream
	out    framer
	closed atomic.Bool
	slots  chan struct{} // where the stream counts
}

// Carry counts the stream as a connection from now on instead of a request. It waits while
// [MaxCarried] are open. Call it right after Open, before sharing the stream. Its errors are those
// of Open.
func (c *muxed) Carry(ctx context.Context) error {
	select {
	case c.m.carry <- struct{}{}:
	case <-c.m.sess.CloseChan():
		return openErr(c.m.broken())
	case <-ctx.Done():
		return openErr(context.Cause(ctx))
	}
	<-c.slots
	c.slots = c.m.carry
	return nil
}

func (c *muxed) Read(b []byte) (int, error) {
	n, err := c.s.Read(b)
	return n, c.explain(err)
}

func (c *muxed) Write(b []byte) (int, error) {
	n, err := c.out.Write(b)
	return n, c.explain(err)
}

// CloseWrite ends the host's direction after everything that was written; the guest's direction
// continues. It waits like Write. Later writes fail.
func (c *muxed) CloseWrite() error { return c.explain(c.out.CloseWrite()) }

func (c *muxed) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case c.closed.Load():
		return net.ErrClosed
	}
	return c.m.explain(err)
}

// Close ends both directions and unblocks readers and writers. Data written before is still
// delivered if the guest reads it within a minute. Close waits at most a second for a connection
// that is away.
func (c *muxed) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	// Also after its Close, yamux reads until a deadline.
	err := c.s.SetDeadline(time.Unix(1, 0))
	closed := make(chan error, 1)
	go func() { // ends with the session at the latest
		defer func() { <-c.slots }()
		closed <- c.s.Close()
	}()
	late := time.NewTimer(closeTime)
	defer late.Stop()
	select {
	case closeErr := <-closed:
		return errors.Join(err, closeErr)
	case <-late.C: // the connection is away, and too much is unsent
		return err
	}
}

func (c *muxed) LocalAddr() net.Addr  { return muxAddr{} }
func (c *muxed) RemoteAddr() net.Addr { return muxAddr{} }

func (c *muxed) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *muxed) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return c.s.SetReadDeadline(t)
}

func (c *muxed) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return c.s.SetWriteDeadline(t)
}

type muxAddr struct{}

func (muxAddr) Network() string { return "mux" }
func (muxAddr) String() string  { return "sandbox" }
