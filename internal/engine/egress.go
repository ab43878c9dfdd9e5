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
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// EgressOptions say what sandboxes may reach of the world outside.
type EgressOptions struct {
	// Gateway is what carries it; its Audit is the engine's.
	Gateway netpolicy.Options
	// Allow is the most that callers may ask for who are no operators; empty:
	// nothing.
	Allow []Allowance
	// Secrets are credentials that a lease can name.
	Secrets []Credential
}

// Allowance is a rule of the most that callers may ask for.
type Allowance struct {
	netpolicy.Rule
	// Callers and Profiles are whom it is for; empty, or "*", is everybody.
	Callers, Profiles []string
}

func (a Allowance) appliesTo(call Call) bool {
	return listMatches(a.Callers, call.Caller) && listMatches(a.Profiles, call.Profile)
}

func listMatches(list []string, name string) bool {
	return len(list) == 0 || slices.Contains(list, "*") || slices.Contains(list, name)
}

// Credential is a secret of the service. Its value never comes into a sandbox.
type Credential struct {
	netpolicy.Secret
	// Bare is the value without what its header puts in front of it.
	Bare string
	// Env is a variable that holds a placeholder inside, or "".
	Env string
	// Callers are who may name it beside operators; "*" is everybody.
	Callers []string
}

// toolEgress is what the engine itself asks for, for a tool that reaches out: no
// bound of the caller's stands over it.
type toolEgress struct {
	Rules []netpolicy.Rule
	// Ceiling, if set, is the most that the tool may have: both have to allow.
	Ceiling *netpolicy.Rules
	// Secrets are set by the gateway; they are neither stored nor named.
	Secrets []netpolicy.Secret
}

// egressGrant is what a lease may reach, checked.
type egressGrant struct {
	asked   v1.Egress
	rules   *netpolicy.Rules
	ceiling *netpolicy.Rules // nil: none
	profile string           // of who asked, where there is a ceiling
	secrets []netpolicy.Secret
	env     map[string]string // placeholders
}

var errNoGateway = &InvalidError{
	Field: "egress", Message: "is not to be had: this service has no gateway (egress.enabled in its configuration)", Class: errdefs.ErrFailedPrecondition,
}

// grantFor checks what a caller asks for; nil: nothing.
func (e *Engine) grantFor(call Call, r *v1.Egress) (*egressGrant, error) {
	switch {
	case r == nil || len(r.Rules) == 0 && len(r.Secrets) == 0:
		return nil, nil
	case e.egress == nil:
		return nil, errNoGateway
	case len(r.Rules) == 0:
		return nil, invalid("egress.rules", "is empty, and secrets are for what rules allow: give rules")
	}
	g := &egressGrant{asked: v1.Egress{Rules: slices.Clone(r.Rules), Secrets: slices.Clone(r.Secrets)}}
	if !call.Operator {
		var err error
		if g.ceiling, err = e.egress.ceiling(call); err != nil {
			return nil, err
		}
		if g.ceiling.Empty() {
			return nil, &InvalidError{Field: "egress", Message: "is not allowed to this caller: an operator can add it to egress.allow in the service's configuration", Class: errdefs.ErrPermissionDenied}
		}
		g.profile = call.Profile
	}
	rules := make([]netpolicy.Rule, 0, len(r.Rules))
	for _, one := range r.Rules {
		rules = append(rules, netpolicy.Rule(one))
	}
	if err := g.compile(rules); err != nil {
		return nil, err
	}
	for i, name := range r.Secrets {
		c, ok := e.egress.credential(call, name)
		if !ok {
			return nil, &InvalidError{Field: fmt.Sprintf("egress.secrets[%d]", i), Message: fmt.Sprintf("is %q: there is no such secret for this caller (egress.secrets in the service's configuration)", truncateForRecord(name)), Class: errdefs.ErrNotFound}
		}
		if slices.Contains(r.Secrets[:i], name) {
			return nil, invalid(fmt.Sprintf("egress.secrets[%d]", i), "is %q, as another one", name)
		}
		g.addCredential(c)
	}
	return g, nil
}

func (g *egressGrant) compile(rules []netpolicy.Rule) (err error) {
	g.rules, err = netpolicy.Compile(rules)
	if bad, ok := errors.AsType[*netpolicy.InvalidError](err); ok {
		return &InvalidError{Field: bad.Field, Message: bad.Message}
	}
	return err
}

// addCredential adds a credential, and its placeholder.
func (g *egressGrant) addCredential(c Credential) {
	g.secrets = append(g.secrets, c.Secret)
	if c.Env != "" {
		if g.env == nil {
			g.env = map[string]string{}
		}
		g.env[c.Env] = "set-by-the-gateway-" + c.Name
	}
}

// grantForTool is reachFor for a tool.
func (e *Engine) grantForTool(t *toolEgress) (*egressGrant, error) {
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

// guestConfig is what the guest is told.
func (g *egressGrant) guestConfig() *wire.Egress {
	if g == nil {
		return nil
	}
	return &wire.Egress{On: true, Env: g.env}
}

// storeIn puts it into what is stored of a lease.
func (g *egressGrant) storeIn(l *store.Lease) {
	l.Egress, l.Unbound, l.Profile = nil, false, ""
	if g != nil {
		asked := g.asked
		l.Egress, l.Unbound, l.Profile = &asked, g.ceiling == nil, g.profile
	}
}

// storedGrant is what a lease may reach that an earlier process made. A secret that is
// no longer configured is left out, and the gateway then sets none.
func (e *Engine) storedGrant(row store.Sandbox) (*egressGrant, error) {
	if e.egress == nil {
		return nil, errNoGateway
	}
	call := Call{Caller: row.Caller, Profile: row.Lease.Profile, Operator: row.Lease.Unbound}
	r := v1.Egress{Rules: row.Lease.Egress.Rules}
	for _, name := range row.Lease.Egress.Secrets {
		if _, ok := e.egress.credential(call, name); !ok {
			e.log.Warn("secret of a lease is no longer there", "sandbox", row.ID, "secret", name)
			continue
		}
		r.Secrets = append(r.Secrets, name)
	}
	return e.grantFor(call, &r)
}

// lockEgress lets one change at a time be made to a lease's.
func (e *Engine) lockEgress(ctx context.Context, id string) (leave func(), err error) {
	return e.lockName(ctx, "egress\x00"+id)
}

// startEgress serves what a new lease may reach; record, unless it is a tool's, whose
// call has its record.
func (e *Engine) startEgress(ctx context.Context, call Call, l *scheduler.Lease, g *egressGrant, record bool) error {
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
		return nil // its caller found it in a list, and has changed it
	}
	if record {
		if err := e.recordGrant(ctx, call, l.ID, g); err != nil {
			return err
		}
	}
	e.serveEgress(l, g, false)
	return nil
}

// Egress tells what a sandbox of the caller's may reach, and what came of it.
func (e *Engine) Egress(ctx context.Context, call Call, id string) (v1.EgressState, error) {
	if _, err := e.findLease(ctx, call, id); err != nil {
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
			Allowed: c.Allowed, Reason: c.Reason, Sent: c.Sent, Received: c.Received, DurationMS: ms(c.Duration),
		})
	}
	return out
}

// SetEgress changes what a sandbox of the caller's may reach, at once: what is
// open and no longer allowed ends. No rules are none, and end the proxy inside.
// The change is in the audit log before it counts.
func (e *Engine) SetEgress(ctx context.Context, call Call, id string, r v1.Egress) (v1.EgressState, error) {
	l, err := e.findLease(ctx, call, id)
	if err != nil {
		return v1.EgressState{}, err
	}
	g, err := e.grantFor(call, &r)
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
	if err := e.recordGrant(ctx, call, id, g); err != nil {
		return v1.EgressState{}, err
	}
	// From here on it is carried out: half a change would be neither.
	ctx, cancel := detach(use.Ctx, time.Minute)
	defer cancel()
	if err := e.changeEgress(ctx, l, use, g); err != nil {
		return v1.EgressState{}, e.endedOr(l, err)
	}
	return e.egressState(id), nil
}

// changeEgress takes away before the store says so, and gives after.
func (e *Engine) changeEgress(ctx context.Context, l *scheduler.Lease, use *scheduler.Use, g *egressGrant) error {
	old, before := e.egress.find(l.ID)
	if g == nil {
		e.egress.end(old)
	}
	_, err := e.opts.Store.Update(ctx, l.ID, func(b *store.Sandbox) error {
		if b.State != store.Leased {
			return &EndedError{ID: l.ID, Reason: b.Reason}
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

// restoreStoredEgress writes down again what was before.
func (e *Engine) restoreStoredEgress(ctx context.Context, id string, before *egressGrant) error {
	_, err := e.opts.Store.Update(ctx, id, func(b *store.Sandbox) error {
		before.storeIn(&b.Lease)
		return nil
	})
	return err
}

// recordGrant records what a lease may reach from now on. What cannot be
// recorded is not given.
func (e *Engine) recordGrant(ctx context.Context, call Call, id string, g *egressGrant) error {
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
	if err := gov.admitRecord(call); err != nil {
		return err
	}
	return gov.Audit.Event(ctx, audit.Record{
		Kind: audit.KindEvent, Caller: call.Caller, Token: call.Token, Via: call.Via, Action: "egress.set", Sandbox: id, Input: body, Uncharged: call.Operator,
	})
}
