package engine

import (
	"context"
	"encoding/json"
	"io"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Approvals lists approval requests in the given state, newest first, at most 1000. An operator
// sees all requests, another caller only their own. An empty state selects all states.
func (e *Engine) Approvals(ctx context.Context, p caller.Principal, state string) ([]v1.Approval, error) {
	g := e.opts.Governance
	if g == nil {
		return nil, errUngoverned
	}
	switch approval.State(state) {
	case "", approval.Pending, approval.Approved, approval.Denied, approval.Expired, approval.Cancelled:
	default:
		return nil, usererror.Invalid("state", "is %q: use pending, approved, denied, expired or cancelled", state)
	}
	list, err := g.Gate.List(ctx, approval.Filter{Caller: visibleCaller(p), State: approval.State(state), Limit: core.MaxListed})
	if err != nil {
		return nil, err
	}
	out := make([]v1.Approval, 0, len(list))
	for _, q := range list {
		out = append(out, presentApproval(q))
	}
	return out, nil
}

// hostError is the prefix of recorded errors that only operators may read.
const hostError = "service: "

// auditText returns the text of err for an audit record. Text that callers must not see gets the
// prefix hostError.
func auditText(err error) string {
	if core.ForCallers(err) == nil {
		return hostError + err.Error()
	}
	return err.Error()
}

// visibleCaller returns the caller whose approval requests and records p may see, or "" for all
// callers.
func visibleCaller(p caller.Principal) string {
	if p.Operator {
		return ""
	}
	return p.Caller
}

// Approval returns one approval request. For a caller that is not an operator, the request of
// another caller is NotFound.
func (e *Engine) Approval(ctx context.Context, p caller.Principal, id string) (v1.Approval, error) {
	g := e.opts.Governance
	if g == nil {
		return v1.Approval{}, errUngoverned
	}
	q, err := g.Gate.Get(ctx, id)
	if !p.Operator && (errdefs.IsNotFound(err) || err == nil && q.Caller != p.Caller) { // Return the same error for a missing request and for another caller's.
		err = usererror.Errorf(errdefs.ErrNotFound, "approval %q not found", audit.TruncateName(id))
	}
	if err != nil {
		return v1.Approval{}, err
	}
	return presentApproval(q), nil
}

// AnswerApproval answers an approval request. Only operators may call it.
func (e *Engine) AnswerApproval(ctx context.Context, p caller.Principal, id string, a v1.ApprovalAnswer) (v1.Approval, error) {
	g := e.opts.Governance
	if g == nil {
		return v1.Approval{}, errUngoverned
	}
	if err := p.Operate("answer approvals"); err != nil {
		return v1.Approval{}, err
	}
	by := p.By
	if by == "" {
		by = p.Caller
	}
	q, err := g.Gate.Answer(ctx, id, by, approval.Answer{Action: a.Action, Scope: approval.Scope(a.Scope), Input: a.Input, To: a.To, Note: a.Note})
	e.recordOperator(ctx, p, audit.Record{Action: "approval." + audit.TruncateName(a.Action), Approval: audit.TruncateName(id), By: by}, a, err)
	if err != nil {
		return v1.Approval{}, err
	}
	return presentApproval(q), nil
}

// recordOperator records an operator's action and the error it ended with, if any. A failure to
// record is logged.
func (e *Engine) recordOperator(ctx context.Context, p caller.Principal, r audit.Record, input any, cause error) {
	g := e.opts.Governance
	if g == nil {
		return
	}
	r.Kind, r.Caller, r.Token, r.Via, r.Uncharged = audit.KindEvent, p.Caller, p.Token, p.Via, true
	if cause != nil {
		r.Error = cause.Error()
	}
	if body, err := json.Marshal(input); err == nil {
		r.Input = body
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := g.Audit.Event(ctx, r); err != nil {
		e.log.Error("failed to record an operator's action", "action", r.Action, "error", err)
	}
}

// WatchApprovals calls sink for each event of approval requests until ctx ends, beginning with the
// pending requests. An operator sees all requests, another caller only their own. sink must return
// soon: a listener that is too slow gets an error of class ResourceExhausted.
func (e *Engine) WatchApprovals(ctx context.Context, p caller.Principal, sink func(v1.ApprovalEvent) error) error {
	g := e.opts.Governance
	if g == nil {
		return errUngoverned
	}
	return g.Gate.Subscribe(ctx, visibleCaller(p), func(ev approval.Event) error {
		return sink(v1.ApprovalEvent{Type: ev.Type, Approval: presentApproval(ev.Request)})
	})
}

func presentApproval(q approval.Request) v1.Approval {
	out := v1.Approval{
		ID: q.ID, Kind: string(q.Kind), State: string(q.State), Call: q.Call, Caller: q.Caller, Session: q.Session, Profile: q.Profile, Tool: q.Tool,
		Trust: q.Trust, Input: q.Input, Rule: q.Rule, Reason: q.Reason, CreatedAt: q.Created, ExpiresAt: q.Expires, By: q.By, Scope: string(q.Scope), Note: q.Note,
		Modified: q.Modified, Escalated: q.Escalated,
	}
	if !q.Decided.IsZero() {
		out.DecidedAt = &q.Decided
	}
	return out
}

// Audit lists audit records, at most about 1 MiB of them. An operator sees all records, another
// caller only their own.
func (e *Engine) Audit(ctx context.Context, p caller.Principal, f AuditFilter) (v1.List[v1.AuditRecord], error) {
	g := e.opts.Governance
	if g == nil {
		return v1.List[v1.AuditRecord]{}, errUngoverned
	}
	if !p.Operator {
		f.Caller = p.Caller
	}
	list, more, err := g.Audit.List(ctx, audit.Filter(f))
	if err != nil {
		return v1.List[v1.AuditRecord]{}, err
	}
	out := make([]v1.AuditRecord, 0, len(list))
	for _, r := range list {
		if !p.Operator && strings.HasPrefix(r.Error, hostError) {
			r.Error = "the service could not do this"
		}
		out = append(out, presentRecord(r))
	}
	return v1.List[v1.AuditRecord]{Items: out, Truncated: more}, nil
}

// ExportAudit writes audit records to w as JSON lines. Only operators may call it.
func (e *Engine) ExportAudit(ctx context.Context, p caller.Principal, f AuditFilter, w io.Writer) error {
	if e.opts.Governance == nil {
		return errUngoverned
	}
	if err := p.Operate("export the audit log"); err != nil {
		return err
	}
	return e.opts.Governance.Audit.Export(ctx, audit.Filter(f), w)
}

// VerifyAudit verifies the hash chain of all audit records. head is the "SEQ:HASH" of a record that
// was kept elsewhere, or "". Only operators may call it.
func (e *Engine) VerifyAudit(ctx context.Context, p caller.Principal, head string) (v1.AuditReport, error) {
	if e.opts.Governance == nil {
		return v1.AuditReport{}, errUngoverned
	}
	if err := p.Operate("verify the audit log"); err != nil {
		return v1.AuditReport{}, err
	}
	r, err := e.opts.Governance.Audit.Verify(ctx, head)
	if err != nil {
		return v1.AuditReport{}, err
	}
	return PresentAudit(r), nil
}

// PresentAudit converts a verification report to its API form.
func PresentAudit(r audit.Report) v1.AuditReport {
	out := v1.AuditReport{OK: r.OK, Records: r.Records, Head: r.Head, Problems: []v1.AuditProblem{}, More: r.More, Parts: []v1.AuditPart{}}
	for _, p := range r.Problems {
		out.Problems = append(out.Problems, v1.AuditProblem{Seq: p.Seq, Kind: string(p.Kind), Message: p.Message})
	}
	for _, p := range r.Parts {
		part := v1.AuditPart{Part: p.Number, State: string(p.State), First: p.First, Last: p.Last}
		if p.State == audit.PartRemoved {
			part.RemovedAt = &p.Removed
		}
		out.Parts = append(out.Parts, part)
	}
	return out
}

func presentRecord(r audit.Stored) v1.AuditRecord {
	return v1.AuditRecord{
		Seq: r.Seq, Time: r.Time, Kind: string(r.Kind), Call: r.Call, Caller: r.Caller, Token: r.Token, Profile: r.Profile, Trust: r.Trust,
		Session: r.Session, Via: r.Via, Action: r.Action, Input: r.Input, InputBytes: r.InputBytes, InputHash: r.InputHash, Verdict: r.Verdict,
		Rule: r.Rule, Approval: r.Approval, By: r.By, Sandbox: r.Sandbox, Workspace: r.Workspace, Image: r.Image, Ending: r.Ending, ExitCode: r.ExitCode,
		DurationMS: r.DurationMS, CPUMS: r.CPUMS, MemoryPeak: r.MemoryPeak, Stdout: r.Stdout, Stderr: r.Stderr, Error: r.Error, Count: r.Count, Egress: (*v1.AuditEgress)(r.Egress), Hash: r.Hash,
	}
}
