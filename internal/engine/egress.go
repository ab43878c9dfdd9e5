package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// EgressOptions configures what sandboxes may reach outside.
type EgressOptions struct {
	// Gateway configures the egress gateway. The engine sets its Audit field.
	Gateway netpolicy.Options
	// Allow lists the rules that callers who are not operators may request. Empty allows nothing.
	Allow []Allowance
	// Secrets lists the credentials that a lease can request by name.
	Secrets []Credential
}

// Allowance is a rule that the given callers and profiles may request.
type Allowance struct {
	netpolicy.Rule
	// Callers and Profiles limit the rule. Empty or "*" means everyone.
	Callers, Profiles []string
}

func (a Allowance) appliesTo(p caller.Principal) bool {
	return listMatches(a.Callers, p.Caller) && listMatches(a.Profiles, p.Profile)
}

func listMatches(list []string, name string) bool {
	return len(list) == 0 || slices.Contains(list, "*") || slices.Contains(list, name)
}

// Credential is a secret of the service. Its value never enters a sandbox.
type Credential struct {
	netpolicy.Secret
	// Bare is the value without the prefix that its header adds.
	Bare string
	// Env names a variable that holds a placeholder in the sandbox, or "".
	Env string
	// Callers lists who may request it besides operators. "*" means everyone.
	Callers []string
}

// egressGrant is the validated egress of a lease.
type egressGrant struct {
	asked   v1.Egress
	rules   *netpolicy.Rules
	ceiling *netpolicy.Rules // nil if unlimited
	profile string           // of the requester, if there is a ceiling
	secrets []netpolicy.Secret
	env     map[string]string // variables with placeholders of secrets
}

var errNoGateway = &usererror.InvalidError{
	Field: "egress", Message: "is not available: this service has no gateway (egress.enabled in its configuration)", Class: errdefs.ErrFailedPrecondition,
}

// grantFor validates a caller's egress request. It returns nil if r requests nothing.
func (e *Engine) grantFor(p caller.Principal, r *v1.Egress) (*egressGrant, error) {
	switch {
	case r == nil || len(r.Rules) == 0 && len(r.Secrets) == 0:
		return nil, nil
	case e.egress == nil:
		return nil, errNoGateway
	case len(r.Rules) == 0:
		return nil, usererror.Invalid("egress.rules", "is empty: secrets need rules that allow their hosts")
	}
	g := &egressGrant{asked: v1.Egress{Rules: slices.Clone(r.Rules), Secrets: slices.Clone(r.Secrets)}}
	if !p.Operator {
		var err error
		if g.ceiling, err = e.egress.ceiling(p); err != nil {
			return nil, err
		}
		if g.ceiling.Empty() {
			return nil, &usererror.InvalidError{
				Field:   "egress",
				Message: "is not allowed for this caller: an operator can add it to egress.allow in the service's configuration",
				Class:   errdefs.ErrPermissionDenied,
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
		c, ok := e.egress.credential(p, name)
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

func (g *egressGrant) compile(rules []netpolicy.Rule) (err error) {
	g.rules, err = netpolicy.Compile(rules)
	if bad, ok := errors.AsType[*netpolicy.InvalidError](err); ok {
		return &usererror.InvalidError{Field: bad.Field, Message: bad.Message}
	}
	return err
}

// addCredential adds a credential and its placeholder variable.
func (g *egressGrant) addCredential(c Credential) {
	g.secrets = append(g.secrets, c.Secret)
	if c.Env != "" {
		if g.env == nil {
			g.env = map[string]string{}
		}
		g.env[c.Env] = "set-by-the-gateway-" + c.Name
	}
}

// grantForTool returns the grant of a tool's egress.
func (e *Engine) grantForTool(t *core.Egress) (*egressGrant, error) {
	if e.egress == nil {
		return nil, errNoGateway
	}
	g := &egressGrant{secrets: t.Secrets, ceiling: t.Ceiling}
	for _, r := range t.Rules {
		g.asked.Rules = append(g.asked.Rules, v1.EgressRule(r))
	}
	if err := g.compile(t.Rules); err != nil {
		return nil, err
	}
	return g, nil
}

// guestConfig returns the configuration that the guest receives, or nil without egress.
func (g *egressGrant) guestConfig() *wire.Egress {
	if g == nil {
		return nil
	}
	return &wire.Egress{On: true, Env: g.env}
}

// storeIn sets the egress fields of a stored lease. A nil grant clears them.
func (g *egressGrant) storeIn(l *store.Lease) {
	l.Egress, l.Unbound, l.Profile = nil, false, ""
	if g != nil {
		asked := g.asked
		l.Egress, l.Unbound, l.Profile = &asked, g.ceiling == nil, g.profile
	}
}

// storedGrant restores the grant of a lease that an earlier process made. A secret that is no
// longer configured is left out with a warning.
func (e *Engine) storedGrant(row store.Sandbox) (*egressGrant, error) {
	if e.egress == nil {
		return nil, errNoGateway
	}
	p := caller.Principal{Caller: row.Caller, Profile: row.Lease.Profile, Operator: row.Lease.Unbound}
	r := v1.Egress{Rules: row.Lease.Egress.Rules}
	for _, name := range row.Lease.Egress.Secrets {
		if _, ok := e.egress.credential(p, name); !ok {
			e.log.Warn("secret of a lease is no longer configured", "sandbox", row.ID, "secret", name)
			continue
		}
		r.Secrets = append(r.Secrets, name)
	}
	return e.grantFor(p, &r)
}

// lockEgress serializes egress changes of one lease.
func (e *Engine) lockEgress(ctx context.Context, id string) (leave func(), err error) {
	return e.idem.Lock(ctx, "egress\x00"+id)
}

// startEgress begins to serve the egress of a new lease. record is false for a tool's lease, whose
// call has its own record.
func (e *Engine) startEgress(
	ctx context.Context,
	p caller.Principal,
	l *scheduler.Lease,
	g *egressGrant,
	record bool,
) error {
	if g == nil {
		return nil
	}
	leave, err := e.lockEgress(ctx, l.ID)
	if err != nil {
		return err
	}
	defer leave()
	row, err := e.opts.Store.Sandbox(ctx, l.ID)
	if err != nil {
		return err
	}
	if o, _ := e.egress.find(l.ID); o != nil || row.Lease.Egress == nil {
		return nil // the caller found the lease in a list and changed its egress
	}
	if record {
		if err := e.recordGrant(ctx, p, l.ID, g); err != nil {
			return err
		}
	}
	e.serveEgress(l, g, false)
	return nil
}

// Egress returns the egress rules of the caller's sandbox and its recent connections.
func (e *Engine) Egress(ctx context.Context, p caller.Principal, id string) (v1.EgressState, error) {
	if _, err := e.findLease(ctx, p, id); err != nil {
		return v1.EgressState{}, err
	}
	return e.egressState(id), nil
}

func (e *Engine) egressState(id string) v1.EgressState {
	out := v1.EgressState{Egress: v1.Egress{Rules: []v1.EgressRule{}}, Recent: []v1.EgressConnection{}}
	o, g := e.egress.find(id)
	if o == nil {
		return out
	}
	s := o.session.State()
	out.Egress = g.asked
	out.Open, out.Sent, out.Received, out.Allowed, out.Refused = s.Open, s.Sent, s.Received, s.Allowed, s.Refused
	for _, c := range slices.Backward(s.Recent) {
		out.Recent = append(out.Recent, v1.EgressConnection{
			Time: c.Time.UTC(), Host: c.Host, Port: c.Port, Protocol: c.Protocol, Method: c.Method, Path: c.Path, Address: c.Address,
			Allowed: c.Allowed, Reason: c.Reason, Sent: c.Sent, Received: c.Received, DurationMS: core.Milliseconds(c.Duration),
		})
	}
	return out
}

// SetEgress replaces the egress rules of the caller's sandbox at once. Open connections that are no
// longer allowed are closed. Empty rules stop the proxy in the sandbox. The change is recorded in
// the audit log before it takes effect.
func (e *Engine) SetEgress(ctx context.Context, p caller.Principal, id string, r v1.Egress) (v1.EgressState, error) {
	l, err := e.findLease(ctx, p, id)
	if err != nil {
		return v1.EgressState{}, err
	}
	g, err := e.grantFor(p, &r)
	if err != nil {
		return v1.EgressState{}, err
	}
	leave, err := e.lockEgress(ctx, id)
	if err != nil {
		return v1.EgressState{}, err
	}
	defer leave()
	use, err := l.Enter(ctx)
	if err != nil {
		return v1.EgressState{}, err
	}
	defer use.Leave()
	if err := e.recordGrant(ctx, p, id, g); err != nil {
		return v1.EgressState{}, err
	}
	// Detach from the caller: an interrupted change would leave an inconsistent state.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(use.Ctx), time.Minute)
	defer cancel()
	if err := e.changeEgress(ctx, l, use, g); err != nil {
		return v1.EgressState{}, l.Explain(err)
	}
	return e.egressState(id), nil
}

// changeEgress revokes access before it updates the store, and grants access after it.
func (e *Engine) changeEgress(ctx context.Context, l *scheduler.Lease, use *scheduler.Use, g *egressGrant) error {
	old, before := e.egress.find(l.ID)
	if g == nil {
		e.egress.end(old)
	}
	_, err := e.opts.Store.Update(ctx, l.ID, func(b *store.Sandbox) error {
		if b.State != store.Leased {
			return &core.EndedError{ID: l.ID, Reason: b.Reason}
		}
		g.storeIn(&b.Lease)
		return nil
	})
	switch {
	case err != nil:
		return err
	case g == nil:
		if e.egress == nil {
			return nil
		}
		return use.Egress(ctx, wire.Egress{})
	}
	if err := use.Egress(ctx, *g.guestConfig()); err != nil {
		return errors.Join(err, e.restoreStoredEgress(ctx, l.ID, before))
	}
	e.serveEgress(l, g, false)
	return nil
}

// restoreStoredEgress restores the stored egress after a failed change.
func (e *Engine) restoreStoredEgress(ctx context.Context, id string, before *egressGrant) error {
	_, err := e.opts.Store.Update(ctx, id, func(b *store.Sandbox) error {
		before.storeIn(&b.Lease)
		return nil
	})
	return err
}

// recordGrant records a lease's new egress in the audit log. Without a record the egress is not
// granted.
func (e *Engine) recordGrant(ctx context.Context, p caller.Principal, id string, g *egressGrant) error {
	gov := e.opts.Governance
	if gov == nil {
		return nil
	}
	asked := v1.Egress{Rules: []v1.EgressRule{}}
	if g != nil {
		asked = g.asked
	}
	body, err := marshal(asked)
	if err != nil {
		return err
	}
	if err := gov.AdmitRecord(p); err != nil {
		return err
	}
	return gov.Audit.Event(ctx, audit.Record{
		Kind: audit.KindEvent, Caller: p.Caller, Token: p.Token, Via: p.Via, Action: "egress.set", Sandbox: id, Input: body, Uncharged: p.Operator,
	})
}
