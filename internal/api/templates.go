package api

import (
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func (s *Server) templateRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/templates", handle: s.listTemplates,
			summary: "List templates", answer: v1.List[v1.Template]{},
		},
		{
			method: "GET", path: "/v1/templates/{name}", handle: s.getTemplate,
			summary: "Describe a template", answer: v1.Template{},
		},
		{
			method: "POST", path: "/v1/templates/reload", handle: s.reloadTemplates, operator: true,
			summary: "Reload the templates", answer: v1.TemplateReload{},
		},
	}
}

func (s *Server) listTemplates(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return reply(w, http.StatusOK, v1.List[v1.Template]{Items: s.opts.Engine.Templates.List(r.Context(), p)})
}

func (s *Server) getTemplate(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Templates.Get(r.Context(), p, r.PathValue("name"))
	return replyOK(w, got, err)
}

func (s *Server) reloadTemplates(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Templates.ReloadFor(r.Context(), p)
	return replyOK(w, got, err)
}
