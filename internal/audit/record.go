package audit

import (
	"encoding/json"
	"time"
)

// Record is one entry of the log. A call has two: one of kind "open", written
// before anything runs, and one of kind "close"; both carry the call's id.
// What is refused before it can be a call, and what operators do, is one of
// kind "event".
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

	// Action is the tool's name, or what an operator did ("token.create").
	Action string `json:"action"`
	// Input is redacted and bounded: over MaxInput it is cut and InputBytes and
	// InputHash (SHA-256, hex) tell of the whole. Of a call that a quota or a rate
	// refused there are these two alone.
	Input      json.RawMessage `json:"input,omitempty"`
	InputBytes int             `json:"input_bytes,omitempty"`
	InputHash  string          `json:"input_hash,omitempty"`

	Verdict  string `json:"verdict,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Approval string `json:"approval,omitempty"` // the request's id
	By       string `json:"by,omitempty"`       // who approved

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

	// Count is how many refusals of one kind the record stands for; InputBytes is
	// then the size of their inputs together.
	Count int64 `json:"count,omitempty"`

	// Egress is set for kind "egress".
	Egress *Egress `json:"egress,omitempty"`

	// Uncharged records do not count for the caller's daily share. It is not
	// stored.
	Uncharged bool `json:"-"`
}

// Egress is a connection out of a sandbox, or one request of plain HTTP. The
// record's Verdict is "allow" or "deny".
type Egress struct {
	Host     string `json:"host,omitempty"`
	Port     int    `json:"port,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	// Address is what was connected to.
	Address string `json:"address,omitempty"`
	Reason  string `json:"reason"`
	// Sent and Received are in bytes, as the sandbox sees it.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
}

// Kind of a record.
type Kind string

// The kinds.
const (
	KindOpen   Kind = "open"
	KindClose  Kind = "close"
	KindEvent  Kind = "event"
	KindEgress Kind = "egress"
	// KindRefused is calls that a quota or a rate refused.
	KindRefused Kind = "refused"
)

// MaxInput bounds the input that a record holds, in bytes.
const MaxInput = 16 << 10
