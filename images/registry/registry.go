// Package registry speaks to OCI registries: it fetches manifests, and blobs
// into files that a cut connection or a killed process does not make start over.
//
// A registry is foreign. Headers and bodies are bounded in size and time,
// digests are checked by what came and not by what a header says, and plain
// HTTP is spoken only where the options name the host. Credentials come from the
// Docker configuration and go only to the host they are for and to the token
// server that it names; they are in no error.
//
// The package keeps nothing on disk but the file it is told to fill, and starts
// no goroutine that outlives a call. Errors are of class NotFound (no such
// image), FailedPrecondition (the registry refuses us, or sends what cannot be
// right), Unavailable (it cannot be reached, or is cut again and again),
// InvalidArgument or ResourceExhausted (over a bound, disk full).
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

// Bounds of a conversation.
const (
	maxHeader   = 64 << 10
	maxError    = 64 << 10 // of an answer that refuses
	maxAnswer   = 4 << 20  // of any answer that is no blob; registries refuse larger manifests
	headerTime  = 30 * time.Second
	askTime     = 2 * time.Minute // for anything but a blob, with what is tried again
	maxRedirect = 5
)

// DefaultStall is how long less than stallBytes may come of a body.
const (
	DefaultStall = 30 * time.Second
	stallBytes   = 1 << 10
)

// Options of a Client; the zero value is good.
type Options struct {
	// Insecure are hosts, host or host:port, that are spoken to without TLS.
	Insecure []string
	// Environment is where DOCKER_CONFIG, HOME and PATH are looked up; nil is
	// the process's.
	Environment func(string) (string, bool)
	// Transport replaces the network, for tests.
	Transport http.RoundTripper
	// Stall, Pause and Patience replace the defaults in tests: how long a body may
	// stand still, the first pause before something is tried again, and how long a
	// registry may ask us to wait.
	Stall, Pause, Patience time.Duration
	Log                    *slog.Logger
}

// Client speaks to registries. It may be used concurrently.
type Client struct {
	o    Options
	base http.RoundTripper
	own  *http.Transport // nil if it was given

	mu  sync.Mutex
	way map[string]*way // by repository
}

// way is how to speak to a repository.
type way struct {
	http.Client
	known bool // with credentials
}

// New returns a client that has not connected anywhere.
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
	c := &Client{o: o, way: map[string]*way{}}
	inner := o.Transport
	if inner == nil {
		c.own = &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
			MaxIdleConns: 16, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: headerTime, MaxResponseHeaderBytes: maxHeader,
			DisableCompression: true, // what comes is compared with its digest as it is
		}
		inner = c.own
	}
	c.base = &strict{inner: inner, options: &c.o}
	return c
}

// Close lets go of idle connections.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// insecure says whether a host may be spoken to without TLS.
func (o *Options) insecure(host string) bool {
	for _, h := range o.Insecure {
		if strings.EqualFold(h, host) {
			return true
		}
	}
	return false
}

// client is authorised to read a repository. It is made once: the token is
// fetched anew when the registry says so.
func (c *Client) client(ctx context.Context, r ref.Reference) (*way, error) {
	c.mu.Lock()
	known := c.way[r.Name()]
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
	rt, err := transport.NewWithContext(ctx, registry, auth, c.base, []string{registry.Repo(r.Repository).Scope(transport.PullScope)})
	if err != nil {
		return nil, c.failed(ctx, "log in to "+r.Registry, auth != authn.Anonymous, err)
	}
	made := &way{known: auth != authn.Anonymous, Client: http.Client{Transport: rt, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) > maxRedirect {
			return fmt.Errorf("more than %d redirects: %w", maxRedirect, errdefs.ErrFailedPrecondition)
		}
		return nil
	}}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.way[r.Name()] = made
	return made, nil
}

// Forget drops what is known of how to speak to registries: credentials and
// tokens are looked up again.
func (c *Client) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.way)
}

// url is where something of a repository is. The scheme is replaced where the
// host is spoken to without TLS.
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
