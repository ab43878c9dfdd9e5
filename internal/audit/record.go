package audit

import (
	"encoding/json"
	"time"
)

// Record is one entry of the log. A call has two with the same call id: one of kind "open", written
// before anything runs, and one of kind "close". Requests that are refused before they become
// calls, and operators' actions, are of kind "event".
type Record struct {
	Seq  int64     `json:"seq"`
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	Call string    `json:"call,omitempty"`

	Caller  string `json:"caller,omitempty"`
	Token   string `json:"token,omitempty"` // the token's id, not the token
	Profile string `json:"profile,omitempty"`
	Trust   int    `json:"trust,omitempty"`
	Session string `json:"session,omitempty"`
	Via     string `json:"via,omitempty"` // "http", "mcp", "cli", "shell"

	// Trace is the id of the trace that the call belongs to, in hex, or "".
	Trace string `json:"trace,omitempty"`

	// Action is the name of the tool or of an operator's action ("token.create").
	Action string `json:"action"`
	// Input is redacted. If it exceeds MaxInput, it is truncated, and InputBytes and InputHash
	// (SHA-256, hex) describe the whole. A call that a quota or rate limit refused has only these
	// two.
	Input      json.RawMessage `json:"input,omitempty"`
	InputBytes int             `json:"input_bytes,omitempty"`
	InputHash  string          `json:"input_hash,omitempty"`

	Verdict  string `json:"verdict,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Approval string `json:"approval,omitempty"` // id of the approval request
	By       string `json:"by,omitempty"`       // approver

	Sandbox    string  `json:"sandbox,omitempty"`
	Workspace  string  `json:"workspace,omitempty"`
	Image      string  `json:"image,omitempty"` // digest
	Ending     string  `json:"ending,omitempty"`
	ExitCode   *int    `json:"exit_code,omitempty"`
	DurationMS float64 `json:"duration_ms,omitempty"`
	CPUMS      float64 `json:"cpu_ms,omitempty"`
	MemoryPeak int64   `json:"memory_peak_bytes,omitempty"`
	Stdout     int64   `json:"stdout_bytes,omitempty"`
	Stderr     int64   `json:"stderr_bytes,omitempty"`
	Error      string  `json:"error,omitempty"`

	// Count is the number of refusals that the record stands for. InputBytes is then the total size
	// of their inputs.
	Count int64 `json:"count,omitempty"`

	// Egress is set for kind "egress".
	Egress *Egress `json:"egress,omitempty"`

	// Uncharged records do not count toward the caller's daily share. The field is not stored.
	Uncharged bool `json:"-"`
}

// Egress is a connection from a sandbox, or one plain HTTP request. The record's Verdict is "allow"
// or "deny".
type Egress struct {
	Host     string `json:"host,omitempty"`
	Port     int    `json:"port,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	// Address is the address that the connection was made to.
	Address string `json:"address,omitempty"`
	Reason  string `json:"reason"`
	// Sent and Received count bytes from the sandbox's point of view.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
}

// Kind is the kind of a record.
type Kind string

// The record kinds.
const (
	KindOpen   Kind = "open"
	KindClose  Kind = "close"
	KindEvent  Kind = "event"
	KindEgress Kind = "egress"
	// KindRefused stands for calls that a quota or rate limit refused.
	KindRefused Kind = "refused"
)

// MaxInput limits the input in a record, in bytes.
const MaxInput = 16 << 10
