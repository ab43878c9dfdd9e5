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

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Reason is a reason to ask that does not come from a rule of this package: a policy with verdict
// "ask", or a call that needs more trust than its caller has.
type Reason struct {
	Kind    Kind
	Rule    string
	Message string
}

// Ask is a call to decide.
type Ask struct {
	Call                           string // its id
	Caller, Session, Profile, Tool string
	Trust                          int
	Via                            string
	Amount                         *float64 // as in CallFacts
	// Input returns what approvers see: a JSON object with secrets redacted. It is called only if
	// approval is needed. Args is the call's real input, for conditions; it is not stored.
	Input func() json.RawMessage
	Args  map[string]any
	// Key is the idempotency key, or "". Hash is the call's fingerprint.
	Key, Hash string
	Rules     *Rules
	// Reasons need approval in addition to the rules. A rule with action approve does not cover
	// them.
	Reasons []Reason
}

func (a Ask) facts() CallFacts {
	return CallFacts{
		Caller: a.Caller, Session: a.Session, Profile: a.Profile, Tool: a.Tool, Trust: a.Trust, Via: a.Via, Amount: a.Amount,
	}
}

// Outcome is the result of a decision. The words match those of State and Event.
type Outcome string

// The outcomes.
const (
	OutcomeApproved Outcome = "approved" // it may run; if Request is set, after Use
	OutcomeDenied   Outcome = "denied"
	OutcomeAsked    Outcome = "asked" // wait for the answer to Request
)

// Decision is the decision on a call.
type Decision struct {
	Outcome Outcome
	// Rule names what decided, or is "" if nothing applied. Message gives the reason for a refusal
	// or an approval request.
	Rule, Message string
	// Request is the approval request, new or existing.
	Request *Request
	// Granted is the id of the request whose session-wide answer decided. By is its approver.
	Granted, By string
	// Reservation identifies a budget charge, or is "". Pass it to Refund if the call never runs.
	Reservation string
	// RetryAfter is set if the same call can be approved later.
	RetryAfter time.Duration
}

// question is one reason of a request, as it is stored.
type question struct {
	Kind    Kind   `json:"kind"`
	Rule    string `json:"rule"`
	Message string `json:"message,omitempty"`
}

// storedDetails holds the details of a request that are not shown.
type storedDetails struct {
	// WaitMS is how long the request waits for an answer, at first and after each escalation.
	WaitMS int64      `json:"wait_ms"`
	Asked  []question `json:"asked"`
}

// Decide decides whether a call may run, and creates an approval request if one is needed. It
// checks in order: a rule that denies; an earlier request with the same caller, key and hash;
// budgets; session grants. If all leave something open, it creates a request.
//
// An approved call with a Request must pass Use before it runs. Errors are of class InvalidArgument
// if the key was used for a different call, FailedPrecondition if the request was already used, and
// ResourceExhausted if too many requests are pending.
func (g *Gate) Decide(ctx context.Context, a Ask) (Decision, error) {
	rule, found := a.Rules.find(ctx, a.Tool, a.Args, a.facts())
	if found && rule.Action == Deny {
		return Decision{Outcome: OutcomeDenied, Rule: rule.ID, Message: denial(rule.Rule)}, nil
	}
	if a.Key != "" {
		row, err := g.store.ApprovalByKey(ctx, a.Caller, a.Key)
		switch {
		case err == nil:
			return g.resume(ctx, a, row)
		case !errdefs.IsNotFound(err):
			return Decision{}, err
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Rule: rule.ID}
	questions := questionsOf(a.Reasons)
	expiry := g.opts.Expiry
	if found {
		if rule.ExpiresMS > 0 {
			expiry = time.Duration(rule.ExpiresMS) * time.Millisecond
		}
		q, denied, err := g.applyRule(ctx, id.String(), &rule, a, &d)
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
			g.refundDetached(ctx, undo)
		}
	}()
	open, denied, err := g.applyGrants(ctx, a, questions, &d)
	if err != nil || denied {
		return d, err
	}
	if len(open) == 0 {
		undo = ""
		d.Outcome = OutcomeApproved
		return d, nil
	}
	row, fresh, err := g.createRequest(ctx, id.String(), a, open, expiry)
	if err != nil {
		return Decision{}, err
	}
	if !fresh { // a concurrent duplicate of the call came first
		return g.resume(ctx, a, row)
	}
	undo = ""
	r := requestFromRow(row)
	d.Outcome, d.Rule, d.Message, d.Request = OutcomeAsked, r.Rule, r.Reason, &r
	return d, nil
}

// questionsOf returns the reasons as questions.
func questionsOf(reasons []Reason) []question {
	questions := make([]question, 0, len(reasons)+1)
	for _, r := range reasons {
		if r.Kind == "" {
			r.Kind = KindCall
		}
		questions = append(questions, question(r))
	}
	return questions
}

// applyRule applies a rule that does not deny: it returns a question or charges a budget.
func (g *Gate) applyRule(ctx context.Context, id string, rule *compiled, a Ask, d *Decision) (*question, bool, error) {
	switch rule.Action {
	case Prompt:
		message := orElse(rule.Message, "rule "+rule.ID+" asks for an approval")
		return &question{Kind: KindCall, Rule: rule.ID, Message: message}, false, nil
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
	default: // it approves
	}
	return nil, false, nil
}

// applyGrants returns the questions that no session grant answers.
func (g *Gate) applyGrants(
	ctx context.Context, a Ask, all []question, d *Decision,
) (open []question, denied bool, err error) {
	if a.Session == "" {
		return all, false, nil
	}
	since := g.now().Add(-g.opts.Grant)
	for _, q := range all {
		grant, ok, err := g.store.Grant(ctx, a.Caller, a.Session, a.Tool, scopedRuleID(a.Profile, q.Rule), a.Trust,
			since)
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

// createRequest creates a request. fresh is false if one with the same key exists.
func (g *Gate) createRequest(
	ctx context.Context, id string, a Ask, questions []question, expiry time.Duration,
) (row store.Approval, fresh bool, err error) {
	private, err := json.Marshal(storedDetails{WaitMS: expiry.Milliseconds(), Asked: questions})
	if err != nil {
		return store.Approval{}, false, err
	}
	now := g.now().UTC()
	row = store.Approval{
		ID: id, Kind: string(KindCall), State: string(Pending), Call: a.Call, Caller: a.Caller, Session: a.Session,
		Profile: a.Profile, Tool: a.Tool,
		Trust: a.Trust, Input: shorten(a.Input()), Questions: string(private), Key: a.Key, Hash: a.Hash, Created: now,
		Expires: now.Add(expiry),
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
	row.Rule, row.Reason = strings.Join(rules, ", "), clip.Text(strings.Join(reasons, "; "), 2*maxText)
	e, err := load(row)
	if err != nil {
		return store.Approval{}, false, err
	}
	if err := g.reservePending(e); err != nil {
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
	if g.pending[id] == e { // not answered yet
		g.publish("asked", e.request)
	}
	return row, true, nil
}

// reservePending adds e to the pending requests, within their limits.
func (g *Gate) reservePending(e *pendingRequest) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.pending); n >= g.opts.MaxPending {
		return usererror.Errorf(errdefs.ErrResourceExhausted,
			"too many pending approval requests: %d (approvals.max_pending): answer some, or let them expire", n)
	}
	caller := e.request.Caller
	if n := g.callers[caller]; n >= g.opts.MaxPendingPerCaller && (caller != g.opts.Free || caller == "") {
		return usererror.Errorf(errdefs.ErrResourceExhausted,
			"too many pending approval requests: %d of caller %s (callers.max_pending): have some answered, or let "+
				"them expire", n, caller)
	}
	g.add(e)
	return nil
}

// resume decides a call that already has a request.
func (g *Gate) resume(ctx context.Context, a Ask, row store.Approval) (Decision, error) {
	if row.Hash != a.Hash {
		return Decision{}, usererror.Errorf(errdefs.ErrInvalidArgument,
			"Idempotency-Key %q was used for another call: use a new key", a.Key)
	}
	if State(row.State) == Pending && !row.Expires.After(g.now()) {
		r, err := g.finish(ctx, row.ID, Expired)
		if err != nil {
			return Decision{}, err
		}
		return decisionOf(r)
	}
	return decisionOf(requestFromRow(row))
}

// decisionOf returns the decision that a request stands for.
func decisionOf(r Request) (Decision, error) {
	d := Decision{Rule: r.Rule, Message: r.Reason, Request: &r, By: r.By, Outcome: OutcomeDenied}
	switch {
	case r.Used:
		return Decision{}, usererror.Errorf(errdefs.ErrFailedPrecondition,
			"approval %s was already used by call %s: it allows one call: ask again with a new key", r.ID, r.Call)
	case r.State == Approved:
		d.Outcome, d.Message, d.Reservation = OutcomeApproved, r.Note, r.ID
	case r.State == Pending:
		d.Outcome, d.Reservation = OutcomeAsked, r.ID
	default:
		d.Message = Refusal(r)
	}
	return d, nil
}

// Refusal returns why a request was not approved, or "".
func Refusal(r Request) string {
	switch r.State {
	case Denied:
		return clip.Text(strings.TrimSpace(fmt.Sprintf("denied by %s. %s", r.By, r.Note)), maxText)
	case Expired:
		return "no answer until " + r.Expires.Format(time.RFC3339)
	case Cancelled:
		return "the request was abandoned by its caller"
	default: // pending or approved
		return ""
	}
}

func denial(r Rule) string { return orElse(r.Message, "rule "+r.ID+" denies it") }

// Refund returns a decision's charge to its budget, for a call that never ran. Repeated calls do
// nothing.
func (g *Gate) Refund(ctx context.Context, reservation string) error {
	if reservation == "" {
		return nil
	}
	return g.store.Refund(ctx, reservation)
}

// refundDetached refunds a reservation even if ctx has ended.
func (g *Gate) refundDetached(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := g.store.Refund(ctx, id); err != nil {
		g.log.Error("failed to refund a budget", "reservation", id, "error", err)
	}
}

// requestFromRow returns a stored row as a Request.
func requestFromRow(a store.Approval) Request {
	return Request{
		ID: a.ID, Kind: Kind(a.Kind), State: State(a.State), Call: a.Call, Caller: a.Caller, Session: a.Session,
		Profile: a.Profile, Tool: a.Tool,
		Trust: a.Trust, Input: raw(a.Input), Rule: a.Rule, Reason: a.Reason, Key: a.Key, Hash: a.Hash,
		Created: a.Created,
		Expires: a.Expires,
		Decided: a.Decided, By: a.By, Scope: Scope(a.Scope), Note: a.Note, Modified: raw(a.Modified),
		Escalated: a.Escalated, Used: !a.Used.IsZero(),
	}
}

func load(a store.Approval) (*pendingRequest, error) {
	e := &pendingRequest{request: requestFromRow(a), done: make(chan struct{})}
	if err := json.Unmarshal([]byte(a.Questions), &e.storedDetails); err != nil {
		return nil, fmt.Errorf("decode the reasons of approval %s: %w", a.ID, errors.Join(err, errdefs.ErrDataLoss))
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
