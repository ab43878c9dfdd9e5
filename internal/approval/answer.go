package approval

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

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

// maxModified bounds the input that an approver gives.
const maxModified = 1 << 20

// Answer answers a request in the name of by. It returns the request as it is
// then. Answering what was answered before is an error of class Conflict that
// names who did and when, unless it is the same answer by the same person.
func (g *Gate) Answer(ctx context.Context, id, by string, a Answer) (Request, error) {
	if err := a.validate(by); err != nil {
		return Request{}, err
	}
	e, r, err := g.lookup(ctx, id)
	if err != nil {
		return Request{}, err
	}
	if e != nil && !r.Expires.After(g.now()) {
		if r, err = g.end(ctx, id, Expired); err != nil {
			return Request{}, err
		}
		e = nil
	}
	switch {
	case e == nil:
		return again(r, by, a)
	case a.Scope == ScopeSession && r.Session == "":
		return Request{}, fmt.Errorf("scope session: the call names no session: use scope call: %w", errdefs.ErrInvalidArgument)
	case a.Action == AnswerEscalate:
		return g.escalate(ctx, e, r, a)
	case a.Action == AnswerModify && g.opts.Check != nil:
		if err := g.opts.Check(ctx, r, a.Input); err != nil {
			return Request{}, err
		}
	}
	row := store.Approval{ID: id, State: string(a.state()), Decided: g.now().UTC(), By: by, Scope: string(a.scope()), Note: a.Note}
	if a.Action == AnswerModify {
		row.Modified = a.Input
	}
	var grants []store.Grant
	if a.Scope == ScopeSession {
		for _, q := range e.Asked {
			grants = append(grants, store.Grant{
				Caller: r.Caller, Session: r.Session, Tool: r.Tool, Rule: scoped(r.Profile, q.Rule), Trust: r.Trust, Approve: a.state() == Approved,
				Approval: id, By: by, Note: a.Note, Created: row.Decided,
			})
		}
	}
	r, done, err := g.decide(ctx, row, grants)
	if err != nil || done {
		return r, err
	}
	return again(r, by, a) // somebody was faster
}

func (a Answer) validate(by string) error {
	bad := func(field, text string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(text, args...), errdefs.ErrInvalidArgument)
	}
	switch a.Action {
	case AnswerApprove, AnswerDeny, AnswerModify, AnswerEscalate:
	default:
		return bad("action", "%q is not an answer: approve, deny, modify or escalate", bounded(a.Action, 64))
	}
	switch {
	case by == "":
		return bad("by", "is empty: an answer needs somebody who gives it")
	case a.Scope != "" && a.Scope != ScopeCall && a.Scope != ScopeSession:
		return bad("scope", "%q is not a scope: call or session", bounded(string(a.Scope), 64))
	case a.Scope == ScopeSession && (a.Action == AnswerModify || a.Action == AnswerEscalate):
		return bad("scope", "session is for approve and deny")
	case len(a.Note) > maxText:
		return bad("note", "is %d bytes long: at most %d", len(a.Note), maxText)
	case a.Action == AnswerEscalate && a.To == "":
		return bad("to", "is empty: say to whom the question is handed on")
	case a.Action != AnswerEscalate && a.To != "":
		return bad("to", "is for escalate")
	case len(a.To) > 256:
		return bad("to", "is %d bytes long: at most 256", len(a.To))
	case a.Action != AnswerModify && len(a.Input) > 0:
		return bad("input", "is for modify")
	case len(a.Input) > maxModified:
		return bad("input", "is %d bytes long: at most %d", len(a.Input), maxModified)
	case a.Action == AnswerModify && !object(a.Input):
		return bad("input", "must be a JSON object: the call's whole new input")
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

// again is for a request that is not pending any more.
func again(r Request, by string, a Answer) (Request, error) {
	same := r.By == by && a.Action != AnswerEscalate && r.State == a.state() && r.Scope == a.scope() && r.Note == a.Note && bytes.Equal(r.Modified, a.Input)
	switch {
	case same:
		return r, nil
	case r.State == Expired:
		return r, fmt.Errorf("approval %s expired at %s: %w", r.ID, r.Expires.Format(time.RFC3339), errdefs.ErrConflict)
	case r.State == Cancelled:
		return r, fmt.Errorf("approval %s was given up by its caller at %s: %w", r.ID, r.Decided.Format(time.RFC3339), errdefs.ErrConflict)
	}
	return r, fmt.Errorf("approval %s was %s by %s at %s: %w", r.ID, r.State, r.By, r.Decided.Format(time.RFC3339), errdefs.ErrConflict)
}

// escalate hands a question on. It waits anew, for as long as it did at first.
func (g *Gate) escalate(ctx context.Context, e *entry, r Request, a Answer) (Request, error) {
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
		return again(request(row), "", a)
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

// lookup finds a request. The entry is nil if it is not pending.
func (g *Gate) lookup(ctx context.Context, id string) (*entry, Request, error) {
	g.mu.Lock()
	e := g.pending[id]
	if e != nil {
		r := e.request
		g.mu.Unlock()
		return e, r, nil
	}
	g.mu.Unlock()
	row, err := g.store.Approval(ctx, id)
	return nil, request(row), err
}

// end makes a pending request expired or cancelled. One that is decided
// already stays as it is.
func (g *Gate) end(ctx context.Context, id string, state State) (Request, error) {
	r, _, err := g.decide(ctx, store.Approval{ID: id, State: string(state), Decided: g.now().UTC()}, nil)
	return r, err
}

// decide makes a request final: in the store, then for those who wait.
func (g *Gate) decide(ctx context.Context, row store.Approval, grants []store.Grant) (Request, bool, error) {
	got, done, err := g.store.DecideApproval(ctx, row, grants, State(row.State) != Approved)
	if err != nil {
		return Request{}, false, err
	}
	r := request(got)
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.pending[row.ID]; e != nil {
		g.remove(e)
	}
	if done {
		g.publish("decided", r)
	}
	return r, done, nil
}

// Wait returns the request once it is decided; it ends with ctx's cause, or
// with an error of class Unavailable when the gate stops.
func (g *Gate) Wait(ctx context.Context, id string) (Request, error) {
	e, r, err := g.lookup(ctx, id)
	if err != nil || e == nil {
		return r, err
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		return r, context.Cause(ctx)
	case <-g.stopped:
		return r, usererror.Errorf(errdefs.ErrUnavailable, "the service stops; approval %s stays, come back with the same key", id)
	}
	return g.Get(ctx, id)
}

// Use marks an approved request as used, before its call runs: it is good for
// one. The second time is an error of class FailedPrecondition, and so is
// using what is not approved.
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
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "approval %s was used at %s already, and is good for one call", id, row.Used.Format(time.RFC3339))
	}
	return usererror.Errorf(errdefs.ErrFailedPrecondition, "approval %s is %s, not approved", id, row.State)
}

// Abandon cancels a pending request whose caller is gone for good. One that
// was decided stays as it is.
func (g *Gate) Abandon(ctx context.Context, id string) error {
	_, err := g.end(ctx, id, Cancelled)
	return err
}

// EndSession takes back what was granted to a session, for one that is over.
func (g *Gate) EndSession(ctx context.Context, caller, session string) error {
	return g.store.DropGrants(ctx, caller, session)
}

// Get returns a request; NotFound if there is none.
func (g *Gate) Get(ctx context.Context, id string) (Request, error) {
	_, r, err := g.lookup(ctx, id)
	return r, err
}

// Filter chooses requests. The zero value takes all.
type Filter struct {
	Caller string
	State  State
	Limit  int // at most; 0 is MaxList
}

// List returns requests, the newest first.
func (g *Gate) List(ctx context.Context, f Filter) ([]Request, error) {
	switch f.State {
	case "", Pending, Approved, Denied, Expired, Cancelled:
	default:
		return nil, fmt.Errorf("state: %q is none: pending, approved, denied, expired or cancelled: %w", bounded(string(f.State), 64), errdefs.ErrInvalidArgument)
	}
	if f.Limit <= 0 || f.Limit > MaxList {
		f.Limit = MaxList
	}
	rows, err := g.store.Approvals(ctx, store.ApprovalFilter{Caller: f.Caller, State: string(f.State), Limit: f.Limit})
	if err != nil {
		return nil, err
	}
	out := make([]Request, len(rows))
	for i, row := range rows {
		out[i] = request(row)
	}
	return out, nil
}
