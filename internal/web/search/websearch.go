// Package search builds requests to search providers and parses their responses. It supports
// SearXNG, Brave and Serper. It sends nothing itself: a [Provider] returns a request for guest-web,
// the egress rules for it, and the API key that the gateway adds.
//
// The key is never in the request. Inside the sandbox, the request uses plain HTTP; the gateway
// makes the TLS connection and sets the header. Responses are untrusted and bounded. Results
// without a usable URL are dropped.
package search

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Kinds of providers.
const (
	SearXNG = "searxng"
	Brave   = "brave"
	Serper  = "serper"
)

// Kinds returns the kinds of providers.
func Kinds() []string { return []string{SearXNG, Brave, Serper} }

// Bounds of searches.
const (
	// DefaultResults is the default number of results. MaxResults is the maximum, the limit of
	// Brave.
	DefaultResults = 10
	MaxResults     = 20
	// MaxQuery is the maximum length of a query in characters. Brave allows 400, and 50 words.
	MaxQuery = 400

	maxBody    = 2 << 20
	maxTitle   = 300 // characters
	maxSnippet = 1000
	maxURL     = 2048
	timeout    = 20 * time.Second
)

// Options configures a Provider.
type Options struct {
	// Kind is SearXNG, Brave or Serper.
	Kind string
	// URL is the base URL. The default is the public API of Brave or Serper; SearXNG has no
	// default.
	URL string
	// Key is the API key; SearXNG needs none.
	Key string
	// Results is the default number of results of a search.
	Results int
}

// Provider is a configured search provider. It is immutable.
type Provider struct {
	kind    kind
	base    *url.URL
	key     string
	results int
}

// kind holds what differs between providers.
type kind struct {
	name, base, header string
	request            func(base *url.URL, query string, n int) (web.Request, error)
	results            func(body []byte) ([]Result, error)
	// hint explains a status that has a specific meaning for this provider.
	hint func(status int) string
}

// New validates the options. Errors start with the field: provider, url, key_file or results.
func New(o Options) (*Provider, error) {
	i := slices.Index(Kinds(), o.Kind)
	if i < 0 {
		return nil, fmt.Errorf("provider is %q: use searxng, brave or serper", o.Kind)
	}
	k := []kind{searxng, brave, serper}[i]
	raw := o.URL
	if raw == "" {
		raw = k.base
	}
	if raw == "" {
		return nil, errors.New("url is missing: set the URL of your SearXNG, such as https://search.example.org")
	}
	base, err := url.Parse(raw)
	switch {
	case err != nil, base.Scheme != "http" && base.Scheme != "https", base.Hostname() == "":
		return nil, errors.New("url must be an http:// or https:// URL")
	case base.User != nil:
		return nil, errors.New("url has a user or password: put the key into key_file")
	case base.RawQuery != "", base.Fragment != "":
		return nil, errors.New("url has a query or fragment: remove it")
	case k.header != "" && o.Key == "":
		return nil, fmt.Errorf("key_file is missing: %s requires a key", o.Kind)
	case k.header == "" && o.Key != "":
		return nil, fmt.Errorf("key_file is not supported: %s uses no key", o.Kind)
	case k.header != "" && base.Scheme != "https":
		return nil, errors.New("url is plain http, which would expose the key: use https")
	case o.Results < 0 || o.Results > MaxResults:
		return nil, fmt.Errorf("results is %d: must be from 1 to %d", o.Results, MaxResults)
	}
	if o.Results == 0 {
		o.Results = DefaultResults
	}
	p := &Provider{kind: k, base: base, key: o.Key, results: o.Results}
	if _, err := netpolicy.Compile(p.Rules()); err != nil {
		return nil, fmt.Errorf("url cannot be used in an egress rule: %w", err)
	}
	if err := netpolicy.CheckSecrets(p.Secrets()); err != nil {
		return nil, fmt.Errorf("key_file is not valid in a header field: %w", err)
	}
	return p, nil
}

// Name returns the kind of the provider.
func (p *Provider) Name() string { return p.kind.name }

// Results returns the number of results for a search that asks for n; 0 means the default.
func (p *Provider) Results(n int) int {
	if n == 0 {
		return p.results
	}
	return min(n, MaxResults)
}

// Rules returns the egress rules of a search. They allow only search requests, because a
// compromised guest-web can use the key.
func (p *Provider) Rules() []netpolicy.Rule {
	rule := netpolicy.Rule{Host: p.base.Hostname(), Ports: []int{p.port()}, Protocol: netpolicy.HTTPS}
	if p.base.Scheme == "http" {
		rule.Protocol = netpolicy.HTTP
	}
	if r, err := p.Request("", 1); err == nil { // requests differ only in the query
		rule.Methods = []string{r.Method}
		if u, err := url.Parse(r.URL); err == nil {
			rule.Paths = []string{u.EscapedPath()}
		}
	}
	return []netpolicy.Rule{rule}
}

// Secrets returns the API key as a secret that the gateway adds.
func (p *Provider) Secrets() []netpolicy.Secret {
	if p.key == "" {
		return nil
	}
	return []netpolicy.Secret{{Name: "web-search", Hosts: []string{p.base.Hostname()}, Header: p.kind.header,
		Value: p.key}}
}

func (p *Provider) port() int {
	if n, err := strconv.Atoi(p.base.Port()); err == nil {
		return n
	}
	return defaultPort(p.base.Scheme)
}

func defaultPort(scheme string) int {
	if scheme == "http" {
		return 80
	}
	return 443
}

// Request returns the request for n results. It uses plain HTTP to the name of the provider; the
// gateway adds TLS.
func (p *Provider) Request(query string, n int) (web.Request, error) {
	inside := *p.base
	inside.Scheme, inside.Host = "http", p.base.Hostname()
	if strings.Contains(inside.Host, ":") {
		inside.Host = "[" + inside.Host + "]"
	}
	if port := p.port(); port != defaultPort(p.base.Scheme) {
		inside.Host = net.JoinHostPort(p.base.Hostname(), strconv.Itoa(port))
	}
	inside.Path = strings.TrimSuffix(inside.Path, "/")
	r, err := p.kind.request(&inside, query, n)
	if err != nil {
		return web.Request{}, err
	}
	r.Header = append(r.Header, [2]string{"Accept", "application/json"})
	r.TimeoutMS, r.MaxBytes, r.Redirects, r.Form = timeout.Milliseconds(), maxBody, web.None, web.Raw
	return r, nil
}

// Result is one search result with a usable URL.
type Result struct {
	Title   string `json:"title"`
	URL     string `json:"url"`
	Snippet string `json:"snippet"`
	// Age is the date as the provider states it, or "".
	Age string `json:"age,omitempty"`
}
