package egress

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Grant is the validated egress of a lease. A nil Grant allows nothing.
type Grant struct {
	asked   v1.Egress
	rules   *netpolicy.Rules
	ceiling *netpolicy.Rules // nil if unlimited
	profile string           // of the requester, if there is a ceiling
	secrets []netpolicy.Secret
	env     map[string]string // variables with placeholders of secrets
}

var errNoGateway = &usererror.InvalidError{
	Field: "egress", Class: errdefs.ErrFailedPrecondition,
	Message: "is not available: this service has no gateway (egress.enabled in its configuration)",
}

// Grant validates a caller's egress request. It returns nil if r requests nothing.
func (s *Service) Grant(p caller.Principal, r *v1.Egress) (*Grant, error) {
	switch {
	case r == nil || len(r.Rules) == 0 && len(r.Secrets) == 0:
		return nil, nil
	case !s.enabled():
		return nil, errNoGateway
	case len(r.Rules) == 0:
		return nil, usererror.Invalid("egress.rules", "is empty: secrets need rules that allow their hosts")
	}
	g := &Grant{asked: v1.Egress{Rules: slices.Clone(r.Rules), Secrets: slices.Clone(r.Secrets)}}
	if !p.Operator {
		var err error
		if g.ceiling, err = s.ceiling(p); err != nil {
			return nil, err
		}
		if g.ceiling.Empty() {
			return nil, &usererror.InvalidError{
				Field: "egress", Class: errdefs.ErrPermissionDenied,
				Message: "is not allowed for this caller: " +
					"an operator can add it to egress.allow in the service's configuration",
			}
		}
		g.profile = p.Profile
	}
	rules := make([]netpolicy.Rule, 0, len(r.Rules))
	for _, one := range r.Rules {
		rules = append(rules, netpolicy.Rule(one))
	}
	if err := g.compile(rules); err != nil {
		return nil, err
	}
	for i, name := range r.Secrets {
		c, ok := s.credential(p, name)
		if !ok {
			return nil, &usererror.InvalidError{
				Field: fmt.Sprintf("egress.secrets[%d]", i),
				Message: fmt.Sprintf(
					"is %q: secret not found for this caller (egress.secrets in the service's configuration)",
					audit.TruncateName(name),
				),
				Class: errdefs.ErrNotFound,
			}
		}
		if slices.Contains(r.Secrets[:i], name) {
			return nil, usererror.Invalid(fmt.Sprintf("egress.secrets[%d]", i), "is %q, which is listed twice", name)
		}
		g.addCredential(c)
	}
	return g, nil
}

func (g *Grant) compile(rules []netpolicy.Rule) (err error) {
	g.rules, err = netpolicy.Compile(rules)
	if bad, ok := errors.AsType[*netpolicy.InvalidError](err); ok {
		return &usererror.InvalidError{Field: bad.Field, Message: bad.Message}
	}
	return err
}

// addCredential adds a credential and its placeholder variable.
func (g *Grant) addCredential(c Credential) {
	g.secrets = append(g.secrets, c.Secret)
	if c.Env != "" {
		if g.env == nil {
			g.env = map[string]string{}
		}
		g.env[c.Env] = "set-by-the-gateway-" + c.Name
	}
}

// GrantForTool returns the grant of a tool's egress.
func (s *Service) GrantForTool(t *core.Egress) (*Grant, error) {
	if !s.enabled() {
		return nil, errNoGateway
	}
	g := &Grant{secrets: t.Secrets, ceiling: t.Ceiling}
	for _, r := range t.Rules {
		g.asked.Rules = append(g.asked.Rules, v1.EgressRule(r))
	}
	if err := g.compile(t.Rules); err != nil {
		return nil, err
	}
	return g, nil
}

// GuestConfig returns the configuration that the guest receives, or nil without egress.
func (g *Grant) GuestConfig() *wire.Egress {
	if g == nil {
		return nil
	}
	return &wire.Egress{On: true, Env: g.env}
}

// StoreIn sets the egress fields of a stored lease. A nil grant clears them.
func (g *Grant) StoreIn(l *store.Lease) {
	l.Egress, l.Unbound, l.Profile = nil, false, ""
	if g != nil {
		asked := g.asked
		l.Egress, l.Unbound, l.Profile = &asked, g.ceiling == nil, g.profile
	}
}

// storedGrant restores the grant of a lease that an earlier process made. A secret that is no
// longer configured is left out with a warning.
func (s *Service) storedGrant(row store.Sandbox) (*Grant, error) {
	if !s.enabled() {
		return nil, errNoGateway
	}
	p := caller.Principal{Caller: row.Caller, Profile: row.Lease.Profile, Operator: row.Lease.Unbound}
	r := v1.Egress{Rules: row.Lease.Egress.Rules}
	for _, name := range row.Lease.Egress.Secrets {
		if _, ok := s.credential(p, name); !ok {
			s.log.Warn("secret of a lease is no longer configured", "sandbox", row.ID, "secret", name)
			continue
		}
		r.Secrets = append(r.Secrets, name)
	}
	return s.Grant(p, &r)
}
