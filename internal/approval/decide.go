package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Reason is a question that something else than a rule of this package raised:
// a policy whose verdict is "ask", or a call that wants more trust than its
// caller has.
type Reason struct {
	Kind    Kind
	Rule    string
	Message string
}

// Ask is a call that wants to run.
type Ask struct {
	Call                           string // its id
	Caller, Session, Profile, Tool string
	Trust                          int
	Via                            string
	// Input returns what approvers see, with secrets redacted: a JSON object. It is called if
	// somebody has to be asked. Args is the call's real input, for conditions; it is kept nowhere.
	Input func() json.RawMessage
	Args  map[string]any
	// Key is the idempotency key, or "", and Hash the call's fingerprint.
	Key, Hash string
	Rules     *Rules
	// Reasons are asked beside what the rules ask. No rule of action approve
	// answers them.
	Reasons []Reason
}

func (a Ask) facts() CallFacts {
	return CallFacts{Caller: a.Caller, Session: a.Session, Profile: a.Profile, Tool: a.Tool, Trust: a.Trust, Via: a.Via}
}

// Outcome of a decision. The words are those of State and of Event.
type Outcome string

// The outcomes.
const (
	OutcomeApproved Outcome = "approved" // it may run; if Request is set, after Use
	OutcomeDenied   Outcome = "denied"
	OutcomeAsked    Outcome = "asked" // wait for the answer to Request
)

// Decision on a call.
type Decision struct {
	Outcome Outcome
	// Rule names what decided; "" if there was nothing to decide. Message says
	// why, for a refusal and a question.
	Rule, Message string
	// Request is what was asked, now or before.
	Request *Request
	// Granted is the id of the request whose answer for the session decided,
	// By who gave it.
	Granted, By string
	// Reservation is what was taken of a budget: give it to Refund if the call
	// never runs. "" if nothing was.
	Reservation string
	// RetryAfter is set if the same call can be approved later.
	RetryAfter time.Duration
}

// question is one of the questions of a request, as it is kept.
type question struct {
	Kind    Kind   `json:"kind"`
	Rule    string `json:"rule"`
	Message string `json:"message,omitempty"`
}

// kept is what of a request is nobody's to see.
type kept struct {
	// WaitMS is how long it waits for an answer, at first and when it is
	// handed on.
	WaitMS int64      `json:"wait_ms"`
	Asked  []question `json:"asked"`
}

// Decide says whether a call may run, and asks if somebody has to be asked. In
// order: a rule that denies; an earlier request of the same caller, key and
// hash; a budget; answers that were given for the session; a new request.
//
// An approved call with a Request must pass Use before it runs. Errors are of
// class InvalidArgument for a key that was used for another call, of
// FailedPrecondition for a request that was used already, and of
// ResourceExhausted when too many questions wait.
func (g *Gate) Decide(ctx context.Context, a Ask) (Decision, error) {
	rule, found := a.Rules.find(ctx, a.Tool, a.Args, a.facts())
	if found && rule.Action == Deny {
		return Decision{Outcome: OutcomeDenied, Rule: rule.ID, Message: denial(rule.Rule)}, nil
	}
	if a.Key != "" {
		row, err := g.store.ApprovalByKey(ctx, a.Caller, a.Key)
		switch {
		case err == nil:
			return g.again(ctx, a, row)
		case !errdefs.IsNotFound(err):
			return Decision{}, err
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Rule: rule.ID}
	questions := make([]question, 0, len(a.Reasons)+1)
	for _, r := range a.Reasons {
		if r.Kind == "" {
			r.Kind = KindCall
		}
		questions = append(questions, question(r))
	}
	expiry := g.opts.Expiry
	if found {
		if rule.ExpiresMS > 0 {
			expiry = time.Duration(rule.ExpiresMS) * time.Millisecond
		}
		q, denied, err := g.apply(ctx, id.String(), &rule, a, &d)
		if err != nil || denied {
			return d, err
		}
		if q != nil {
			questions = append(questions, *q)
		}
	}
	undo := d.Reservation
	defer func() {
		if undo != "" {
			g.giveBack(ctx, undo)
		}
	}()
	open, denied, err := g.granted(ctx, a, questions, &d)
	if err != nil || denied {
		return d, err
	}
	if len(open) == 0 {
		undo = ""
		d.Outcome = OutcomeApproved
		return d, nil
	}
	row, fresh, err := g.ask(ctx, id.String(), a, open, expiry)
	if err != nil {
		return Decision{}, err
	}
	if !fresh { // the same call came twice at once
		return g.again(ctx, a, row)
	}
	undo = ""
	r := request(row)
	d.Outcome, d.Rule, d.Message, d.Request = OutcomeAsked, r.Rule, r.Reason, &r
	return d, nil
}

// apply does what a rule that does not deny says: it gives a question, or
// takes of a budget.
func (g *Gate) apply(ctx context.Context, id string, rule *compiled, a Ask, d *Decision) (*question, bool, error) {
	switch rule.Action {
	case Prompt:
		return &question{Kind: KindCall, Rule: rule.ID, Message: orElse(rule.Message, "rule "+rule.ID+" asks for an approval")}, false, nil
	case Budget:
		s, err := g.spend(ctx, id, rule, a)
		switch {
		case err != nil:
			return nil, false, err
		case s.ok:
			d.Reservation = id
		case rule.Then == Prompt:
			return &question{Kind: KindCall, Rule: rule.ID, Message: s.message}, false, nil
		default:
			d.Outcome, d.Message, d.RetryAfter = OutcomeDenied, strings.TrimSpace(rule.Message+" "+s.message), s.retry
			return nil, true, nil
		}
	}
	return nil, false, nil
}

// granted leaves the questions that were not answered for the session.
func (g *Gate) granted(ctx context.Context, a Ask, all []question, d *Decision) (open []question, denied bool, err error) {
	if a.Session == "" {
		return all, false, nil
	}
	since := g.now().Add(-g.opts.Grant)
	for _, q := range all {
		grant, ok, err := g.store.Grant(ctx, a.Caller, a.Session, a.Tool, scoped(a.Profile, q.Rule), a.Trust, since)
		switch {
		case err != nil:
			return nil, false, err
		case !ok:
			open = append(open, q)
		case !grant.Approve:
			*d = Decision{Outcome: OutcomeDenied, Rule: q.Rule, Granted: grant.Approval, By: grant.By,
				Message: strings.TrimSpace(fmt.Sprintf("denied by %s for the session. %s", grant.By, grant.Note))}
			return nil, true, nil
		default:
			d.Rule, d.Granted, d.By = q.Rule, grant.Approval, grant.By
		}
	}
	return open, false, nil
}

// ask makes a request. fresh is false if another of the same key came first.
func (g *Gate) ask(ctx context.Context, id string, a Ask, questions []question, expiry time.Duration) (row store.Approval, fresh bool, err error) {
	private, err := json.Marshal(kept{WaitMS: expiry.Milliseconds(), Asked: questions})
	if err != nil {
		return store.Approval{}, false, err
	}
	now := g.now().UTC()
	row = store.Approval{
		ID: id, Kind: string(KindCall), State: string(Pending), Call: a.Call, Caller: a.Caller, Session: a.Session, Profile: a.Profile, Tool: a.Tool,
		Trust: a.Trust, Input: shorten(a.Input()), Questions: string(private), Key: a.Key, Hash: a.Hash, Created: now, Expires: now.Add(expiry),
	}
	var rules, reasons []string
	for _, q := range questions {
		if q.Kind == KindTrust {
			row.Kind = string(KindTrust)
		}
		rules = append(rules, q.Rule)
		if q.Message != "" {
			reasons = append(reasons, q.Message)
		}
	}
	row.Rule, row.Reason = strings.Join(rules, ", "), bounded(strings.Join(reasons, "; "), 2*maxText)
	e, err := load(row)
	if err != nil {
		return store.Approval{}, false, err
	}
	if err := g.admit(e); err != nil {
		return store.Approval{}, false, err
	}
	row, fresh, err = g.store.InsertApproval(ctx, row)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil || !fresh {
		g.remove(e)
		return row, false, err
	}
	e.ready = true
	if g.pending[id] == e { // nobody was so fast as to answer it
		g.publish("asked", e.request)
	}
	return row, true, nil
}

// admit takes a place among the pending.
func (g *Gate) admit(e *entry) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.pending); n >= g.opts.MaxPending {
		return usererror.Errorf(errdefs.ErrResourceExhausted, "%d questions wait for an answer, which is the most allowed (approvals.max_pending): answer some, or let them expire", n)
	}
	caller := e.request.Caller
	if n := g.callers[caller]; n >= g.opts.MaxPendingPerCaller && (caller != g.opts.Free || caller == "") {
		return usererror.Errorf(errdefs.ErrResourceExhausted,
			"%d questions of %s wait for an answer, which is the most allowed for one caller (callers.max_pending): have some answered, or let them expire", n, caller)
	}
	g.add(e)
	return nil
}

// again decides for a call that was asked about before.
func (g *Gate) again(ctx context.Context, a Ask, row store.Approval) (Decision, error) {
	if row.Hash != a.Hash {
		return Decision{}, usererror.Errorf(errdefs.ErrInvalidArgument, "Idempotency-Key %q was used for another call: use a new key", a.Key)
	}
	if State(row.State) == Pending && !row.Expires.After(g.now()) {
		r, err := g.end(ctx, row.ID, Expired)
		if err != nil {
			return Decision{}, err
		}
		return answered(r)
	}
	return answered(request(row))
}

// answered is the decision that a request stands for.
func answered(r Request) (Decision, error) {
	d := Decision{Rule: r.Rule, Message: r.Reason, Request: &r, By: r.By, Outcome: OutcomeDenied}
	switch {
	case r.Used:
		return Decision{}, usererror.Errorf(errdefs.ErrFailedPrecondition, "approval %s was used already by call %s, and is good for one: ask again with a new key", r.ID, r.Call)
	case r.State == Approved:
		d.Outcome, d.Message, d.Reservation = OutcomeApproved, r.Note, r.ID
	case r.State == Pending:
		d.Outcome = OutcomeAsked
	default:
		d.Message = Refusal(r)
	}
	return d, nil
}

// Refusal says why a request that was not approved is none.
func Refusal(r Request) string {
	switch r.State {
	case Denied:
		return bounded(strings.TrimSpace(fmt.Sprintf("denied by %s. %s", r.By, r.Note)), maxText)
	case Expired:
		return "nobody answered until " + r.Expires.Format(time.RFC3339)
	case Cancelled:
		return "the question was given up by its caller"
	}
	return ""
}

func denial(r Rule) string { return orElse(r.Message, "rule "+r.ID+" denies it") }

// Refund gives back what a decision took of a budget, for a call that never
// ran. Done twice, it does nothing.
func (g *Gate) Refund(ctx context.Context, reservation string) error {
	if reservation == "" {
		return nil
	}
	return g.store.Refund(ctx, reservation)
}

// giveBack undoes a reservation, whatever became of ctx.
func (g *Gate) giveBack(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := g.store.Refund(ctx, id); err != nil {
		g.log.Error("cannot give back a budget", "reservation", id, "error", err)
	}
}

// request is a row as it is shown.
func request(a store.Approval) Request {
	return Request{
		ID: a.ID, Kind: Kind(a.Kind), State: State(a.State), Call: a.Call, Caller: a.Caller, Session: a.Session, Profile: a.Profile, Tool: a.Tool,
		Trust: a.Trust, Input: raw(a.Input), Rule: a.Rule, Reason: a.Reason, Key: a.Key, Hash: a.Hash, Created: a.Created, Expires: a.Expires,
		Decided: a.Decided, By: a.By, Scope: Scope(a.Scope), Note: a.Note, Modified: raw(a.Modified), Escalated: a.Escalated, Used: !a.Used.IsZero(),
	}
}

func load(a store.Approval) (*entry, error) {
	e := &entry{request: request(a), done: make(chan struct{})}
	if err := json.Unmarshal([]byte(a.Questions), &e.kept); err != nil {
		return nil, fmt.Errorf("read the questions of approval %s: %w", a.ID, errors.Join(err, errdefs.ErrDataLoss))
	}
	return e, nil
}

func raw(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	return b
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}
