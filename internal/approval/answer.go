package approval

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// The actions of answers.
const (
	AnswerApprove  = "approve"
	AnswerDeny     = "deny"
	AnswerModify   = "modify"
	AnswerEscalate = "escalate"
)

// maxModified limits the input that an approver gives, in bytes.
const maxModified = 1 << 20

// Answer answers a request on behalf of by and returns its new state. Answering a decided request
// returns an error of class Conflict that names the earlier approver and time, unless it is the
// same answer by the same approver.
func (g *Gate) Answer(ctx context.Context, id, by string, a Answer) (Request, error) {
	if err := a.validate(by); err != nil {
		return Request{}, err
	}
	e, r, err := g.lookup(ctx, id)
	if err != nil {
		return Request{}, err
	}
	if e != nil && !r.Expires.After(g.now()) {
		if r, err = g.finish(ctx, id, Expired); err != nil {
			return Request{}, err
		}
		e = nil
	}
	switch {
	case e == nil:
		return alreadyDecided(r, by, a)
	case a.Scope == ScopeSession && r.Session == "":
		return Request{}, fmt.Errorf("scope session: the call names no session: use scope call: %w",
			errdefs.ErrInvalidArgument)
	case a.Action == AnswerEscalate:
		return g.escalate(ctx, e, r, a)
	case a.Action == AnswerModify && g.opts.Check != nil:
		if err := g.opts.Check(ctx, r, a.Input); err != nil {
			return Request{}, err
		}
	}
	row := store.Approval{ID: id, State: string(a.state()), Decided: g.now().UTC(), By: by, Scope: string(a.scope()),
		Note: a.Note}
	if a.Action == AnswerModify {
		row.Modified = a.Input
	}
	var grants []store.Grant
	if a.Scope == ScopeSession {
		for _, q := range e.Asked {
			grants = append(grants, store.Grant{
				Caller: r.Caller, Session: r.Session, Tool: r.Tool, Rule: scopedRuleID(r.Profile, q.Rule),
				Trust: r.Trust, Approve: a.state() == Approved,
				Approval: id, By: by, Note: a.Note, Created: row.Decided,
			})
		}
	}
	r, done, err := g.decide(ctx, row, grants)
	if err != nil || done {
		return r, err
	}
	return alreadyDecided(r, by, a) // another answer came first
}

func (a Answer) validate(by string) error {
	bad := func(field, text string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(text, args...), errdefs.ErrInvalidArgument)
	}
	switch a.Action {
	case AnswerApprove, AnswerDeny, AnswerModify, AnswerEscalate:
	default:
		return bad("action", "invalid action %q: use approve, deny, modify or escalate", clip.Text(a.Action, 64))
	}
	switch {
	case by == "":
		return bad("by", "must not be empty: name the approver")
	case a.Scope != "" && a.Scope != ScopeCall && a.Scope != ScopeSession:
		return bad("scope", "invalid scope %q: use call or session", clip.Text(string(a.Scope), 64))
	case a.Scope == ScopeSession && (a.Action == AnswerModify || a.Action == AnswerEscalate):
		return bad("scope", "session requires the action approve or deny")
	case len(a.Note) > maxText:
		return bad("note", "is %d bytes long: the limit is %d", len(a.Note), maxText)
	case a.Action == AnswerEscalate && a.To == "":
		return bad("to", "must not be empty: name the recipient")
	case a.Action != AnswerEscalate && a.To != "":
		return bad("to", "requires the action escalate")
	case len(a.To) > 256:
		return bad("to", "is %d bytes long: the limit is 256", len(a.To))
	case a.Action != AnswerModify && len(a.Input) > 0:
		return bad("input", "requires the action modify")
	case len(a.Input) > maxModified:
		return bad("input", "is %d bytes long: the limit is %d", len(a.Input), maxModified)
	case a.Action == AnswerModify && !object(a.Input):
		return bad("input", "must be a JSON object with the call's complete new input")
	}
	return nil
}

func object(b json.RawMessage) bool {
	return json.Valid(b) && bytes.HasPrefix(bytes.TrimSpace(b), []byte("{"))
}

func (a Answer) state() State {
	if a.Action == AnswerDeny {
		return Denied
	}
	return Approved
}

func (a Answer) scope() Scope {
	if a.Scope == "" {
		return ScopeCall
	}
	return a.Scope
}

// alreadyDecided returns r for a repeated answer, and an error of class Conflict for any other.
func alreadyDecided(r Request, by string, a Answer) (Request, error) {
	same := r.By == by && a.Action != AnswerEscalate && r.State == a.state() && r.Scope == a.scope() &&
		r.Note == a.Note && bytes.Equal(r.Modified, a.Input)
	switch {
	case same:
		return r, nil
	case r.State == Expired:
		return r, fmt.Errorf("approval %s expired at %s: %w", r.ID, r.Expires.Format(time.RFC3339), errdefs.ErrConflict)
	case r.State == Cancelled:
		return r, fmt.Errorf("approval %s was abandoned by its caller at %s: %w", r.ID, r.Decided.Format(time.RFC3339),
			errdefs.ErrConflict)
	}
	return r, fmt.Errorf("approval %s was %s by %s at %s: %w", r.ID, r.State, r.By, r.Decided.Format(time.RFC3339),
		errdefs.ErrConflict)
}

// escalate forwards a request. Its expiry starts over with the original duration.
func (g *Gate) escalate(ctx context.Context, e *pendingRequest, r Request, a Answer) (Request, error) {
	if r.Escalated == a.To {
		return r, nil
	}
	now := g.now().UTC()
	expires := now.Add(time.Duration(e.WaitMS) * time.Millisecond)
	done, err := g.store.EscalateApproval(ctx, r.ID, a.To, expires)
	if err != nil {
		return Request{}, err
	}
	if !done {
		row, err := g.store.Approval(ctx, r.ID)
		if err != nil {
			return Request{}, err
		}
		return alreadyDecided(requestFromRow(row), "", a)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r.Escalated, r.Expires = a.To, expires
	if g.pending[r.ID] == e {
		e.request = r
		heap.Fix(&g.queue, e.index)
		g.publish("escalated", r)
	}
	return r, nil
}

// lookup returns a request. The entry is nil if the request is not pending.
func (g *Gate) lookup(ctx context.Context, id string) (*pendingRequest, Request, error) {
	g.mu.Lock()
	e := g.pending[id]
	if e != nil {
		r := e.request
		g.mu.Unlock()
		return e, r, nil
	}
	g.mu.Unlock()
	row, err := g.store.Approval(ctx, id)
	return nil, requestFromRow(row), err
}

// finish makes a pending request expired or cancelled. A decided request stays unchanged.
func (g *Gate) finish(ctx context.Context, id string, state State) (Request, error) {
	r, _, err := g.decide(ctx, store.Approval{ID: id, State: string(state), Decided: g.now().UTC()}, nil)
	return r, err
}

// decide makes a request final: first in the store, then for waiting callers.
func (g *Gate) decide(ctx context.Context, row store.Approval, grants []store.Grant) (Request, bool, error) {
	got, done, err := g.store.DecideApproval(ctx, row, grants, State(row.State) != Approved)
	if err != nil {
		return Request{}, false, err
	}
	r := requestFromRow(got)
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.pending[row.ID]; e != nil {
		g.remove(e)
	}
	if done {
		g.publish("decided", r)
		if g.opts.OnDecided != nil {
			g.opts.OnDecided(r.State)
		}
	}
	return r, done, nil
}

// Wait returns the request once it is decided. It returns ctx's cause if ctx ends, and an error of
// class Unavailable if the gate stops.
func (g *Gate) Wait(ctx context.Context, id string) (Request, error) {
	e, r, err := g.lookup(ctx, id)
	if err != nil {
		return r, err
	}
	if e == nil {
		return decided(r)
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return r, context.Cause(ctx)
	case <-g.stopped:
		return r, usererror.Errorf(errdefs.ErrUnavailable,
			"the service is stopping: approval %s stays pending: retry with the same key", id)
	}
	if r, err = g.Get(ctx, id); err != nil {
		return r, err
	}
	return decided(r)
}

// decided returns a request that g.pending does not hold. A request that failed to be recorded can
// still have a pending row: that is an error, not a decision.
func decided(r Request) (Request, error) {
	if r.State == Pending {
		return r, usererror.Errorf(errdefs.ErrUnavailable,
			"approval %s was not recorded completely: call again with a new key", r.ID)
	}
	return r, nil
}

// Use marks an approved request as used, before its call runs. A request can be used once: a second
// use, or use without approval, returns an error of class FailedPrecondition.
func (g *Gate) Use(ctx context.Context, id string) error {
	done, err := g.store.UseApproval(ctx, id, string(Approved), g.now())
	if err != nil || done {
		return err
	}
	row, err := g.store.Approval(ctx, id)
	if err != nil {
		return err
	}
	if !row.Used.IsZero() {
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "approval %s was already used at %s: it allows one call",
			id, row.Used.Format(time.RFC3339))
	}
	return usererror.Errorf(errdefs.ErrFailedPrecondition, "approval %s is %s, not approved", id, row.State)
}

// Abandon cancels a pending request whose caller will not return. A decided request stays
// unchanged.
func (g *Gate) Abandon(ctx context.Context, id string) error {
	_, err := g.finish(ctx, id, Cancelled)
	return err
}

// EndSession revokes the grants of a session that ended.
func (g *Gate) EndSession(ctx context.Context, caller, session string) error {
	return g.store.DropGrants(ctx, caller, session)
}

// Get returns a request, or an error of class NotFound.
func (g *Gate) Get(ctx context.Context, id string) (Request, error) {
	_, r, err := g.lookup(ctx, id)
	return r, err
}

// Filter selects requests. The zero value selects all.
type Filter struct {
	Caller string
	State  State
	Before string // the id of a request: only older requests match
	Limit  int    // maximum number; 0 is MaxList
}

// List returns requests, newest first.
func (g *Gate) List(ctx context.Context, f Filter) ([]Request, error) {
	switch f.State {
	case "", Pending, Approved, Denied, Expired, Cancelled:
	default:
		return nil, fmt.Errorf("invalid state %q: use pending, approved, denied, expired or cancelled: %w",
			clip.Text(string(f.State), 64), errdefs.ErrInvalidArgument)
	}
	if f.Limit <= 0 || f.Limit > MaxList {
		f.Limit = MaxList
	}
	rows, err := g.store.List(ctx, store.ApprovalFilter{Caller: f.Caller, State: string(f.State), Before: f.Before,
		Limit: f.Limit})
	if err != nil {
		return nil, err
	}
	out := make([]Request, len(rows))
	for i, row := range rows {
		out[i] = requestFromRow(row)
	}
	return out, nil
}
