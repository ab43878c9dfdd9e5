package server

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// serveDial connects a stream to a server on the sandbox's loopback.
func (s *Server) serveDial(ctx context.Context, c *wire.Conn, body json.RawMessage) error {
	var d wire.Dial
	if err := wire.Decode(body, &d); err != nil {
		return err
	}
	if d.Port < 1 || d.Port > 65535 {
		return wire.Failf(wire.InvalidArgument, "port", "must be from 1 to 65535")
	}
	if d.Port == wire.ProxyPort && s.proxy.activeListener() != nil {
		return wire.Failf(wire.FailedPrecondition, "port", "%d is the sandbox's own proxy", d.Port)
	}
	select {
	case s.dials.slots <- struct{}{}:
	default:
		return wire.Failf(wire.ResourceExhausted, "", "the limit of %d open connections into the sandbox is reached",
			cap(s.dials.slots))
	}
	conn, err := s.dialLoopback(ctx, d.Port)
	if err != nil {
		<-s.dials.slots
		return err
	}
	if !s.dials.add(conn) {
		return errShutDown()
	}
	err = s.dials.carry(c, conn)
	if err != errCarried {
		s.dials.drop(conn)
	}
	return err
}

// dialLoopback tries IPv4, then IPv6: a server may listen on only one of them.
func (s *Server) dialLoopback(parent context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(parent, wire.HeaderTime)
	defer cancel()
	d := net.Dialer{KeepAlive: -1}
	var full bool
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return conn, nil
		}
		switch {
		case parent.Err() != nil:
			return nil, errShutDown()
		case ctx.Err() != nil:
			return nil, wire.Failf(wire.Unavailable, "port", "the server on port %d did not accept a connection within %s", port,
				wire.HeaderTime)
		}
		full = full || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
			errors.Is(err, syscall.ENOMEM)
	}
	if full {
		return nil, wire.Failf(wire.ResourceExhausted, "", "the sandbox has no resources for another connection")
	}
	return nil, wire.Failf(wire.NotFound, "port", "no server listens on port %d of the sandbox's loopback interface", port)
}
