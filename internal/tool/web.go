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

// Reach says which hosts a tool of the web may ask. Hosts are written as in
// netpolicy.Rule; its zero value allows none.
type Reach struct {
	// Allow are asked over TLS, at Ports (443 unless set, and in a profile those of
	// the service).
	Allow []string `json:"allow,omitempty"`
	// HTTP may be asked in plain HTTP, at HTTPPorts (80 unless set, or likewise). A
	// port is of one of both.
	HTTP      []string `json:"http,omitempty"`
	Ports     []int    `json:"ports,omitempty"`
	HTTPPorts []int    `json:"http_ports,omitempty"`
	// Deny wins over both.
	Deny []string `json:"deny,omitempty"`
	// Methods are those of requests; empty: all that the tool has. In TLS nobody
	// but the tool sees them.
	Methods []string `json:"methods,omitempty"`
}

// Rules are the same for the gateway.
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

// Compile looks at each field; an error begins with its name.
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

// afterField is what an error of netpolicy says of a field of one rule.
func afterField(err error) string {
	_, message, _ := strings.Cut(err.Error(), " ")
	return message
}

// Reached is what may be reached, compiled. It is immutable, and its zero value
// is nothing.
type Reached struct {
	Rules    []netpolicy.Rule
	Compiled *netpolicy.Rules
	reach    Reach
	mark     string // tells its rules from others
	key      string // where it stands in a configuration
}

// Named is the same, which stands under a key of the service's configuration:
// refusals then name that.
func (r *Reached) Named(key string) *Reached {
	named := *r
	named.key = key
	return &named
}

// WebCaps bound the calls of tools of the web.
type WebCaps struct {
	Reach
	// MaxBytes is how much of a body is read, MaxText how many characters of a
	// text are given. Zero takes the tool's.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	MaxText  int   `json:"max_text,omitempty"`
	// Limited is Reach, compiled; nil: the service's own bounds are all.
	Limited *Reached `json:"-"`
}

// Compile looks at each field and sets Limited; an error begins with the
// field's name. Where a Reach says nothing at all it bounds nothing.
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

// WebHost is what a service has for the tools of the web beside sandboxes. It is
// safe for concurrent use; the engine makes a copy for each call.
type WebHost struct {
	// Fetch and Request bound web.fetch and http.request for everybody.
	Fetch, Request *Reached
	// Cache holds what web.fetch got.
	Cache *cache.Cache
	// Extract finds in a text what a prompt asks for; nil: passages are ranked.
	Extract Extractor
	// Search is nil where no provider is configured.
	Search *search.Provider
	// Owner is who calls, with what rights: what is cached for one owner is for
	// no other. Caller is who, whatever the rights: callers share the cache's room.
	Owner, Caller string
}

// Extractor is a language model. An error's words are for callers.
type Extractor interface {
	Name() string
	Extract(ctx context.Context, prompt, address, text string) (string, error)
}

// Exchange is one use of the web program, with what it may reach: what both of
// Reach and Ceiling allow, if there is a Ceiling.
type Exchange struct {
	Request        web.Request
	Reach, Ceiling *Reached
	Secrets        []netpolicy.Secret

	key string // of the configuration that bounds it
}

// WebError is a request that got no answer. Kind is one of package web's faults,
// and the message a sentence for the caller.
type WebError struct{ Kind, Message string }

// Error is the message.
func (e *WebError) Error() string { return e.Message }

// Unwrap gives the class.
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

// bind gives an exchange the rules of its call: the profile's below the
// service's. A profile that names no ports has those of the service.
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
	if limited, err := reached(r.Rules()); err == nil { // the parts were compiled before
		limited.reach = r
		x.Reach = limited
	}
}

// mark tells what an exchange may reach from what others may.
func (x *Exchange) mark() string {
	if x.Ceiling == nil {
		return x.Reach.mark
	}
	return x.Reach.mark + "<" + x.Ceiling.mark
}

// decide asks the rules about an address.
func (x *Exchange) decide(u *url.URL) netpolicy.Decision {
	var ceiling *netpolicy.Rules
	if x.Ceiling != nil {
		ceiling = x.Ceiling.Compiled
	}
	return x.Reach.Compiled.Within(ceiling, want(u, x.Request.Method))
}

// allowed refuses an address before a sandbox is spent on it. The gateway asks
// the rules again, on each hop.
func (x *Exchange) allowed(u *url.URL) error {
	for _, r := range []*Reached{x.Reach, x.Ceiling} {
		if r == nil || len(r.reach.Methods) == 0 || slices.Contains(r.reach.Methods, x.Request.Method) {
			continue
		}
		return &WebError{Kind: web.FaultDenied, Message: "method " + x.Request.Method + " is not allowed: use " + strings.Join(r.reach.Methods, ", ")}
	}
	if d := x.decide(u); !d.Allowed {
		return &WebError{Kind: web.FaultDenied, Message: x.reason(d.Reason)}
	}
	return nil
}

// reason is the gateway's, in which the rules are those that callers give, in
// the words of a tool.
func (x *Exchange) reason(s string) string {
	if x.key == "" {
		return s
	}
	wayOut := "an operator can allow it in " + x.key + ", and in caps.web of the profile"
	return strings.NewReplacer(
		"add one to egress.rules", wayOut, "an operator can raise it in egress.allow", wayOut, "the ceiling: ", "", "egress.rules[", "rule [",
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

// address reads what a caller wants to ask. An error names the field url.
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
		return nil, invalid("url", "is no address that can be read: write https://host/path")
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
