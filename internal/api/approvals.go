package api

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
)

func (s *Server) approvalRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/approvals", handle: s.listApprovals,
			summary: "List approval requests, newest first",
			query:   []string{"state", "before", "limit"}, answer: v1.List[v1.Approval]{},
		},
		{
			method: "GET", path: "/v1/approvals/events", handle: s.watchApprovals, stream: true,
			summary: "Stream approval requests: \"listening\", pending ones as \"asked\", then each change",
			also:    []answerForm{{formEvents, v1.ApprovalEvent{}}},
		},
		{
			method: "GET", path: "/v1/approvals/{id}", handle: s.getApproval,
			summary: "Describe an approval request", answer: v1.Approval{},
		},
		{
			method: "POST", path: "/v1/approvals/{id}/answer", handle: s.answerApproval, operator: true,
			limit:   maxToolBody,
			summary: "Approve, deny, modify or escalate", body: v1.ApprovalAnswer{}, answer: v1.Approval{},
		},
	}
}

func (s *Server) listApprovals(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "state", "before", "limit")
	f := governed.ApprovalFilter{State: q.text("state"), Before: q.text("before"), Limit: q.smallNumber("limit")}
	if q.err != nil {
		return q.err
	}
	list, err := s.opts.Engine.Governed.Approvals(r.Context(), p, f)
	return replyOK(w, list, err)
}

func (s *Server) getApproval(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Governed.Approval(r.Context(), p, r.PathValue("id"))
	return replyOK(w, got, err)
}

func (s *Server) answerApproval(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.ApprovalAnswer
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Governed.AnswerApproval(r.Context(), p, r.PathValue("id"), req)
	return replyOK(w, got, err)
}

// watchApprovals sends the pending approval requests and then every change, until the client leaves
// or a hand-over begins. A client that is too slow is disconnected. It gets all pending requests
// again when it reconnects.
func (s *Server) watchApprovals(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	if _, err := form(r, formEvents); err != nil {
		return err
	}
	return follow(s, w, r,
		func(ctx context.Context, sink func(v1.ApprovalEvent) error) error {
			return s.opts.Engine.Governed.WatchApprovals(ctx, p, sink)
		},
		// This event confirms the subscription, even if nothing happens.
		func(out *sse) error { return out.send("listening", v1.ApprovalEvent{Type: "listening"}) },
		func(out *sse, e v1.ApprovalEvent) error { return out.send(e.Type, e) })
}
