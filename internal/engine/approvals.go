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
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Approvals lists the caller's questions, an operator's list has everybody's;
// state "" takes all, the newest first, at most 1000.
func (e *Engine) Approvals(ctx context.Context, call Call, state string) ([]v1.Approval, error) {
	g := e.opts.Governance
	if g == nil {
		return nil, errUngoverned
	}
	switch approval.State(state) {
	case "", approval.Pending, approval.Approved, approval.Denied, approval.Expired, approval.Cancelled:
	default:
		return nil, invalid("state", "is %q: use pending, approved, denied, expired or cancelled", state)
	}
	list, err := g.Gate.List(ctx, approval.Filter{Caller: visibleCaller(call), State: approval.State(state), Limit: maxListed})
	if err != nil {
		return nil, err
	}
	out := make([]v1.Approval, 0, len(list))
	for _, q := range list {
		out = append(out, presentApproval(q))
	}
	return out, nil
}

// hostError begins the text of errors in records that are for operators alone.
const hostError = "service: "

// auditText is the text of an error for a record.
func auditText(err error) string {
	if ForCallers(err) == nil {
		return hostError + err.Error()
	}
	return err.Error()
}

// visibleCaller is whose questions and records a caller sees: "" is everybody's.
func visibleCaller(call Call) string {
	if call.Operator {
		return ""
	}
	return call.Caller
}

// Approval describes one question.
func (e *Engine) Approval(ctx context.Context, call Call, id string) (v1.Approval, error) {
	g := e.opts.Governance
	if g == nil {
		return v1.Approval{}, errUngoverned
	}
	q, err := g.Gate.Get(ctx, id)
	if !call.Operator && (errdefs.IsNotFound(err) || err == nil && q.Caller != call.Caller) { // one answer for both
		err = usererror.Errorf(errdefs.ErrNotFound, "there is no approval %q", truncateForRecord(id))
	}
	if err != nil {
		return v1.Approval{}, err
	}
	return presentApproval(q), nil
}

// AnswerApproval answers a question; only operators may.
func (e *Engine) AnswerApproval(ctx context.Context, call Call, id string, a v1.ApprovalAnswer) (v1.Approval, error) {
	g := e.opts.Governance
	if g == nil {
		return v1.Approval{}, errUngoverned
	}
	if err := call.requireOperator("answer approvals"); err != nil {
		return v1.Approval{}, err
	}
	by := call.By
	if by == "" {
		by = call.Caller
	}
	q, err := g.Gate.Answer(ctx, id, by, approval.Answer{Action: a.Action, Scope: approval.Scope(a.Scope), Input: a.Input, To: a.To, Note: a.Note})
	e.recordOperator(ctx, call, audit.Record{Action: "approval." + truncateForRecord(a.Action), Approval: truncateForRecord(id), By: by}, a, err)
	if err != nil {
		return v1.Approval{}, err
	}
	return presentApproval(q), nil
}

// recordOperator records what an operator did, or tried to.
func (e *Engine) recordOperator(ctx context.Context, call Call, r audit.Record, input any, cause error) {
	g := e.opts.Governance
	if g == nil {
		return
	}
	r.Kind, r.Caller, r.Token, r.Via, r.Uncharged = audit.KindEvent, call.Caller, call.Token, call.Via, true
	if cause != nil {
		r.Error = cause.Error()
	}
	if body, err := json.Marshal(input); err == nil {
		r.Input = body
	}
	ctx, cancel := detach(ctx, recordTimeout)
	defer cancel()
	if err := g.Audit.Event(ctx, r); err != nil {
		e.log.Error("what an operator did was not recorded", "action", r.Action, "error", err)
	}
}

// WatchApprovals tells of questions from now on, those that wait first, until
// ctx ends: the caller's, or for operators everybody's. sink must return soon;
// a listener that is too slow is ended with an error of class
// ResourceExhausted.
func (e *Engine) WatchApprovals(ctx context.Context, call Call, sink func(v1.ApprovalEvent) error) error {
	g := e.opts.Governance
	if g == nil {
		return errUngoverned
	}
	return g.Gate.Subscribe(ctx, visibleCaller(call), func(ev approval.Event) error {
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

// Audit lists records; an operator's, or the caller's own.
func (e *Engine) Audit(ctx context.Context, call Call, f AuditFilter) ([]v1.AuditRecord, error) {
	g := e.opts.Governance
	if g == nil {
		return nil, errUngoverned
	}
	if !call.Operator {
		f.Caller = call.Caller
	}
	list, err := g.Audit.List(ctx, audit.Filter(f))
	if err != nil {
		return nil, err
	}
	out := make([]v1.AuditRecord, 0, len(list))
	for _, r := range list {
		if !call.Operator && strings.HasPrefix(r.Error, hostError) {
			r.Error = "the service could not do this"
		}
		out = append(out, presentRecord(r))
	}
	return out, nil
}

// ExportAudit writes records as JSON lines; only operators may.
func (e *Engine) ExportAudit(ctx context.Context, call Call, f AuditFilter, w io.Writer) error {
	if e.opts.Governance == nil {
		return errUngoverned
	}
	if err := call.requireOperator("export the audit log"); err != nil {
		return err
	}
	return e.opts.Governance.Audit.Export(ctx, audit.Filter(f), w)
}

// VerifyAudit checks the chain of all records; head is "SEQ:HASH" of one that
// was kept elsewhere, or "". Only operators may.
func (e *Engine) VerifyAudit(ctx context.Context, call Call, head string) (v1.AuditReport, error) {
	if e.opts.Governance == nil {
		return v1.AuditReport{}, errUngoverned
	}
	if err := call.requireOperator("verify the audit log"); err != nil {
		return v1.AuditReport{}, err
	}
	r, err := e.opts.Governance.Audit.Verify(ctx, head)
	if err != nil {
		return v1.AuditReport{}, err
	}
	return PresentAudit(r), nil
}

// PresentAudit is what a verification found, as clients get it.
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
