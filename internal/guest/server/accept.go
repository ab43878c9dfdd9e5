package server

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// accept waits for a connection of the proxy and has the stream carry it. A
// stream that the host has given up gets none.
func (s *Server) accept(c *wire.Conn) error {
	g := s.proxy.current()
	if g == nil {
		return errOff()
	}
	heard := make(chan error, 1)
	go func() { heard <- c.AwaitPeer() }()
	var conn net.Conn
	select {
	case conn = <-g.hand:
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
		return nil // nobody to tell
	case conn == nil:
		return errOff()
	case !there || err != nil:
		g.offer(conn) // to the next stream
		return nil
	}
	if err = g.conns.join(c, conn); err != errCarried {
		g.offer(conn)
	}
	return err
}

func errOff() error {
	return wire.Failf(wire.FailedPrecondition, "", "the sandbox's proxy is switched off")
}
