package tool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Reach configures which hosts a web tool may contact. Hosts are written as in netpolicy.Rule. The
// zero value allows none.
type Reach struct {
	// Allow lists hosts to contact over TLS, at Ports (default: 443; in a profile, the service's
	// ports).
	Allow []string `json:"allow,omitempty"`
	// HTTP lists hosts to contact over plain HTTP, at HTTPPorts (default: 80; in a profile, the
	// service's ports). A port cannot be in both lists.
	HTTP      []string `json:"http,omitempty"`
	Ports     []int    `json:"ports,omitempty"`
	HTTPPorts []int    `json:"http_ports,omitempty"`
	// Deny overrides both.
	Deny []string `json:"deny,omitempty"`
	// Methods lists the allowed methods (default: all of the tool's). The tool enforces them
	// itself, because the gateway cannot see them in TLS.
	Methods []string `json:"methods,omitempty"`
}

// Rules returns the equivalent rules for the gateway.
func (r Reach) Rules() []netpolicy.Rule {
	out := make([]netpolicy.Rule, 0, len(r.Allow)+len(r.HTTP)+len(r.Deny))
	for _, host := range r.Deny {
		out = append(out, netpolicy.Rule{Host: host, Deny: true})
	}
	for _, host := range r.Allow {
		out = append(out, netpolicy.Rule{Host: host, Ports: r.Ports, Protocol: netpolicy.TLS})
	}
	for _, host := range r.HTTP {
		out = append(out, netpolicy.Rule{Host: host, Ports: r.HTTPPorts, Protocol: netpolicy.HTTP, Methods: r.Methods})
	}
	return out
}

// Compile validates and compiles the fields. An error starts with the field's name.
func (r Reach) Compile() (*Reached, error) {
	for _, list := range []struct {
		name  string
		hosts []string
	}{{"allow", r.Allow}, {"http", r.HTTP}, {"deny", r.Deny}} {
		for i, host := range list.hosts {
			if _, err := netpolicy.Compile([]netpolicy.Rule{{Host: host}}); err != nil {
				return nil, fmt.Errorf("%s[%d] %s", list.name, i, afterField(err))
			}
		}
	}
	for _, port := range r.Ports {
		for _, other := range r.HTTPPorts {
			if port == other {
				return nil, fmt.Errorf("http_ports has %d, and ports too: what is spoken at a port is TLS or plain HTTP", port)
			}
		}
	}
	for _, part := range []struct {
		name string
		rule netpolicy.Rule
	}{
		{"ports", netpolicy.Rule{Host: "*", Ports: r.Ports}},
		{"http_ports", netpolicy.Rule{Host: "*", Ports: r.HTTPPorts, Protocol: netpolicy.HTTP}},
		{"methods", netpolicy.Rule{Host: "*", Methods: r.Methods, Protocol: netpolicy.HTTP}},
	} {
		if _, err := netpolicy.Compile([]netpolicy.Rule{part.rule}); err != nil {
			return nil, fmt.Errorf("%s %s", part.name, afterField(err))
		}
	}
	out, err := reached(r.Rules())
	if err != nil {
		return nil, fmt.Errorf("allow makes too many rules: %w", err)
	}
	out.reach = r
	return out, nil
}

func reached(rules []netpolicy.Rule) (*Reached, error) {
	compiled, err := netpolicy.Compile(rules)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(rules)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	return &Reached{Rules: rules, Compiled: compiled, mark: hex.EncodeToString(sum[:])}, nil
}

// afterField returns a netpolicy error for one rule without its location.
func afterField(err error) string {
	_, message, _ := strings.Cut(err.Error(), " ")
	return message
}

// Reached is a compiled, immutable Reach. The zero value allows nothing.
type Reached struct {
	Rules    []netpolicy.Rule
	Compiled *netpolicy.Rules
	reach    Reach
	mark     string // identifies its rules
	key      string // its configuration key
}

// Named returns a copy with a key of the service's configuration, which refusals then name.
func (r *Reached) Named(key string) *Reached {
	named := *r
	named.key = key
	return &named
}

// WebCaps limits the calls of web tools.
type WebCaps struct {
	Reach
	// MaxBytes is the maximum size of a body, and MaxText the maximum number of characters of a
	// text. Zero means the tool's default.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	MaxText  int   `json:"max_text,omitempty"`
	// Limited is the compiled Reach. nil means that only the service's limits apply.
	Limited *Reached `json:"-"`
}

// Compile validates the fields and sets Limited. An error starts with the field's name. An empty
// Reach sets no limit.
func (w *WebCaps) Compile() (err error) {
	switch {
	case w.MaxBytes < 0 || w.MaxBytes > web.MaxBody:
		return fmt.Errorf("max_bytes is %d: from 1 to %d", w.MaxBytes, web.MaxBody)
	case w.MaxText < 0 || w.MaxText > maxFetchText:
		return fmt.Errorf("max_text is %d: from 1 to %d", w.MaxText, maxFetchText)
	}
	r := w.Reach
	if len(r.Allow)+len(r.HTTP)+len(r.Ports)+len(r.HTTPPorts)+len(r.Deny)+len(r.Methods) > 0 {
		w.Limited, err = r.Compile()
	}
	return err
}

// WebHost holds the service's resources for web tools. It is safe for concurrent use. The engine
// makes a copy for each call.
type WebHost struct {
	// Fetch and Request limit web.fetch and http.request for all callers.
	Fetch, Request *Reached
	// Cache holds the answers of web.fetch.
	Cache *cache.Cache
	// Extract answers a prompt about a text. If nil, passages are ranked instead.
	Extract Extractor
	// Search is nil if no provider is configured.
	Search *search.Provider
	// Owner identifies the caller and its rights: owners share no cached answers. Caller identifies
	// the caller alone: cache limits apply per caller.
	Owner, Caller string
}

// Extractor is a language model. Its errors are safe to show to callers.
type Extractor interface {
	Name() string
	Extract(ctx context.Context, prompt, address, text string) (string, error)
}

// Exchange is one use of the web program. It may contact hosts that both Reach and Ceiling allow,
// if Ceiling is set.
type Exchange struct {
	Request        web.Request
	Reach, Ceiling *Reached
	Secrets        []netpolicy.Secret

	key string // configuration key of its limits
}

// WebError reports a request without an answer. Kind is a fault of package web, and Message is a
// sentence for the caller.
type WebError struct{ Kind, Message string }

// Error implements error.
func (e *WebError) Error() string { return e.Message }

// Unwrap returns the errdefs class.
func (e *WebError) Unwrap() error {
	switch e.Kind {
	case web.FaultURL, web.FaultContent, web.FaultRequest:
		return errdefs.ErrInvalidArgument
	case web.FaultDenied:
		return errdefs.ErrPermissionDenied
	case web.FaultName:
		return errdefs.ErrNotFound
	case web.FaultTimeout:
		return context.DeadlineExceeded
	case web.FaultProgram:
		return errdefs.ErrInternal
	}
	return errdefs.ErrUnavailable
}

// bind sets the rules of an exchange: the profile's within the service's. A profile without ports
// uses the service's.
func (x *Exchange) bind(service *Reached, caps Caps) {
	x.key, x.Reach = service.key, service
	if caps.Web.Limited == nil {
		return
	}
	x.Reach, x.Ceiling = caps.Web.Limited, service
	r := caps.Web.Limited.reach
	if len(r.Ports) == 0 {
		r.Ports = service.reach.Ports
	}
	if len(r.HTTPPorts) == 0 {
		r.HTTPPorts = service.reach.HTTPPorts
	}
	if limited, err := reached(r.Rules()); err == nil { // the parts compiled before
		limited.reach = r
		x.Reach = limited
	}
}

// mark identifies the set of hosts that an exchange may contact.
func (x *Exchange) mark() string {
	if x.Ceiling == nil {
		return x.Reach.mark
	}
	return x.Reach.mark + "<" + x.Ceiling.mark
}

// decide evaluates the rules for a URL.
func (x *Exchange) decide(u *url.URL) netpolicy.Decision {
	var ceiling *netpolicy.Rules
	if x.Ceiling != nil {
		ceiling = x.Ceiling.Compiled
	}
	return x.Reach.Compiled.Within(ceiling, want(u, x.Request.Method))
}

// allowed refuses a URL before a sandbox is started for it. The gateway evaluates the rules again
// on each hop.
func (x *Exchange) allowed(u *url.URL) error {
	for _, r := range []*Reached{x.Reach, x.Ceiling} {
		if r == nil || len(r.reach.Methods) == 0 || slices.Contains(r.reach.Methods, x.Request.Method) {
			continue
		}
		return &WebError{Kind: web.FaultDenied,
			Message: "method " + x.Request.Method + " is not allowed: use " + strings.Join(r.reach.Methods, ", ")}
	}
	if d := x.decide(u); !d.Allowed {
		return &WebError{Kind: web.FaultDenied, Message: x.reason(d.Reason)}
	}
	return nil
}

// reason rewords a gateway reason for a tool's caller.
func (x *Exchange) reason(s string) string {
	if x.key == "" {
		return s
	}
	wayOut := "an operator can allow it in " + x.key + ", and in caps.web of the profile"
	return strings.NewReplacer(
		"add one to egress.rules", wayOut, "an operator can raise it in egress.allow", wayOut, "the ceiling: ", "",
		"egress.rules[", "rule [",
	).Replace(s)
}

func want(u *url.URL, method string) netpolicy.Want {
	w := netpolicy.Want{Host: u.Hostname(), Port: 443, Tunnel: true}
	if u.Scheme == "http" {
		w.Port, w.Tunnel, w.Method, w.Path = 80, false, method, u.EscapedPath()
		if w.Path == "" {
			w.Path = "/"
		}
	}
	if n, err := strconv.Atoi(u.Port()); err == nil {
		w.Port = n
	}
	return w
}

const maxAddress = 8 << 10

// address parses a caller's URL. An error names the field url.
func address(s string) (*url.URL, error) {
	if s == "" {
		return nil, invalid("url", "is empty")
	}
	if len(s) > maxAddress {
		return nil, invalid("url", "is %d bytes long: at most %d", len(s), maxAddress)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }) {
		return nil, invalid("url", "has a space, a backslash or a control character: write them as %%20, %%5C …")
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, invalid("url", "is not a valid URL: use https://host/path")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, invalid("url", "has to begin with https:// or http://")
	case u.User != nil:
		return nil, invalid("url", "has a user or a password before the host: leave it out")
	case u.Opaque != "" || u.Hostname() == "":
		return nil, invalid("url", "names no host: write https://host/path")
	}
	host, addr, err := netpolicy.CanonicalHost(u.Hostname())
	if err != nil {
		return nil, invalid("url", "names a host that cannot be asked: %s", err)
	}
	if addr.Is6() {
		host = "[" + host + "]"
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, invalid("url", "has the port %s: from 1 to 65535", port)
		}
		host += ":" + port
	} else if strings.HasSuffix(u.Host, ":") {
		return nil, invalid("url", "has a colon and no port behind its host")
	}
	u.Host, u.Fragment, u.RawFragment = host, "", ""
	return u, nil
}
