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
	// Effects are "calls(shell)", "writes(filesystem)" and the like.
	Effects []string `json:"effects"`
	// Trust is the level, 0 to 3, that a caller needs.
	Trust       int  `json:"trust"`
	Cacheable   bool `json:"cacheable"`
	ReadOnly    bool `json:"read_only"`
	Destructive bool `json:"destructive"`
	Idempotent  bool `json:"idempotent"`
	// Enabled: a tool that is not is refused.
	Enabled bool     `json:"enabled"`
	Caps    ToolCaps `json:"caps"`
}

// ToolCaps are the bounds of a tool's calls. Zero: the service's.
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

// ToolCall calls a tool. Where it runs: in Sandbox, a lease of the caller; or
// in the sandbox of Session, which is leased with the session's first call; or
// in one of its own, that is destroyed after it.
type ToolCall struct {
	// Input is of the tool's input schema; absent, it is {}.
	Input   json.RawMessage `json:"input,omitempty"`
	Sandbox string          `json:"sandbox,omitempty"`
	Session string          `json:"session,omitempty"`
	// Workspace, ReadOnly and Template are for the sandbox that is leased. Job
	// is the uuid of a job, which has a workspace of its own, job_<uuid>.
	Workspace string `json:"workspace,omitempty"`
	ReadOnly  bool   `json:"read_only,omitempty"`
	Job       string `json:"job,omitempty"`
	Template  string `json:"template,omitempty"`
	// Profile is for operators: callers with a token have theirs.
	Profile string `json:"profile,omitempty"`
	// RaiseTrust asks for an approval where the caller's trust is too low.
	RaiseTrust bool `json:"raise_trust,omitempty"`
}

// ToolResult is how a call ended. A failing command is a result, and so is a
// refusal: Ending says which.
type ToolResult struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	// Ending is as in ExecResult, or "ok" and "failed" for a tool that runs no
	// command, or "policy_denied" or "approval_denied".
	Ending string `json:"ending"`
	// ExitCode is set where a command exited, Signal where one ended it.
	ExitCode *int `json:"exit_code,omitempty"`
	Signal   int  `json:"signal,omitempty"`
	// Detail says in a sentence why it ended so, where there is more to say.
	Detail string `json:"detail,omitempty"`
	// Output is of the tool's output schema. Text is its form for models.
	Output json.RawMessage `json:"output,omitempty"`
	Text   string          `json:"text,omitempty"`
	// Error is set if the tool calls this ending an error.
	Error   *ToolError `json:"error,omitempty"`
	Verdict *Verdict   `json:"verdict,omitempty"`
	// Approval is the id of the request that was asked.
	Approval   string  `json:"approval,omitempty"`
	SandboxID  string  `json:"sandbox_id,omitempty"`
	DurationMS float64 `json:"duration_ms"`
	Usage      Usage   `json:"usage"`
	// Rest says where the rest of a truncated output can be read: by this id
	// with system.output, or GET /v1/calls/{id}/output.
	Rest string `json:"rest,omitempty"`
}

// ToolError names an error as the tool's profile does.
type ToolError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	// RetryAfterMS is set for a rate limit.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// PolicyCheck asks what a policy would say. It runs nothing.
type PolicyCheck struct {
	Profile string   `json:"profile,omitempty"`
	Tool    string   `json:"tool,omitempty"` // whose policy; the profile's own unless set
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
}

// Verdict is what a command policy says.
type Verdict struct {
	// Verdict is "allow", "ask" or "deny".
	Verdict string    `json:"verdict"`
	Rule    string    `json:"rule"`
	Class   string    `json:"class,omitempty"`
	Never   bool      `json:"never,omitempty"`
	Message string    `json:"message,omitempty"`
	Program string    `json:"program,omitempty"`
	At      *Position `json:"at,omitempty"`
}

// Position is a place in a command: Offset from 0, Line and Column from 1, in
// bytes.
type Position struct {
	Offset int    `json:"offset"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text,omitempty"`
}

// Approval is a question about a call, and its answer.
type Approval struct {
	ID string `json:"id"`
	// Kind is "call" or "trust"; State is "pending", "approved", "denied",
	// "expired" or "cancelled".
	Kind    string `json:"kind"`
	State   string `json:"state"`
	Call    string `json:"call"`
	Caller  string `json:"caller"`
	Session string `json:"session,omitempty"`
	Profile string `json:"profile,omitempty"`
	Tool    string `json:"tool"`
	// Trust is that of the token that asks. An approval with scope "session"
	// covers tokens of at least that trust, a denial those of at most that.
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

// ApprovalAnswer answers one. Action is "approve", "deny", "modify" (approve
// with Input) or "escalate" (to To). Scope is "call" (the default) or
// "session".
type ApprovalAnswer struct {
	Action string          `json:"action"`
	Scope  string          `json:"scope,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	To     string          `json:"to,omitempty"`
	Note   string          `json:"note,omitempty"`
}

// ApprovalEvent is told to listeners. Type is "asked", "escalated" or
// "decided".
type ApprovalEvent struct {
	Type     string   `json:"type"`
	Approval Approval `json:"approval,omitzero"`
}

// Quotas bound a caller. Zero: the service's default.
type Quotas struct {
	Sandboxes   int   `json:"sandboxes,omitempty"`    // at once
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // of them together
	DiskBytes   int64 `json:"disk_bytes,omitempty"`   // of its workspaces together
	Calls       int64 `json:"calls,omitempty"`        // of tools in a day (UTC)
}

// TokenRequest makes a token.
type TokenRequest struct {
	Caller  string `json:"caller"`
	Profile string `json:"profile,omitempty"`
	Trust   int    `json:"trust"`
	Quotas  Quotas `json:"quotas,omitzero"`
	// TTLMS ends it by itself; zero: it lasts until revoked.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// Operator tokens may do everything: make tokens, approve, read the audit.
	Operator bool   `json:"operator,omitempty"`
	Note     string `json:"note,omitempty"`
}

// Token is a token without its secret. Secret is there once, when it is made.
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

// AuditRecord is one entry of the audit log; a call has an "open" and a
// "close" one.
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
	// Count is set for kind "refused": how many refusals the record stands for.
	// InputBytes is then the size of their inputs together; Input is missing.
	Count int64 `json:"count,omitempty"`
	// Egress is set for kind "egress".
	Egress *AuditEgress `json:"egress,omitempty"`
	// Hash is the record's own in the chain, as hex.
	Hash string `json:"hash"`
}

// AuditEgress is a connection out of a sandbox, or one request of plain HTTP;
// the record's verdict is "allow" or "deny".
type AuditEgress struct {
	Host     string `json:"host,omitempty"`
	Port     int    `json:"port,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Address  string `json:"address,omitempty"` // that was connected to
	Reason   string `json:"reason"`
	Sent     int64  `json:"sent"`
	Received int64  `json:"received"`
}

// AuditReport is what a verification found.
type AuditReport struct {
	OK      bool  `json:"ok"`
	Records int64 `json:"records"`
	// Head is "SEQ:HASH" of the last record: keep it elsewhere, and a later
	// verification with it finds a log that was cut or made anew.
	Head string `json:"head"`
	// Problems name the records; at most 100 are listed.
	Problems []AuditProblem `json:"problems"`
	More     bool           `json:"more,omitempty"`
	// Parts are the files of the log, the oldest first.
	Parts []AuditPart `json:"parts"`
}

// AuditPart is a file of the audit log. State is "open" for the one that is
// written, "sealed", "removed" for one that retention deleted, or "missing".
type AuditPart struct {
	Part  int    `json:"part"`
	State string `json:"state"`
	// First and Last are the numbers of its records; 0: it has none, or they are
	// not known.
	First     int64      `json:"first"`
	Last      int64      `json:"last"`
	RemovedAt *time.Time `json:"removed_at,omitempty"`
}

// AuditProblem is one thing that is wrong with the log. Kind is "changed",
// "removed", "inserted", "reordered", "cut" or "unreadable".
type AuditProblem struct {
	Seq     int64  `json:"seq"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// Profile tells of a profile.
type Profile struct {
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Tools       []string `json:"tools"`
	Source      string   `json:"source"` // "built in", or its file
	Warnings    []string `json:"warnings,omitempty"`
}
