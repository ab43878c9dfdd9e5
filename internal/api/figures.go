package api

import (
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

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
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, v1.List[v1.Figures]{Items: items})
}
