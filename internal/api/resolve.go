package api

import (
	"net/http"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// resolveID replaces the id in a request's path by the full one: clients may give the beginning of
// an id, or the name of a sandbox. Handlers see full ids only.
func (s *Server) resolveID(r *http.Request, rt route, p caller.Principal) error {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(rt.path, "/v1/"), "/")
	if next, _, _ := strings.Cut(rest, "/"); next != "{id}" {
		return nil
	}
	id, err := s.opts.Engine.ResolveID(r.Context(), p, kind, r.PathValue("id"))
	if err != nil {
		return err
	}
	r.SetPathValue("id", id)
	return nil
}
