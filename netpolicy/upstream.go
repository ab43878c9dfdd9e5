package netpolicy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Limits of idle connections to servers.
const (
	keptServers = 64
	keptEach    = 16
	keptTime    = 30 * time.Second
)

// newTransports returns the HTTP clients of a session. They resolve, check and pin the address of
// each connection, and use no proxy of the host's environment, no redirects, no cookies and no
// decompression. upgrades speaks only HTTP/1.1 and does not reuse connections.
func newTransports(s *Session) (plain, upgrades *http.Transport) {
	plain = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.dialServer(ctx)
		},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.dialSecure(ctx, "h2", "http/1.1")
		},
		MaxIdleConns:           keptServers,
		MaxIdleConnsPerHost:    keptEach,
		IdleConnTimeout:        keptTime,
		MaxResponseHeaderBytes: 2 * maxHeader,
		ExpectContinueTimeout:  time.Second,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
	upgrades = plain.Clone()
	upgrades.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return s.dialSecure(ctx, "http/1.1")
	}
	upgrades.ForceAttemptHTTP2 = false
	upgrades.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	upgrades.DisableKeepAlives = true
	return plain, upgrades
}

// dialServer connects for the flow in ctx and stops when the flow ends. The transport would
// continue for a client that has left, so that clients that leave at once could cause any number of
// dials.
func (s *Session) dialServer(ctx context.Context) (net.Conn, error) {
	f := ctx.Value(flowKey{}).(*flow)
	nc, err := s.dial(f.ctx, f.decision)
	if err != nil {
		return nil, err
	}
	// HTTP/2 keeps one connection for each name without a limit.
	if s.outside.Add(1) > s.openFromSandbox()+keptServers {
		plain, _ := s.transports()
		plain.CloseIdleConnections()
	}
	return &countedConn{Conn: nc, s: s, onClose: sync.OnceFunc(func() { s.outside.Add(-1) })}, nil
}

// dialSecure is like dialServer, with TLS and ALPN for the given protocols.
func (s *Session) dialSecure(ctx context.Context, protocols ...string) (net.Conn, error) {
	f := ctx.Value(flowKey{}).(*flow)
	nc, err := s.dialServer(ctx)
	if err != nil {
		return nil, err
	}
	tc := tls.Client(nc, &tls.Config{RootCAs: s.g.o.Roots, MinVersion: tls.VersionTLS12, ServerName: f.decision.Host,
		NextProtos: protocols})
	ctx, cancel := context.WithTimeout(f.ctx, s.g.o.Limits.DialTime)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil { //nolint:contextcheck // it ends with the flow
		nc.Close()
		return nil, err
	}
	return tc, nil
}

// transports returns the transports for a new request.
func (s *Session) transports() (plain, upgrades *http.Transport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plain, s.upgrades
}

// resetTransports replaces the transports. It closes idle connections; busy ones close after their
// request.
func (s *Session) resetTransports() {
	s.mu.Lock()
	plain, upgrades := s.plain, s.upgrades
	s.plain, s.upgrades = newTransports(s)
	s.mu.Unlock()
	plain.CloseIdleConnections()
	upgrades.CloseIdleConnections()
}

// outURL returns the URL of the outgoing request: the decided host and port with the client's path
// and query.
func outURL(d Decision, in *url.URL) *url.URL {
	out := &url.URL{Scheme: "http", Path: in.Path, RawPath: in.RawPath, RawQuery: in.RawQuery, ForceQuery: in.ForceQuery}
	usual := 80
	if d.Protocol == HTTPS {
		out.Scheme, usual = "https", 443
	}
	out.Host = target(d.Host, d.Port)
	if d.Port == usual {
		out.Host = out.Host[:strings.LastIndexByte(out.Host, ':')]
	}
	return out
}
