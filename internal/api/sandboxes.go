package api

import (
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func (s *Server) createSandbox(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.SandboxRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Lease(r.Context(), p, req)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/sandboxes/"+got.ID)
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listSandboxes(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "ended", "all")
	ended, all := q.boolean("ended"), q.boolean("all")
	if q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Sandboxes(r.Context(), p, ended)
	if all {
		items, err = s.opts.Engine.AllSandboxes(r.Context(), p)
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, v1.List[v1.Sandbox]{Items: items})
}

func (s *Server) getSandbox(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Sandbox(r.Context(), p, r.PathValue("id"))
	return replyOK(w, got, err)
}

func (s *Server) removeSandbox(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return replyDone(w, s.opts.Engine.Remove(r.Context(), p, r.PathValue("id")))
}

func (s *Server) stopSandbox(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "grace_ms")
	grace := q.millis("grace_ms")
	if q.err != nil {
		return q.err
	}
	got, err := s.opts.Engine.Stop(r.Context(), p, r.PathValue("id"), grace)
	return replyOK(w, got, err)
}

func (s *Server) syncSandbox(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Sync(r.Context(), p, r.PathValue("id"))
	return replyOK(w, got, err)
}

func (s *Server) figureRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/figures", handle: s.figures,
			summary: "Report what leased sandboxes use now; for operators, those of all callers",
			answer:  v1.List[v1.Figures]{},
		},
	}
}

func (s *Server) figures(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	items, err := s.opts.Engine.Figures(r.Context(), p)
	return replyList(w, items, err)
}
