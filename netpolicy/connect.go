package netpolicy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"
)

// connect serves a CONNECT request, whose target is HOST:PORT.
func (s *Session) connect(c *client, w http.ResponseWriter, r *http.Request) {
	host, port, err := splitTarget(r.RequestURI)
	if err == nil && c.outer != nil {
		err = malformed("CONNECT inside a tunnel is not supported: open a separate connection")
	}
	if err != nil {
		s.recordInvalid(c.begun, err.Error())
		c.refuse(w, r, asRefusal(err))
		return
	}
	t, err := s.openTunnel(r.Context(), c, Want{Host: host, Port: port, Tunnel: true})
	if err != nil {
		c.refuse(w, r, asRefusal(err))
		return
	}
	head := c.takeOver(w)
	c.afterServer <- func() { t.run([]byte("HTTP/1.1 200 Connection established\r\n\r\n"), head) }
}

// splitTarget parses "host:port". It does not check the host; the rules do.
func splitTarget(target string) (host string, port int, err error) {
	host, digits, err := net.SplitHostPort(target)
	if err != nil {
		return "", 0, malformed("CONNECT requires host:port")
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '+' {
		return "", 0, malformed("CONNECT requires a port from 1 to 65535")
	}
	return host, int(n), nil
}

// tunnel is an allowed tunnel. If its protocol is tls or tcp, it is connected.
type tunnel struct {
	f   *flow
	c   *client
	out *net.TCPConn // nil if each request inside the tunnel is decided separately
}

// openTunnel decides on w, resolves the name, checks its addresses and connects. clientCtx ends
// when the client disconnects during this. Errors are of type *refusal and already audited.
func (s *Session) openTunnel(asking context.Context, c *client, w Want) (*tunnel, error) {
	f, err := s.begin(c.ctx, c, w)
	if err != nil {
		f.end(err)
		return nil, err
	}
	t := &tunnel{f: f, c: c}
	if f.decision.Protocol == HTTP || f.decision.Protocol == HTTPS {
		return t, nil
	}
	stop := context.AfterFunc(asking, func() { f.cancel(errGone) })
	t.out, err = s.dial(f.ctx, f.decision)
	if !stop() && err == nil {
		t.out.Close()
		err = errGone
	}
	if err != nil {
		no := f.failure(err)
		f.end(no)
		return nil, no
	}
	f.recordAddress(t.out.RemoteAddr())
	return t, nil
}

// run sends reply to the client and relays what the rule's protocol permits. head was already read
// from the client.
func (t *tunnel) run(hello, head []byte) {
	c, f := t.c, t.f
	c.SetDeadline(time.Now().Add(f.s.g.o.Limits.HeaderTime))
	if _, err := c.Conn.Write(hello); err != nil {
		t.close(errGone)
		return
	}
	switch {
	case t.out == nil:
		t.requests(head)
		return
	case f.decision.Protocol == TLS:
		hello, err := readHello(c.Conn, head, f.decision)
		if err != nil {
			t.close(err)
			writeLast(c.Conn, alertDenied)
			return
		}
		head = hello
	}
	c.SetDeadline(time.Time{})
	t.close(f.relay(c.Conn, t.out, head, f.spend))
}

func (t *tunnel) close(err error) {
	if t.out != nil {
		t.out.Close()
	}
	t.f.end(err)
}

// requests serves plain HTTP inside the tunnel. Each request is decided separately, so that a
// tunnel to one server carries no requests to another.
func (t *tunnel) requests(head []byte) {
	c := newClient(t.f.ctx, t.f.s, t.c.Conn, head)
	c.outer = t.f
	defer context.AfterFunc(t.f.ctx, func() { c.Conn.Close() })()
	c.SetDeadline(time.Time{})
	c.serve()
	t.close(nil)
}

func asRefusal(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	return &refusal{http.StatusBadGateway, socksFailed, oneLine(err.Error())}
}
