// Package client calls the orchestrator's HTTP interface /v1 over a unix socket or TCP.
//
// # Concurrency and contexts
//
// A Client is safe for concurrent use. Every method takes a context that bounds the whole call.
// When the context ends, the method returns [context.Cause]. Apart from Terminal and the goroutines
// of net/http, no goroutine outlives the call that started it.
//
// # Errors
//
// Use [errors.As] with *v1.Problem for an error that the server returned. It also matches its class
// of package github.com/containerd/errdefs, for example errdefs.IsNotFound. [ErrNoServer] means
// that the connection failed and nothing was sent; [AccessError] that this process may not use the
// server's socket; [TLSError] that a certificate was not accepted. [ErrLost] means that the
// connection broke before
// the answer was complete; the operation may have happened. It is never reported as success.
//
// # Retries
//
// The methods do not retry, except Follow, Approvals.Watch, Events with Follow, Tools.Call with
// Persist, Jobs.Wait, Jobs.CopyOutput, and a Terminal that reconnects. net/http repeats a request
// whose reused connection closed before the answer began, but only reads and requests with an
// IdempotencyKey.
//
// # Units
//
// Durations are time.Duration in this package and whole milliseconds (fields that end in MS) in
// package v1. Sizes and offsets are bytes.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// DefaultAddress is the address that servers listen on by default.
const DefaultAddress = "unix:/run/orchestrator.sock"

// unixScheme begins the address of a unix socket.
const unixScheme = "unix:"

// dialTimeout bounds connecting. A running server accepts at once.
const dialTimeout = 5 * time.Second

// maxIdleConns is the number of idle connections that are kept, so that a burst of calls need not
// dial for each.
const maxIdleConns = 64

// Options configure a Client. The zero value connects to DefaultAddress.
type Options struct {
	// Address is "unix:PATH", "http://HOST:PORT", "https://HOST:PORT" or "HOST:PORT". The last form
	// means https if TLS is set, and else http.
	Address string
	// Token is sent as a bearer token. Servers that listen on TCP require one.
	Token string
	// TLS configures https, for example from TLSFiles. If it is nil, the authorities of this host are
	// trusted.
	TLS *tls.Config
	// Transport sends the requests instead of the client's own connections, for example in tests
	// and for tunnels. Only the host of Address is used then.
	Transport http.RoundTripper
}

// Client is a connection pool to one server. Create it with New. It is safe for concurrent use.
//
// The methods of Client itself create sandboxes and run commands in them. Its fields have the
// methods for everything else.
type Client struct {
	Approvals  Approvals
	Audit      Audit
	Egress     Egress
	Images     Images
	Jobs       Jobs
	Overlays   Overlays
	Snapshots  Snapshots
	Templates  Templates
	Tokens     Tokens
	Tools      Tools
	Workspaces Workspaces

	address string // as given, for messages
	base    string // "http://host"
	token   string
	http    *http.Client
}

// New returns a client for the server at o.Address. It does not connect. If the address or token is
// malformed, the error is of class InvalidArgument.
func New(o Options) (*Client, error) {
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if strings.ContainsAny(o.Token, "\r\n\x00") {
		return nil, fmt.Errorf("token holds a line break or a NUL: %w", errdefs.ErrInvalidArgument)
	}
	c := &Client{address: o.Address, token: o.Token}
	c.setServices()
	dialer := &net.Dialer{Timeout: dialTimeout}
	dial := dialer.DialContext
	if path, ok := strings.CutPrefix(o.Address, unixScheme); ok {
		if path == "" {
			return nil, badAddress(o.Address)
		}
		c.base = "http://orchestrator" // only sent as the Host header, never resolved
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
	} else {
		base, err := baseURL(o.Address, o.TLS != nil)
		if err != nil {
			return nil, err
		}
		c.base = base
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			DialContext:         dial,
			TLSClientConfig:     o.TLS,
			TLSHandshakeTimeout: dialTimeout,
			MaxIdleConnsPerHost: maxIdleConns,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true, // output is untrusted and must not be decompressed here
			ReadBufferSize:      64 << 10,
			WriteBufferSize:     64 << 10,
		}
	}
	c.http = &http.Client{
		Transport: o.Transport,
		// The interface has no redirects, and following one could send the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

func baseURL(address string, secure bool) (string, error) {
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if secure {
			scheme = "https://"
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Port() == "" && u.Scheme != "https" || u.Scheme != "http" && u.Scheme != "https" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return "", badAddress(address)
	}
	return u.Scheme + "://" + u.Host, nil
}

func badAddress(address string) error {
	return fmt.Errorf(
		"address %q is neither unix:PATH nor HOST:PORT nor http://HOST:PORT: %w",
		address,
		errdefs.ErrInvalidArgument,
	)
}

// Address returns the server's address as it was given to New, or DefaultAddress.
func (c *Client) Address() string { return c.address }

// Close closes idle connections. Calls that are under way continue, and the client can still be
// used.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// isDialError reports whether err came from connecting, so that nothing was sent.
func isDialError(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
