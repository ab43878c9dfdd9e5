package governed

import (
	"context"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// approvalBytes is the size of a page of approval requests, in bytes of their inputs.
const approvalBytes = 1 << 20

// ApprovalFilter selects approval requests. The zero value selects all.
type ApprovalFilter struct {
	State string
	// Before is the id of a request: only older requests are listed.
	Before string
	Limit  int // 0 means 1000, which is also the maximum
}

// Approvals lists approval requests, newest first, at most about 1 MiB of them. An operator sees
// all requests, another caller only their own.
func (s *Service) Approvals(
	ctx context.Context, p caller.Principal, f ApprovalFilter,
) (out v1.List[v1.Approval], err error) {
	g := s.opts.Config
	if g == nil {
		return out, ErrUngoverned
	}
	switch approval.State(f.State) {
	case "", approval.Pending, approval.Approved, approval.Denied, approval.Expired, approval.Cancelled:
	default:
		return out, usererror.Invalid("state", "is %q: use pending, approved, denied, expired or cancelled", f.State)
	}
	if f.Before != "" {
		if _, err := s.Approval(ctx, p, f.Before); err != nil {
			return out, err
		}
	}
	list, err := g.Gate.List(ctx, approval.Filter{
		Caller: visibleCaller(p), State: approval.State(f.State), Before: f.Before, Limit: f.Limit,
	})
	if err != nil {
		return out, err
	}
	return approvalPage(list, f.Limit), nil
}

// approvalPage returns the first page of a list that was read with a limit.
func approvalPage(list []approval.Request, limit int) v1.List[v1.Approval] {
	out := v1.List[v1.Approval]{Items: make([]v1.Approval, 0, len(list))}
	size := 0
	for i, q := range list {
		if size += len(q.Input) + len(q.Modified); i > 0 && size > approvalBytes {
			out.Truncated = true
			return out
		}
		out.Items = append(out.Items, presentApproval(q))
	}
	out.Truncated = len(list) == approval.MaxList && limit != approval.MaxList
	return out
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
func (s *Service) Approval(ctx context.Context, p caller.Principal, id string) (v1.Approval, error) {
	g := s.opts.Config
	if g == nil {
		return v1.Approval{}, ErrUngoverned
	}
	q, err := g.Gate.Get(ctx, id)
	if !p.Operator && (errdefs.IsNotFound(err) || err == nil && q.Caller != p.Caller) {
		// Return the same error for a missing request and for another caller's.
		err = usererror.Errorf(errdefs.ErrNotFound, "approval %q not found", audit.TruncateName(id))
	}
	if err != nil {
		return v1.Approval{}, err
	}
	return presentApproval(q), nil
}

// AnswerApproval answers an approval request. Only operators may call it.
func (s *Service) AnswerApproval(
	ctx context.Context,
	p caller.Principal,
	id string,
	a v1.ApprovalAnswer,
) (v1.Approval, error) {
	g := s.opts.Config
	if g == nil {
		return v1.Approval{}, ErrUngoverned
	}
	if err := p.Operate("answer approvals"); err != nil {
		return v1.Approval{}, err
	}
	by := p.By
	if by == "" {
		by = p.Caller
	}
	q, err := g.Gate.Answer(
		ctx,
		id,
		by,
		approval.Answer{Action: a.Action, Scope: approval.Scope(a.Scope), Input: a.Input, To: a.To, Note: a.Note},
	)
	s.RecordOperator(
		ctx,
		p,
		audit.Record{Action: "approval." + audit.TruncateName(a.Action), Approval: audit.TruncateName(id), By: by},
		a,
		err,
	)
	if err != nil {
		return v1.Approval{}, err
	}
	return presentApproval(q), nil
}

// WatchApprovals calls sink for each event of approval requests until ctx ends, beginning with the
// pending requests. An operator sees all requests, another caller only their own. sink must return
// soon: a listener that is too slow gets an error of class ResourceExhausted.
func (s *Service) WatchApprovals(ctx context.Context, p caller.Principal, sink func(v1.ApprovalEvent) error) error {
	g := s.opts.Config
	if g == nil {
		return ErrUngoverned
	}
	return g.Gate.Subscribe(ctx, visibleCaller(p), func(ev approval.Event) error {
		return sink(v1.ApprovalEvent{Type: ev.Type, Approval: presentApproval(ev.Request)})
	})
}

func presentApproval(q approval.Request) v1.Approval {
	out := v1.Approval{
		ID: q.ID, Kind: string(q.Kind), State: string(q.State), Call: q.Call, Caller: q.Caller, Session: q.Session,
		Profile: q.Profile, Tool: q.Tool, Trust: q.Trust, Input: q.Input, Rule: q.Rule, Reason: q.Reason,
		CreatedAt: q.Created, ExpiresAt: q.Expires, By: q.By, Scope: string(q.Scope), Note: q.Note,
		Modified: q.Modified, Escalated: q.Escalated,
	}
	if !q.Decided.IsZero() {
		out.DecidedAt = &q.Decided
	}
	return out
}

// EndSession ends a session's sandbox and its approval grants. It returns NotFound if the session
// has no sandbox.
func (s *Service) EndSession(ctx context.Context, p caller.Principal, name string) error {
	return s.opts.Sandboxes.EndSession(ctx, p, name)
}

// EndGrants ends the approval grants of a session.
func (s *Service) EndGrants(ctx context.Context, p caller.Principal, session string) error {
	if s.opts.Config == nil {
		return nil
	}
	return s.opts.Config.Gate.EndSession(ctx, p.Caller, session)
}
