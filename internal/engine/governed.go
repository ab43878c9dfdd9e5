package engine

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/containerd/errdefs"

	v1 "orchestrator/client/v1"
	"orchestrator/internal/tool"
)

// Local is the caller of a service that tells nobody apart: whoever may use
// its socket may do everything.
func Local(key string) Call {
	return Call{Caller: LocalCaller, Key: key, Trust: tool.TrustMax, Operator: true}
}

// Watch is told of a tool call while it is under way. All of it may be nil.
// The functions are called by one goroutine at a time and must not block.
type Watch struct {
	// Asked: the call waits for an answer to this question.
	Asked func(v1.Approval)
	// Started: it runs in this sandbox.
	Started func(sandbox string)
	// Output is what a command writes, as it comes. The bytes are only good
	// until it returns.
	Output func(stream string, p []byte)
}

// AuditFilter chooses records. The zero value takes all, the newest last.
type AuditFilter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	Since, Until                                   time.Time
	// After is the sequence number to begin behind; Limit at most (0: 1000 for
	// lists, all for an export).
	After int64
	Limit int
	// Newest takes the last Limit records instead of the first.
	Newest bool
}

// Profiles lists the profiles; for callers with a token, theirs.
func (e *Engine) Profiles(ctx context.Context, call Call) ([]v1.Profile, error) {
	return nil, errdefs.ErrNotImplemented
}

// Tools lists the tools of the caller's profile, or for operators of the one
// that is named.
func (e *Engine) Tools(ctx context.Context, call Call, profile string) ([]v1.Tool, error) {
	return nil, errdefs.ErrNotImplemented
}

// CallTool carries out one tool call: the transaction that DESIGN calls the way
// of a call. A refusal is a result; an error says that the request cannot be
// used, or could not be carried out.
func (e *Engine) CallTool(ctx context.Context, call Call, name string, r v1.ToolCall, w Watch) (v1.ToolResult, error) {
	return v1.ToolResult{}, errdefs.ErrNotImplemented
}

// RefuseCall records a call that could not even be decoded, and returns cause.
func (e *Engine) RefuseCall(ctx context.Context, call Call, name string, body []byte, cause error) error {
	return cause
}

// CallOutput reads the whole output of an earlier call of the caller, from an
// absolute offset, as long as it is kept.
func (e *Engine) CallOutput(ctx context.Context, call Call, id string, r OutputRequest) (v1.Output, error) {
	return v1.Output{}, errdefs.ErrNotImplemented
}

// CheckPolicy says what the policy of a profile would decide. Nothing runs, and
// nothing is recorded.
func (e *Engine) CheckPolicy(ctx context.Context, call Call, r v1.PolicyCheck) (v1.Verdict, error) {
	return v1.Verdict{}, errdefs.ErrNotImplemented
}

// Approvals lists the caller's questions, an operator's list has everybody's;
// state "" takes all, the newest first, at most 1000.
func (e *Engine) Approvals(ctx context.Context, call Call, state string) ([]v1.Approval, error) {
	return nil, errdefs.ErrNotImplemented
}

// Approval describes one question.
func (e *Engine) Approval(ctx context.Context, call Call, id string) (v1.Approval, error) {
	return v1.Approval{}, errdefs.ErrNotImplemented
}

// AnswerApproval answers a question; only operators may.
func (e *Engine) AnswerApproval(ctx context.Context, call Call, id string, a v1.ApprovalAnswer) (v1.Approval, error) {
	return v1.Approval{}, errdefs.ErrNotImplemented
}

// WatchApprovals tells of questions from now on, until ctx ends: the caller's,
// or for operators everybody's. sink must return soon; a listener that is too
// slow is ended with an error of class ResourceExhausted.
func (e *Engine) WatchApprovals(ctx context.Context, call Call, sink func(v1.ApprovalEvent) error) error {
	return errdefs.ErrNotImplemented
}

// Audit lists records; an operator's, or the caller's own.
func (e *Engine) Audit(ctx context.Context, call Call, f AuditFilter) ([]v1.AuditRecord, error) {
	return nil, errdefs.ErrNotImplemented
}

// ExportAudit writes records as JSON lines; only operators may.
func (e *Engine) ExportAudit(ctx context.Context, call Call, f AuditFilter, w io.Writer) error {
	return errdefs.ErrNotImplemented
}

// VerifyAudit checks the chain of all records; head is "SEQ:HASH" of one that
// was kept elsewhere, or "". Only operators may.
func (e *Engine) VerifyAudit(ctx context.Context, call Call, head string) (v1.AuditReport, error) {
	return v1.AuditReport{}, errdefs.ErrNotImplemented
}

// Shell is the readonly system's POST /shell, for its existing clients: it
// answers refusals in the shape that they know.
func (e *Engine) ShellCompat(ctx context.Context, command, workspace string, timeout time.Duration) (json.RawMessage, error) {
	return nil, errdefs.ErrNotImplemented
}
