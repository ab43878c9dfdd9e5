package api

import (
	"context"
	"net/http"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func (s *Server) approvalRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/approvals", handle: s.listApprovals,
			summary: "List approval requests, newest first",
			query:   []string{"state"}, answer: v1.List[v1.Approval]{},
		},
		{
			method: "GET", path: "/v1/approvals/events", handle: s.watchApprovals, stream: true,
			summary: "Stream approval requests: \"listening\", pending ones as \"asked\", then each change",
			answer:  v1.ApprovalEvent{},
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
	q := queryOf(r, "state")
	if q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Governed.Approvals(r.Context(), p, q.text("state"))
	return replyList(w, items, err)
}

func (s *Server) getApproval(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Governed.Approval(r.Context(), p, r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, got)
}

func (s *Server) answerApproval(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.ApprovalAnswer
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Governed.AnswerApproval(r.Context(), p, r.PathValue("id"), req)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, got)
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
	ctx, cancel := s.untilStop(r)
	defer cancel()
	live := make(chan v1.ApprovalEvent)
	ended := make(chan error, 1)
	go func() { // waited for below
		ended <- recovered(func() error {
			return s.opts.Engine.Governed.WatchApprovals(ctx, p, func(e v1.ApprovalEvent) error {
				select {
				case live <- e:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		})
	}()
	out := newSSE(w)
	beat := time.NewTicker(heartbeatTime)
	defer beat.Stop()
	// This event confirms the subscription, even if nothing happens.
	for err := out.send("listening", v1.ApprovalEvent{Type: "listening"}); ; {
		if err != nil {
			cancel()
			<-ended
			return err
		}
		select {
		case e := <-live:
			err = out.send(e.Type, e)
		case <-beat.C:
			err = out.beat()
		case err := <-ended:
			if ctx.Err() != nil || err == nil {
				return nil // the client left, or asks the next process
			}
			return out.problem(err)
		}
	}
}
