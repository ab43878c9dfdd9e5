package approval

import (
	"encoding/json"
	"time"
)

// Action is what a rule does with a call.
type Action string

// The actions of rules.
const (
	Approve Action = "approve"
	Deny    Action = "deny"
	Prompt  Action = "prompt"
	Budget  Action = "budget" // approve until the budget is used up, then deny
)

// Rule is one approval rule as it stands in a profile. Of a profile's rules the
// first that matches the tool and whose condition holds decides.
type Rule struct {
	ID string `json:"id,omitempty"`
	// Tool is a tool's name or a glob over names.
	Tool   string `json:"tool"`
	Action Action `json:"action"`
	// When is a CEL expression over input (the call's input) and call
	// (caller, trust, tool, profile); without one the rule always holds. One
	// that fails to evaluate holds as well if the rule denies or prompts, and
	// does not if it approves.
	When string `json:"when,omitempty"`
	// Limit, Period ("daily", "weekly", "monthly", in UTC) and Amount are for
	// budget. Amount is a CEL expression that gives a number; without one every
	// call counts 1. Then, what is over it, is "deny" (the default) or
	// "prompt".
	Limit  float64 `json:"limit,omitempty"`
	Period string  `json:"period,omitempty"`
	Amount string  `json:"amount,omitempty"`
	Then   Action  `json:"then,omitempty"`
	// ExpiresMS is how long a prompt waits for an answer; the zero value is 10
	// minutes.
	ExpiresMS int64  `json:"expires_ms,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Rate is a rate limit of one tool for one caller: MaxCalls in any WindowMS.
type Rate struct {
	MaxCalls int   `json:"max_calls"`
	WindowMS int64 `json:"window_ms"`
}

// State of a request for approval.
type State string

// The states. All but pending are final.
const (
	Pending   State = "pending"
	Approved  State = "approved"
	Denied    State = "denied"
	Expired   State = "expired"
	Cancelled State = "cancelled" // its caller went away for good
)

// Kind says what is asked for.
type Kind string

const (
	KindCall  Kind = "call"  // to carry out a call
	KindTrust Kind = "trust" // to raise the caller's trust as well
)

// Request is a question that waits for an answer, or had one.
type Request struct {
	ID     string `json:"id"`
	Kind   Kind   `json:"kind"`
	State  State  `json:"state"`
	Call   string `json:"call"` // the id of the call
	Caller string `json:"caller"`
	// Session is the caller's session, where the call named one.
	Session string `json:"session,omitempty"`
	Profile string `json:"profile,omitempty"`
	Tool    string `json:"tool"`
	// Trust is that of the token that asks. An approval for the session covers
	// tokens of at least that trust, a denial those of at most that.
	Trust int `json:"trust"`
	// Input is the call's input with secrets redacted, and what approvers see.
	Input json.RawMessage `json:"input,omitempty"`
	// Rule names what asked, and Reason says it.
	Rule   string `json:"rule"`
	Reason string `json:"reason,omitempty"`
	// Key is the idempotency key, Hash the fingerprint of the call: who comes
	// back with both finds this request.
	Key  string `json:"-"`
	Hash string `json:"-"`

	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at"`
	// The answer. Modified replaces the call's input.
	Decided  time.Time       `json:"decided_at,omitzero"`
	By       string          `json:"by,omitempty"`
	Scope    Scope           `json:"scope,omitempty"`
	Note     string          `json:"note,omitempty"`
	Modified json.RawMessage `json:"modified,omitempty"`
	// Escalated says to whom the question was handed on; it stays pending.
	Escalated string `json:"escalated,omitempty"`
	// Used says that the call it was for has begun: it is good for no other.
	Used bool `json:"used,omitempty"`
}

// Scope is how far an answer reaches.
type Scope string

const (
	ScopeCall Scope = "call" // this call
	// ScopeSession: also later calls of the same caller, session, tool and rule.
	ScopeSession Scope = "session"
)

// Answer is what an approver says. Action is "approve", "deny", "modify"
// (approve with another input) or "escalate".
type Answer struct {
	Action string          `json:"action"`
	Scope  Scope           `json:"scope,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	To     string          `json:"to,omitempty"` // escalate: to whom
	Note   string          `json:"note,omitempty"`
}

// Event is told to listeners.
type Event struct {
	Type    string  `json:"type"` // "asked", "escalated", "decided"
	Request Request `json:"approval"`
}
