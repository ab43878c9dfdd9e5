package reach

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Scope is what one call may contact: hosts that both Limit and Ceiling allow, if Ceiling is set.
type Scope struct {
	Limit, Ceiling *Limit

	key string // configuration key of its limits
}

// Within returns the scope of a call: the profile's limit within the service's. A profile without
// ports uses the service's.
func Within(service *Limit, profile Caps) Scope {
	if profile.Limited == nil {
		return Scope{Limit: service, key: service.key}
	}
	s := Scope{Limit: profile.Limited, Ceiling: service, key: service.key}
	h := profile.Limited.hosts
	if len(h.Ports) == 0 {
		h.Ports = service.hosts.Ports
	}
	if len(h.HTTPPorts) == 0 {
		h.HTTPPorts = service.hosts.HTTPPorts
	}
	if limited, err := Compile(h.Rules()); err == nil { // the parts compiled before
		limited.hosts = h
		s.Limit = limited
	}
	return s
}

// Mark identifies the set of hosts in the scope.
func (s Scope) Mark() string {
	if s.Ceiling == nil {
		return s.Limit.mark
	}
	return s.Limit.mark + "<" + s.Ceiling.mark
}

// Decide evaluates the rules for a request.
func (s Scope) Decide(u *url.URL, method string) netpolicy.Decision {
	var ceiling *netpolicy.Rules
	if s.Ceiling != nil {
		ceiling = s.Ceiling.Compiled
	}
	return s.Limit.Compiled.Within(ceiling, want(u, method))
}

// Check returns a *web.Fault for a request that is not allowed, so that no sandbox is started for
// it.
func (s Scope) Check(u *url.URL, method string) error {
	for _, l := range []*Limit{s.Limit, s.Ceiling} {
		if l == nil || len(l.hosts.Methods) == 0 || slices.Contains(l.hosts.Methods, method) {
			continue
		}
		return &web.Fault{Kind: web.FaultDenied,
			Message: "method " + method + " is not allowed: use " + strings.Join(l.hosts.Methods, ", ")}
	}
	if d := s.Decide(u, method); !d.Allowed {
		return &web.Fault{Kind: web.FaultDenied, Message: s.Reason(d.Reason)}
	}
	return nil
}

// Reason rewords a gateway reason for a tool's caller.
func (s Scope) Reason(text string) string {
	if s.key == "" {
		return text
	}
	wayOut := "an operator can allow it in " + s.key + ", and in caps.web of the profile"
	return strings.NewReplacer(
		"add one to egress.rules", wayOut, "an operator can raise it in egress.allow", wayOut, "the ceiling: ", "",
		"egress.rules[", "rule [",
	).Replace(text)
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
