// Package client speaks to an orchestrator's HTTP interface /v1, over its unix
// socket or TCP.
//
// It holds no rule of the service and starts no process. A Client may be used
// by many goroutines at once; besides those of net/http it starts none that
// outlive a call. Every method takes a context that bounds the whole call;
// when it ends, the error is its cause.
//
// Errors: what the server refused is a *v1.Problem (errors.As) and of its
// containerd/errdefs class (errdefs.IsNotFound and the like). ErrNoServer:
// nobody listens there, nothing was sent. ErrLost: the way to the server was
// cut before the answer was whole. What was asked for may have happened, and
// is never reported as success.
//
// The package tries nothing again by itself, but for Follow, WatchApprovals and
// CallTool with Persist, which say so.
// net/http sends a request once more if its kept connection proves closed
// before an answer began, and only where that is safe: reads, and requests
// with an IdempotencyKey.
package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// DefaultAddress is where a server listens unless it was told otherwise.
const DefaultAddress = "unix:/run/orchestrator.sock"

// dialTime bounds connecting. A server that is up accepts at once.
const dialTime = 5 * time.Second

// idleConns are kept for calls to come: as many as are commonly under way at
// once, so that a burst does not dial for each call.
const idleConns = 64

// Options of a Client; the zero value speaks to DefaultAddress.
type Options struct {
	// Address is "unix:PATH", "http://HOST:PORT", "https://HOST:PORT" or
	// "HOST:PORT".
	Address string
	// Token is sent as a bearer token. TCP servers ask for one.
	Token string
	// Transport replaces the way requests are carried, for tests and for
	// tunnels. Address is then only the URL's host.
	Transport http.RoundTripper
}

// Client is a connection pool to one server. Use New.
type Client struct {
	address string // for messages
	base    string // "http://host"
	token   string
	http    *http.Client
}

// New returns a client. It does not connect; an address that cannot be used is
// of class InvalidArgument.
func New(o Options) (*Client, error) {
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if strings.ContainsAny(o.Token, "\r\n\x00") {
		return nil, fmt.Errorf("token holds a line break or a NUL: %w", errdefs.ErrInvalidArgument)
	}
	c := &Client{address: o.Address, token: o.Token}
	dialer := &net.Dialer{Timeout: dialTime}
	dial := dialer.DialContext
	if path, ok := strings.CutPrefix(o.Address, "unix:"); ok {
		if path == "" {
			return nil, badAddress(o.Address)
		}
		c.base = "http://orchestrator" // what the Host header says; no name is looked up
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
	} else {
		base, err := baseURL(o.Address)
		if err != nil {
			return nil, err
		}
		c.base = base
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			DialContext:         dial,
			MaxIdleConnsPerHost: idleConns,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true, // output is foreign: nobody may make us unpack it
			ReadBufferSize:      64 << 10,
			WriteBufferSize:     64 << 10,
		}
	}
	c.http = &http.Client{
		Transport: o.Transport,
		// The interface has no redirects; following one could hand the token on.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

func baseURL(address string) (string, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Port() == "" && u.Scheme != "https" || u.Scheme != "http" && u.Scheme != "https" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return "", badAddress(address)
	}
	return u.Scheme + "://" + u.Host, nil
}

func badAddress(address string) error {
	return fmt.Errorf("address %q is neither unix:PATH nor HOST:PORT nor http://HOST:PORT: %w", address, errdefs.ErrInvalidArgument)
}

// Address is where the client's server is, as it was given.
func (c *Client) Address() string { return c.address }

// Close closes the connections that no call uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// isDial says whether an error came from connecting: nothing was sent.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
