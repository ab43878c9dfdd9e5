package server

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// serveAccept waits for a connection of the proxy and carries it on the stream. A stream that the
// host has closed gets none.
func (s *Server) serveAccept(c *wire.Conn) error {
	g := s.proxy.activeListener()
	if g == nil {
		return errProxyOff()
	}
	heard := make(chan error, 1)
	go func() { heard <- c.AwaitPeer() }()
	var conn net.Conn
	select {
	case conn = <-g.pending:
	case err := <-heard:
		heard <- err
	case <-g.done:
	case <-s.ctx.Done():
	}
	c.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // closed: that is heard as well
	err := <-heard
	there := errors.Is(err, os.ErrDeadlineExceeded)
	if there {
		err = c.SetReadDeadline(time.Time{})
	}
	switch {
	case conn == nil && !there && err == nil:
		return wire.Failf(wire.InvalidArgument, "", "a stream that waits for a connection has nothing to say")
	case conn == nil && !there:
		return nil // the host has closed the stream
	case conn == nil:
		return errProxyOff()
	case !there || err != nil:
		g.awaitStream(conn) // offer it to the next stream
		return nil
	}
	if err = g.conns.carry(c, conn); err != errCarried {
		g.awaitStream(conn)
	}
	return err
}

func errProxyOff() error {
	return wire.Failf(wire.FailedPrecondition, "", "the sandbox's proxy is switched off")
}
