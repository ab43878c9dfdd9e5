package v1

import (
	"encoding/json"
	"time"
)

// Tool describes a tool that a caller may call.
type Tool struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description"`
	// Input and Output are JSON Schemas.
	Input  json.RawMessage `json:"input_schema"`
	Output json.RawMessage `json:"output_schema,omitempty"`
	// Effects are values such as "calls(shell)" and "writes(filesystem)".
	Effects []string `json:"effects"`
	// Trust is the minimum trust level of a caller, 0 to 3.
	Trust       int  `json:"trust"`
	Cacheable   bool `json:"cacheable"`
	ReadOnly    bool `json:"read_only"`
	Destructive bool `json:"destructive"`
	Idempotent  bool `json:"idempotent"`
	// Enabled is false if calls are refused.
	Enabled bool     `json:"enabled"`
	Caps    ToolCaps `json:"caps"`
}

// ToolCaps limit a tool's calls. Zero means the service's default.
type ToolCaps struct {
	TimeoutMS    int64   `json:"timeout_ms,omitempty"`
	MaxTimeoutMS int64   `json:"max_timeout_ms,omitempty"`
	Output       int64   `json:"output,omitempty"`
	OutputUnit   string  `json:"output_unit,omitempty"`
	MemoryBytes  int64   `json:"memory_bytes,omitempty"`
	CPUs         float64 `json:"cpus,omitempty"`
	MaxCalls     int     `json:"max_calls,omitempty"`
	WindowMS     int64   `json:"window_ms,omitempty"`
}

// ToolCall calls a tool. It runs in Sandbox, a lease of the caller; or in the sandbox of Session,
// which is leased with the session's first call; or in a sandbox that is destroyed after the call.
type ToolCall struct {
	// Input follows the tool's input schema. Absent input is {}.
	Input   json.RawMessage `json:"input,omitempty"`
	Sandbox string          `json:"sandbox,omitempty"`
	Session string          `json:"session,omitempty"`
	// Workspace, ReadOnly and Template apply to the sandbox that is leased. Job is the UUID of a
	// job, whose workspace is named job_<uuid>.
	Workspace string `json:"workspace,omitempty"`
	ReadOnly  bool   `json:"read_only,omitempty"`
	Job       string `json:"job,omitempty"`
	Template  string `json:"template,omitempty"`
	// Profile selects another profile. Only operators may; callers with a token use the token's
	// profile.
	Profile string `json:"profile,omitempty"`
	// RaiseTrust asks for an approval if the caller's trust is too low.
	RaiseTrust bool `json:"raise_trust,omitempty"`
	// Amount is what the call counts in a budget whose rule reads call.amount: at least 0.
	Amount *float64 `json:"amount,omitempty"`
}

// ToolResult is how a call ended. Failing commands and refused calls are results too; see Ending.
type ToolResult struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	// Ending is an ending of ExecResult, or "ok" or "failed" for a tool that runs no command, or
	// "policy_denied" or "approval_denied".
	Ending string `json:"ending"`
	// ExitCode is set if a command exited, Signal if a signal ended it.
	ExitCode *int `json:"exit_code,omitempty"`
	Signal   int  `json:"signal,omitempty"`
	// Detail explains the ending in a sentence, if there is more to say.
	Detail string `json:"detail,omitempty"`
	// Output follows the tool's output schema. Text is the same for language models.
	Output json.RawMessage `json:"output,omitempty"`
	Text   string          `json:"text,omitempty"`
	// Error is set if the tool treats this ending as an error.
	Error   *ToolError `json:"error,omitempty"`
	Verdict *Verdict   `json:"verdict,omitempty"`
	// Approval is the id of the approval request for this call.
	Approval   string  `json:"approval,omitempty"`
	SandboxID  string  `json:"sandbox_id,omitempty"`
	DurationMS float64 `json:"duration_ms"`
	Usage      Usage   `json:"usage"`
	// Rest is the id under which the full output of a truncated result can be read, with
	// system.output or GET /v1/calls/{id}/output.
	Rest string `json:"rest,omitempty"`
}

// ToolError is an error with the type that the tool's profile defines.
type ToolError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	// RetryAfterMS is set for a rate limit.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// PolicyCheck asks for a policy's verdict on a command. It runs nothing.
type PolicyCheck struct {
	Profile string   `json:"profile,omitempty"`
	Tool    string   `json:"tool,omitempty"` // tool with the policy (default: the profile's policy)
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
}

// Verdict is the decision of a command policy.
type Verdict struct {
	// Verdict is "allow", "ask" or "deny".
	Verdict  string    `json:"verdict" enum:"allow,ask,deny"`
	Rule     string    `json:"rule"`
	Class    string    `json:"class,omitempty"`
	HardDeny bool      `json:"hard_deny,omitempty"`
	Message  string    `json:"message,omitempty"`
	Program  string    `json:"program,omitempty"`
	At       *Position `json:"at,omitempty"`
}

// Position is a place in a command, in bytes. Offset counts from 0, Line and Column from 1.
type Position struct {
	Offset int    `json:"offset"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text,omitempty"`
}

// Approval is an approval request for a call, with its decision.
type Approval struct {
	ID string `json:"id"`
	// Kind is "call" or "trust"; State is "pending", "approved", "denied", "expired" or
	// "cancelled".
	Kind    string `json:"kind"`
	State   string `json:"state"`
	Call    string `json:"call"`
	Caller  string `json:"caller"`
	Session string `json:"session,omitempty"`
	Profile string `json:"profile,omitempty"`
	Tool    string `json:"tool"`
	// Trust is the trust of the calling token. An approval with scope "session" covers tokens of at
	// least that trust, a denial tokens of at most that trust.
	Trust  int             `json:"trust"`
	Input  json.RawMessage `json:"input,omitempty"`
	Rule   string          `json:"rule"`
	Reason string          `json:"reason,omitempty"`

	CreatedAt time.Time       `json:"created_at"`
	ExpiresAt time.Time       `json:"expires_at"`
	DecidedAt *time.Time      `json:"decided_at,omitempty"`
	By        string          `json:"by,omitempty"`
	Scope     string          `json:"scope,omitempty"`
	Note      string          `json:"note,omitempty"`
	Modified  json.RawMessage `json:"modified,omitempty"`
	Escalated string          `json:"escalated,omitempty"`
}

// ApprovalAnswer decides an approval request. Action is "approve", "deny", "modify" (approve with
// Input) or "escalate" (to To). Scope is "call" (the default) or "session".
type ApprovalAnswer struct {
	Action string          `json:"action"`
	Scope  string          `json:"scope,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	To     string          `json:"to,omitempty"`
	Note   string          `json:"note,omitempty"`
}

// ApprovalEvent reports a change of an approval request. Type is "asked", "escalated" or "decided".
type ApprovalEvent struct {
	Type     string   `json:"type"`
	Approval Approval `json:"approval,omitzero"`
}

// Quotas limit a caller. Zero means the service's default.
type Quotas struct {
	Sandboxes   int   `json:"sandboxes,omitempty"`    // at the same time
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // of all its sandboxes
	DiskBytes   int64 `json:"disk_bytes,omitempty"`   // of all its workspaces
	Calls       int64 `json:"calls,omitempty"`        // of tools per day (UTC)
}

// TokenRequest asks for a new API token.
type TokenRequest struct {
	Caller  string `json:"caller"`
	Profile string `json:"profile,omitempty"`
	Trust   int    `json:"trust"`
	Quotas  Quotas `json:"quotas,omitzero"`
	// TTLMS is the token's lifetime. Zero means that it is valid until revoked.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// Operator allows everything, such as creating tokens, answering approval requests and reading
	// the audit log.
	Operator bool   `json:"operator,omitempty"`
	Note     string `json:"note,omitempty"`
}

// Token is an API token. Secret is set only in the answer that creates the token.
type Token struct {
	ID        string     `json:"id"`
	Caller    string     `json:"caller"`
	Profile   string     `json:"profile,omitempty"`
	Trust     int        `json:"trust"`
	Quotas    Quotas     `json:"quotas,omitzero"`
	Operator  bool       `json:"operator,omitempty"`
	Note      string     `json:"note,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	LastUseAt *time.Time `json:"last_use_at,omitempty"`
	Secret    string     `json:"secret,omitempty"`
}

// AuditRecord is one entry of the audit log. A call has an "open" and a "close" record.
type AuditRecord struct {
	Seq        int64           `json:"seq"`
	Time       time.Time       `json:"time"`
	Kind       string          `json:"kind"`
	Call       string          `json:"call,omitempty"`
	Caller     string          `json:"caller,omitempty"`
	Token      string          `json:"token,omitempty"`
	Profile    string          `json:"profile,omitempty"`
	Trust      int             `json:"trust,omitempty"`
	Session    string          `json:"session,omitempty"`
	Via        string          `json:"via,omitempty"`
	Trace      string          `json:"trace,omitempty"`
	Action     string          `json:"action"`
	Input      json.RawMessage `json:"input,omitempty"`
	InputBytes int             `json:"input_bytes,omitempty"`
	InputHash  string          `json:"input_hash,omitempty"`
	Verdict    string          `json:"verdict,omitempty"`
	Rule       string          `json:"rule,omitempty"`
	Approval   string          `json:"approval,omitempty"`
	By         string          `json:"by,omitempty"`
	Sandbox    string          `json:"sandbox,omitempty"`
	Workspace  string          `json:"workspace,omitempty"`
	Image      string          `json:"image,omitempty"`
	Ending     string          `json:"ending,omitempty"`
	ExitCode   *int            `json:"exit_code,omitempty"`
	DurationMS float64         `json:"duration_ms,omitempty"`
	CPUMS      float64         `json:"cpu_ms,omitempty"`
	MemoryPeak int64           `json:"memory_peak_bytes,omitempty"`
	Stdout     int64           `json:"stdout_bytes,omitempty"`
	Stderr     int64           `json:"stderr_bytes,omitempty"`
	Error      string          `json:"error,omitempty"`
	// Count is set for kind "refused": the number of refusals that the record stands for.
	// InputBytes is then the total size of their inputs, and Input is missing.
	Count int64 `json:"count,omitempty"`
	// Egress is set for kind "egress".
	Egress *AuditEgress `json:"egress,omitempty"`
	// Hash is the record's hash in the chain, in hexadecimal.
	Hash string `json:"hash"`
}

// AuditEgress is a connection out of a sandbox, or one plain HTTP request. The record's verdict is
// "allow" or "deny".
type AuditEgress struct {
	Host     string `json:"host,omitempty"`
	Port     int    `json:"port,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Address  string `json:"address,omitempty"` // the address connected to
	Reason   string `json:"reason"`
	Sent     int64  `json:"sent"`
	Received int64  `json:"received"`
}

// AuditReport is the result of verifying the audit log.
type AuditReport struct {
	OK      bool  `json:"ok"`
	Records int64 `json:"records"`
	// Head is "SEQ:HASH" of the last record. Store it elsewhere: a later verification with it
	// detects a log that was cut or rewritten.
	Head string `json:"head"`
	// Problems lists up to 100 damaged records. More reports that there are others.
	Problems []AuditProblem `json:"problems"`
	More     bool           `json:"more,omitempty"`
	// Parts are the files of the log, oldest first.
	Parts []AuditPart `json:"parts"`
}

// AuditPart is a file of the audit log. State is "open" (being written), "sealed", "removed"
// (deleted by retention) or "missing".
type AuditPart struct {
	Part  int    `json:"part"`
	State string `json:"state"`
	// First and Last are the sequence numbers of its records, or 0 if it has none or they are
	// unknown.
	First     int64      `json:"first"`
	Last      int64      `json:"last"`
	RemovedAt *time.Time `json:"removed_at,omitempty"`
}

// AuditProblem is one defect of the log. Kind is "changed", "removed", "inserted", "reordered",
// "cut" or "unreadable".
type AuditProblem struct {
	Seq     int64  `json:"seq"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// Profile describes a profile.
type Profile struct {
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Tools       []string `json:"tools"`
	Source      string   `json:"source"` // "built in" or the path of its file
	Warnings    []string `json:"warnings,omitempty"`
}
