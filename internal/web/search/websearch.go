// Package search knows how search providers are asked and what they answer:
// SearXNG, Brave and Serper. It asks nobody itself: a [Provider] makes a request
// for the web program, with what that may reach and the key that the gateway
// sets on the way, and reads the answer.
//
// The key is never in the request: inside of a sandbox the provider is spoken
// to in plain HTTP, and the gateway makes the TLS connection and sets the
// header. What comes back is foreign and bounded; a result without an address
// of its own is none.
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

// Providers.
const (
	SearXNG = "searxng"
	Brave   = "brave"
	Serper  = "serper"
)

// Kinds lists the providers.
func Kinds() []string { return []string{SearXNG, Brave, Serper} }

// Bounds.
const (
	// DefaultResults are given unless asked otherwise; MaxResults is what every
	// provider can give at once (Brave's bound).
	DefaultResults = 10
	MaxResults     = 20
	// MaxQuery is in characters: Brave takes 400 and 50 words.
	MaxQuery = 400

	maxBody    = 2 << 20
	maxTitle   = 300 // characters
	maxSnippet = 1000
	maxURL     = 2048
	timeout    = 20 * time.Second
)

// Options of a Provider.
type Options struct {
	// Kind is SearXNG, Brave or Serper.
	Kind string
	// URL is the provider's address; "" is the public one of Brave and Serper.
	// SearXNG has none.
	URL string
	// Key is the account's; SearXNG has none.
	Key string
	// Results is how many are given unless a search says otherwise.
	Results int
}

// Provider is one that was configured. It is immutable.
type Provider struct {
	kind    kind
	base    *url.URL
	key     string
	results int
}

// kind is what providers differ in.
type kind struct {
	name, base, header string
	request            func(base *url.URL, query string, n int) (web.Request, error)
	results            func(body []byte) ([]Result, error)
	// hint is for a status that says something particular of this provider.
	hint func(status int) string
}

// New checks the options; errors begin with the field: provider, url, key.
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
		return nil, errors.New("url is missing: the address of a SearXNG of yours, such as https://search.example.org")
	}
	base, err := url.Parse(raw)
	switch {
	case err != nil, base.Scheme != "http" && base.Scheme != "https", base.Hostname() == "":
		return nil, errors.New("url is no http:// or https:// address")
	case base.User != nil:
		return nil, errors.New("url holds a user or a password: put the key into key_file")
	case base.RawQuery != "", base.Fragment != "":
		return nil, errors.New("url has a query or a fragment: give the address alone")
	case k.header != "" && o.Key == "":
		return nil, fmt.Errorf("key_file is missing: %s asks for a key", o.Kind)
	case k.header == "" && o.Key != "":
		return nil, fmt.Errorf("key_file is of no use: %s takes no key", o.Kind)
	case k.header != "" && base.Scheme != "https":
		return nil, errors.New("url is plain http, and the key would go over the wire as it is: use https")
	case o.Results < 0 || o.Results > MaxResults:
		return nil, fmt.Errorf("results is %d: from 1 to %d", o.Results, MaxResults)
	}
	if o.Results == 0 {
		o.Results = DefaultResults
	}
	p := &Provider{kind: k, base: base, key: o.Key, results: o.Results}
	if _, err := netpolicy.Compile(p.Rules()); err != nil {
		return nil, fmt.Errorf("url cannot be a rule of egress: %w", err)
	}
	if err := netpolicy.CheckSecrets(p.Secrets()); err != nil {
		return nil, fmt.Errorf("key_file holds what cannot be a field of a request: %w", err)
	}
	return p, nil
}

// Name is SearXNG, Brave or Serper.
func (p *Provider) Name() string { return p.kind.name }

// Results is how many results a search for n gives: n, or the configured
// number for 0.
func (p *Provider) Results(n int) int {
	if n == 0 {
		return p.results
	}
	return min(n, MaxResults)
}

// Rules are what a search may reach: what it asks of the provider, and nothing
// else there, since whoever takes the web program over has the key's use.
func (p *Provider) Rules() []netpolicy.Rule {
	rule := netpolicy.Rule{Host: p.base.Hostname(), Ports: []int{p.port()}, Protocol: netpolicy.HTTPS}
	if p.base.Scheme == "http" {
		rule.Protocol = netpolicy.HTTP
	}
	if r, err := p.Request("", 1); err == nil { // of all queries it differs in the query alone
		rule.Methods = []string{r.Method}
		if u, err := url.Parse(r.URL); err == nil {
			rule.Paths = []string{u.EscapedPath()}
		}
	}
	return []netpolicy.Rule{rule}
}

// Secrets are what the gateway sets on the way to the provider.
func (p *Provider) Secrets() []netpolicy.Secret {
	if p.key == "" {
		return nil
	}
	return []netpolicy.Secret{{Name: "web-search", Hosts: []string{p.base.Hostname()}, Header: p.kind.header, Value: p.key}}
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

// Request asks for n results. What a sandbox sees of a provider over TLS is
// plain HTTP to its name: the gateway knows the rest.
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

// Result is one that can be cited.
type Result struct {
	Title   string `json:"title"`
	URL     string `json:"url"`
	Snippet string `json:"snippet"`
	// Age is the provider's own words for when it was written, "" if it has none.
	Age string `json:"age,omitempty"`
}
