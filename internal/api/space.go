package api

import (
	"errors"
	"net/http"

	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func (s *Server) spaceRoutes() []route {
	return []route{
		{
			method: "PATCH", path: "/v1/workspaces/{name}", direct: true, handle: s.resizeWorkspace,
			summary: "Change the size limit of a workspace", body: v1.WorkspaceResize{}, answer: v1.Workspace{},
		},
	}
}

func (s *Server) resizeWorkspace(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.WorkspaceResize
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Workspaces.Resize(r.Context(), p, r.PathValue("name"), req)
	return replyOK(w, got, err)
}

// isDiskFull reports whether a write failed because the target is full. Unlike with other limits,
// waiting does not help.
func isDiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
