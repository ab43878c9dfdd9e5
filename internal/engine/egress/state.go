package egress

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// lock serializes egress changes of one lease.
func (s *Service) lock(ctx context.Context, id string) (leave func(), err error) {
	return s.opts.Locks.Lock(ctx, "egress\x00"+id)
}

// Begin begins to serve the egress of a new lease. record is false for a tool's lease, whose
// call has its own record.
func (s *Service) Begin(
	ctx context.Context,
	p caller.Principal,
	l *scheduler.Lease,
	g *Grant,
	audited bool,
) error {
	if g == nil {
		return nil
	}
	leave, err := s.lock(ctx, l.ID)
	if err != nil {
		return err
	}
	defer leave()
	row, err := s.opts.Rows.Sandbox(ctx, l.ID)
	if err != nil {
		return err
	}
	if o, _ := s.find(l.ID); o != nil || row.Lease.Egress == nil {
		return nil // the caller found the lease in a list and changed its egress
	}
	if audited {
		if err := s.record(ctx, p, l.ID, g); err != nil {
			return err
		}
	}
	s.serve(l, g, false)
	return nil
}

// State returns the egress rules of the caller's sandbox and its recent connections.
func (s *Service) State(ctx context.Context, p caller.Principal, id string) (v1.EgressState, error) {
	if _, err := s.opts.Leases.FindLease(ctx, p, id); err != nil {
		return v1.EgressState{}, err
	}
	return s.state(id), nil
}

func (s *Service) state(id string) v1.EgressState {
	out := v1.EgressState{Egress: v1.Egress{Rules: []v1.EgressRule{}}, Recent: []v1.EgressConnection{}}
	o, g := s.find(id)
	if o == nil {
		return out
	}
	now := o.gateway.State()
	out.Egress = g.asked
	out.Open, out.Allowed, out.Refused = now.Open, now.Allowed, now.Refused
	out.Sent, out.Received = now.Sent, now.Received
	for _, c := range slices.Backward(now.Recent) {
		out.Recent = append(out.Recent, v1.EgressConnection{
			Time: c.Time.UTC(), Host: c.Host, Port: c.Port, Protocol: c.Protocol, Method: c.Method, Path: c.Path,
			Address: c.Address, Allowed: c.Allowed, Reason: c.Reason, Sent: c.Sent, Received: c.Received, DurationMS: core.Milliseconds(c.Duration),
		})
	}
	return out
}

// Set replaces the egress rules of the caller's sandbox at once. Open connections that are no
// longer allowed are closed. Empty rules stop the proxy in the sandbox. The change is recorded in
// the audit log before it takes effect.
func (s *Service) Set(ctx context.Context, p caller.Principal, id string, r v1.Egress) (v1.EgressState, error) {
	l, err := s.opts.Leases.FindLease(ctx, p, id)
	if err != nil {
		return v1.EgressState{}, err
	}
	g, err := s.Grant(p, &r)
	if err != nil {
		return v1.EgressState{}, err
	}
	leave, err := s.lock(ctx, id)
	if err != nil {
		return v1.EgressState{}, err
	}
	defer leave()
	use, err := l.Enter(ctx)
	if err != nil {
		return v1.EgressState{}, err
	}
	defer use.Leave()
	if err := s.record(ctx, p, id, g); err != nil {
		return v1.EgressState{}, err
	}
	// Detach from the caller: an interrupted change would leave an inconsistent state.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(use.Ctx), time.Minute)
	defer cancel()
	if err := s.change(ctx, l, use, g); err != nil { //nolint:contextcheck // ctx outlives the request on purpose
		return v1.EgressState{}, l.Explain(err)
	}
	return s.state(id), nil
}

// change revokes access before it updates the store, and grants access after it.
func (s *Service) change(ctx context.Context, l *scheduler.Lease, use *scheduler.Use, g *Grant) error {
	old, before := s.find(l.ID)
	if g == nil {
		old.end()
	}
	_, err := s.opts.Rows.Update(ctx, l.ID, func(b *store.Sandbox) error {
		if b.State != store.Leased {
			return &core.EndedError{ID: l.ID, Reason: b.Reason, Detail: b.Lease.Detail}
		}
		g.StoreIn(&b.Lease)
		return nil
	})
	switch {
	case err != nil:
		return err
	case g == nil:
		if !s.enabled() {
			return nil
		}
		return use.Egress(ctx, wire.Egress{})
	}
	if err := use.Egress(ctx, *g.GuestConfig()); err != nil {
		return errors.Join(err, s.restoreRow(ctx, l.ID, before))
	}
	s.serve(l, g, false)
	return nil
}

// restoreRow restores the stored egress after a failed change.
func (s *Service) restoreRow(ctx context.Context, id string, before *Grant) error {
	_, err := s.opts.Rows.Update(ctx, id, func(b *store.Sandbox) error {
		before.StoreIn(&b.Lease)
		return nil
	})
	return err
}

// record records a lease's new egress in the audit log. Without a record the egress is not
// granted.
func (s *Service) record(ctx context.Context, p caller.Principal, id string, g *Grant) error {
	if s.opts.Audit == nil {
		return nil
	}
	asked := v1.Egress{Rules: []v1.EgressRule{}}
	if g != nil {
		asked = g.asked
	}
	body, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	if err := s.opts.AdmitRecord(p); err != nil {
		return err
	}
	return s.opts.Audit.Event(ctx, audit.Record{
		Kind: audit.KindEvent, Caller: p.Caller, Token: p.Token, Via: p.Via, Action: "egress.set", Sandbox: id,
		Input: body, Uncharged: p.Operator,
	})
}
