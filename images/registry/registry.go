// Package registry downloads manifests and blobs from OCI registries. Downloads of blobs resume
// after a lost connection or a crash.
//
// A registry is untrusted. Headers and bodies are bounded in size and time, digests are computed
// from the content, and plain HTTP is used only for hosts listed in the options. Credentials come
// from the Docker configuration. They are sent only to their host and the token server that it
// names, and never appear in errors.
//
// The package writes only the requested files and starts no goroutine that outlives a call. Error
// classes are NotFound (image), FailedPrecondition (the registry refuses access or sends invalid
// data), Unavailable (not reachable, or repeatedly interrupted), InvalidArgument and
// ResourceExhausted (over a limit, disk full).
package registry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
)

// Bounds of responses.
const (
	maxHeader   = 64 << 10
	maxError    = 64 << 10 // error body
	maxAnswer   = 4 << 20  // any body but a blob; registries refuse larger manifests
	headerTime  = 30 * time.Second
	askTime     = 2 * time.Minute // for anything but a blob, retries included
	maxRedirect = 5
)

// A body stalls if less than stallBytes arrive in DefaultStall.
const (
	DefaultStall = 30 * time.Second
	stallBytes   = 1 << 10
)

// Options configures a Client. The zero value is usable.
type Options struct {
	// Insecure lists hosts, as host or host:port, for which plain HTTP is used.
	Insecure []string
	// Environment looks up DOCKER_CONFIG, HOME and PATH; nil uses the process environment.
	Environment func(string) (string, bool)
	// Transport replaces the network in tests.
	Transport http.RoundTripper
	// Stall, Pause and Patience replace defaults in tests: how long a body may stall, the first
	// pause before a retry, and the longest pause that a registry may ask for.
	Stall, Pause, Patience time.Duration
	Log                    *slog.Logger
}

// Client downloads from registries. It is safe for concurrent use.
type Client struct {
	o    Options
	base http.RoundTripper
	own  *http.Transport // nil if it was given

	mu       sync.Mutex
	sessions map[string]*session // by repository
}

// session is an HTTP client that is authorised for a repository.
type session struct {
	http.Client
	authenticated bool // has credentials
}

// New returns a client. It does not connect yet.
func New(o Options) *Client {
	if o.Environment == nil {
		o.Environment = os.LookupEnv
	}
	if o.Stall == 0 {
		o.Stall = DefaultStall
	}
	if o.Pause == 0 {
		o.Pause = 500 * time.Millisecond
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{o: o, sessions: map[string]*session{}}
	inner := o.Transport
	if inner == nil {
		c.own = &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
			MaxIdleConns: 16, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: headerTime, MaxResponseHeaderBytes: maxHeader,
			DisableCompression: true, // the digest is that of the body as sent
		}
		inner = c.own
	}
	c.base = &guardedTransport{inner: inner, options: &c.o}
	return c
}

// Close closes idle connections.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// insecure reports whether plain HTTP is allowed for a host.
func (o *Options) insecure(host string) bool {
	for _, h := range o.Insecure {
		if strings.EqualFold(h, host) {
			return true
		}
	}
	return false
}

// session returns the session for a repository. It is created once; the library renews its token.
func (c *Client) session(ctx context.Context, r ref.Reference) (*session, error) {
	c.mu.Lock()
	known := c.sessions[r.Name()]
	c.mu.Unlock()
	if known != nil {
		return known, nil
	}
	var options []name.Option
	if c.o.insecure(r.Registry) {
		options = append(options, name.Insecure)
	}
	registry, err := name.NewRegistry(r.Registry, options...)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w: %w", r.Registry, err, errdefs.ErrInvalidArgument)
	}
	auth, err := c.credentials(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", r.Registry, err)
	}
	rt, err := transport.NewWithContext(ctx, registry, auth,
		c.base, []string{registry.Repo(r.Repository).Scope(transport.PullScope)})
	if err != nil {
		return nil, c.failed(ctx, "log in to "+r.Registry, auth != authn.Anonymous, err)
	}
	made := &session{authenticated: auth != authn.Anonymous,
		Client: http.Client{Transport: rt, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirect {
				return fmt.Errorf("more than %d redirects: %w", maxRedirect, errdefs.ErrFailedPrecondition)
			}
			return nil
		}}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[r.Name()] = made
	return made, nil
}

// Forget drops all sessions, so that credentials and tokens are looked up again.
func (c *Client) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.sessions)
}

// url returns the URL of a resource in a repository, with the scheme http for insecure hosts.
func (c *Client) url(r ref.Reference, kind, what string) string {
	scheme, host := "https", r.Registry
	if c.o.insecure(host) {
		scheme = "http"
	}
	if host == hub {
		host = name.DefaultRegistry
	}
	return scheme + "://" + host + "/v2/" + r.Repository + "/" + kind + "/" + what
}

const hub = "docker.io"
