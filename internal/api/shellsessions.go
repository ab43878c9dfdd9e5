package api

import (
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
)

func (s *Server) shellSessionRoutes() []route {
	return []route{
		{
			method: "POST", path: "/v1/sandboxes/{id}/sessions", direct: true, handle: s.startShellSession, status: http.StatusCreated,
			summary: "Start a shell that keeps its state between commands",
			body:    v1.ShellSessionRequest{}, answer: v1.ShellSession{},
		},
		{
			method: "GET", path: "/v1/sandboxes/{id}/sessions", handle: s.listShellSessions,
			summary: "List a sandbox's sessions", answer: v1.List[v1.ShellSession]{},
		},
		{
			method: "DELETE", path: "/v1/sandboxes/{id}/sessions/{session}", handle: s.endShellSession,
			summary: "End a session and kill its processes", answer: v1.ShellSession{},
		},
		{
			method: "POST", path: "/v1/sandboxes/{id}/sessions/{session}/exec", direct: true,
			handle: s.execShellSession, limit: maxExecBody,
			summary: "Run a command in a session and wait for its end",
			body:    v1.ShellSessionExec{}, answer: v1.ExecResult{},
			also: execForms(),
		},
	}
}

func (s *Server) startShellSession(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.ShellSessionRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.StartShellSession(r.Context(), p, r.PathValue("id"), req)
	if err != nil {
		return err
	}
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listShellSessions(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	items, err := s.opts.Engine.ShellSessions(r.Context(), p, r.PathValue("id"))
	return replyList(w, items, err)
}

func (s *Server) endShellSession(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.EndShellSession(r.Context(), p, r.PathValue("id"), r.PathValue("session"))
	return replyOK(w, got, err)
}

func (s *Server) execShellSession(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.ShellSessionExec
	stdin, err := execBody(w, r, &req)
	if err != nil {
		return err
	}
	return s.stream(w, r, stdin, func(st core.Stream) (v1.ExecResult, error) {
		return s.opts.Engine.ExecShellSession(r.Context(), p, r.PathValue("id"), r.PathValue("session"), req, st)
	})
}
