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

// Rule is an approval rule of a profile. The first rule that matches the tool and whose condition
// holds decides.
type Rule struct {
	ID string `json:"id,omitempty"`
	// Tool is a tool's name or a glob.
	Tool   string `json:"tool"`
	Action Action `json:"action"`
	// When is a CEL expression over input (the call's input) and call (caller, trust, tool,
	// profile). Without one the rule always holds. If it cannot be evaluated, it holds for rules
	// that deny or prompt, but not for rules that approve.
	When string `json:"when,omitempty"`
	// Limit, Period ("daily", "weekly" or "monthly", in UTC), Amount and Then apply to budgets.
	// Amount is a CEL expression for the amount of a call (default: 1). Then is the action for
	// calls over the limit: "deny" (the default) or "prompt".
	Limit  float64 `json:"limit,omitempty"`
	Period string  `json:"period,omitempty"`
	Amount string  `json:"amount,omitempty"`
	Then   Action  `json:"then,omitempty"`
	// ExpiresMS is how long a prompt waits for an answer, in milliseconds (0: 10 minutes).
	ExpiresMS int64  `json:"expires_ms,omitempty"`
	Message   string `json:"message,omitempty"`
}

// Rate limits the calls of one caller to one tool: MaxCalls in any window of WindowMS milliseconds.
type Rate struct {
	MaxCalls int   `json:"max_calls"`
	WindowMS int64 `json:"window_ms"`
}

// State is the state of an approval request.
type State string

// The states. All except pending are final.
const (
	Pending   State = "pending"
	Approved  State = "approved"
	Denied    State = "denied"
	Expired   State = "expired"
	Cancelled State = "cancelled" // its caller will not return
)

// Kind is what a request asks for.
type Kind string

const (
	KindCall  Kind = "call"  // to run a call
	KindTrust Kind = "trust" // also to raise the caller's trust
)

// Request is an approval request, pending or decided.
type Request struct {
	ID     string `json:"id"`
	Kind   Kind   `json:"kind"`
	State  State  `json:"state"`
	Call   string `json:"call"` // id of the call
	Caller string `json:"caller"`
	// Session is the caller's session, if the call named one.
	Session string `json:"session,omitempty"`
	Profile string `json:"profile,omitempty"`
	Tool    string `json:"tool"`
	// Trust is the trust of the requesting token. An approval for the session covers tokens with at
	// least this trust, and a denial those with at most this trust.
	Trust int `json:"trust"`
	// Input is the call's input as approvers see it, with secrets redacted.
	Input json.RawMessage `json:"input,omitempty"`
	// Rule names what required approval, and Reason explains why.
	Rule   string `json:"rule"`
	Reason string `json:"reason,omitempty"`
	// Key is the idempotency key, and Hash the fingerprint of the call. A call with the same two
	// finds this request.
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
	// Escalated names who the request was forwarded to. It stays pending.
	Escalated string `json:"escalated,omitempty"`
	// Used reports that the approved call has started. A request allows one call.
	Used bool `json:"used,omitempty"`
}

// Scope is which calls an answer covers.
type Scope string

const (
	ScopeCall Scope = "call" // only this call
	// ScopeSession also covers later calls with the same caller, session, tool and rule.
	ScopeSession Scope = "session"
)

// Answer is an approver's answer. Action is "approve", "deny", "modify" (approve with a different
// input) or "escalate".
type Answer struct {
	Action string          `json:"action"`
	Scope  Scope           `json:"scope,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	To     string          `json:"to,omitempty"` // recipient of an escalation
	Note   string          `json:"note,omitempty"`
}

// Event is sent to listeners.
type Event struct {
	Type    string  `json:"type"` // "asked", "escalated" or "decided"
	Request Request `json:"approval"`
}
