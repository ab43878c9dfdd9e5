package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Dial connects to a TCP port on the loopback interface of a leased sandbox. ctx bounds connecting
// only. The connection keeps the sandbox from becoming idle, and it breaks when the sandbox ends.
// If nothing listens on the port, the error is of class Unavailable and names the port.
//
// The connection has a CloseWrite method. It returns errors.ErrUnsupported if the transport cannot
// close one direction.
//
// Only operators and callers who may run commands without tools can use it.
func (c *Client) Dial(ctx context.Context, sandbox string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("port %d is not from 1 to 65535: %w", port, errdefs.ErrInvalidArgument)
	}
	req, err := http.NewRequestWithContext(
		ctx,
		http.MethodGet,
		newCall(http.MethodGet, "sandboxes", sandbox, "ports", strconv.Itoa(port)).url(c.base),
		http.NoBody,
	)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", v1.PortProtocol)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	p := &portConn{port: port}
	// The response body has no deadlines, but the underlying connection does.
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { p.netConn = got.Conn }}
	resp, err := c.http.Do(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if err != nil {
		return nil, c.connectionError(ctx, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		if resp.StatusCode >= 200 && resp.StatusCode <= 399 {
			return nil, fmt.Errorf("%w: the server does not carry connections to sandboxes", ErrLost)
		}
		return nil, c.readProblem(ctx, resp)
	}
	body, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || p.netConn == nil || !strings.EqualFold(resp.Header.Get("Upgrade"), v1.PortProtocol) {
		resp.Body.Close()
		return nil, fmt.Errorf("%w: the answer is not the connection that was asked for", ErrLost)
	}
	p.ReadWriteCloser = body
	return p, nil
}

// PortTransport returns an HTTP transport that connects to ports of a sandbox. It uses the port of
// a URL such as "http://localhost:8080/" and ignores the host. Idle connections keep the lease in
// use: call CloseIdleConnections when done.
func (c *Client) PortTransport(sandbox string) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			n, err := strconv.Atoi(port)
			if err != nil {
				return nil, fmt.Errorf("invalid port %q: use a number: %w", port, errdefs.ErrInvalidArgument)
			}
			return c.Dial(ctx, sandbox, n)
		},
		DisableCompression:     true, // answers are untrusted and must not be decompressed here
		MaxResponseHeaderBytes: 256 << 10,
		IdleConnTimeout:        10 * time.Second,
	}
}

// portConn is a connection to a port. It reads and writes the body of the upgraded response, and
// takes addresses and deadlines from the underlying connection.
type portConn struct {
	io.ReadWriteCloser
	netConn net.Conn
	port    int
}

// CloseWrite closes the sending direction.
func (p *portConn) CloseWrite() error {
	if half, ok := p.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// LocalAddr returns the local address of the connection to the orchestrator.
func (p *portConn) LocalAddr() net.Addr { return p.netConn.LocalAddr() }

// RemoteAddr returns the port on the sandbox's loopback interface.
func (p *portConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: p.port}
}

// SetDeadline implements net.Conn.
func (p *portConn) SetDeadline(t time.Time) error { return p.netConn.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (p *portConn) SetReadDeadline(t time.Time) error { return p.netConn.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (p *portConn) SetWriteDeadline(t time.Time) error { return p.netConn.SetWriteDeadline(t) }
