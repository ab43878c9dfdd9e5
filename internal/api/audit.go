package api

import (
	"fmt"
	"net/http"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
)

// formLines is the media type of JSON documents, one per line.
const formLines = "application/x-ndjson"

func auditFilters() []string {
	return []string{"caller", "action", "verdict", "ending", "call", "sandbox", "since", "until", "after", "limit",
		"newest"}
}

func (s *Server) auditRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/audit", handle: s.listAudit,
			summary: "List audit records", query: auditFilters(), answer: v1.List[v1.AuditRecord]{},
		},
		{
			method: "GET", path: "/v1/audit/export", handle: s.exportAudit,
			summary: "Stream audit records as JSON lines", query: auditFilters(),
			also: []answerForm{{formLines, nil}},
		},
		{
			method: "GET", path: "/v1/audit/verify", handle: s.verifyAudit,
			summary: "Check the chain of all audit records", query: []string{"head"}, answer: v1.AuditReport{},
		},
	}
}

func auditFilter(r *http.Request) (governed.AuditFilter, error) {
	q := queryOf(r, auditFilters()...)
	f := governed.AuditFilter{
		Caller: q.text("caller"), Action: q.text("action"), Verdict: q.text("verdict"), Ending: q.text("ending"),
		Call: q.text("call"), Sandbox: q.text("sandbox"),
		Since: q.time("since"), Until: q.time("until"), After: q.number("after"),
		Limit: int(min(q.number("limit"), 1<<31-1)), Newest: q.boolean("newest"),
	}
	return f, q.err
}

func (q *query) time(name string) time.Time {
	v := q.text(name)
	if v == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		q.fail(name, fmt.Sprintf("is %q and must be a time such as 2026-01-02T15:04:05Z", v))
	}
	return t
}

func (s *Server) listAudit(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	f, err := auditFilter(r)
	if err != nil {
		return err
	}
	list, err := s.opts.Engine.Governed.Audit(r.Context(), p, f)
	return replyOK(w, list, err)
}

// exportAudit streams records. An error in the middle aborts the answer, so that the client cannot
// take it for complete.
func (s *Server) exportAudit(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	f, err := auditFilter(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", formLines)
	return s.opts.Engine.Governed.ExportAudit(r.Context(), p, f, w)
}

func (s *Server) verifyAudit(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "head")
	if q.err != nil {
		return q.err
	}
	got, err := s.opts.Engine.Governed.VerifyAudit(r.Context(), p, q.text("head"))
	return replyOK(w, got, err)
}
