package api

import (
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

func (s *Server) tokenRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/tokens", handle: s.createToken, operator: true, summary: "Make a token; its secret is in this answer only", body: v1.TokenRequest{}, answer: v1.Token{}},
		{method: "GET", path: "/v1/tokens", handle: s.listTokens, summary: "List tokens, newest first", answer: v1.List[v1.Token]{}},
		{method: "DELETE", path: "/v1/tokens/{id}", handle: s.revokeToken, summary: "Revoke a token at once", answer: v1.Token{}},
	}
}

func (s *Server) createToken(w http.ResponseWriter, r *http.Request, call engine.Call) error {
	var req v1.TokenRequest
	if err := body(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.CreateToken(r.Context(), call, req)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listTokens(w http.ResponseWriter, r *http.Request, call engine.Call) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Tokens(r.Context(), call)
	return list(w, items, err)
}

func (s *Server) revokeToken(w http.ResponseWriter, r *http.Request, call engine.Call) error {
	got, err := s.opts.Engine.RevokeToken(r.Context(), call, r.PathValue("id"))
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, got)
}
