package api

import (
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func (s *Server) egressRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/sandboxes/{id}/egress", handle: s.getEgress,
			summary: "Describe a sandbox's egress rules and its last connections", answer: v1.EgressState{},
		},
		{
			method: "PUT", path: "/v1/sandboxes/{id}/egress", handle: s.putEgress,
			summary: "Replace a sandbox's egress rules at once", body: v1.Egress{}, answer: v1.EgressState{},
		},
		{
			method: "DELETE", path: "/v1/sandboxes/{id}/egress", handle: s.deleteEgress,
			summary: "Remove a sandbox's egress rules, so that it reaches nothing",
		},
	}
}

func (s *Server) getEgress(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Egress.State(r.Context(), p, r.PathValue("id"))
	return replyOK(w, got, err)
}

func (s *Server) putEgress(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.Egress
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Egress.Set(r.Context(), p, r.PathValue("id"), req)
	return replyOK(w, got, err)
}

func (s *Server) deleteEgress(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	if _, err := s.opts.Engine.Egress.Set(r.Context(), p, r.PathValue("id"), v1.Egress{}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
