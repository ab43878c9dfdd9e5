package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// routes returns all routes. They are served, and /openapi.json is generated from them.
func (s *Server) routes() []route {
	return slices.Concat(s.sandboxRoutes(), s.shellSessionRoutes(), s.toolRoutes(), s.approvalRoutes(), s.tokenRoutes(),
		s.auditRoutes(), s.imageRoutes(), s.templateRoutes(), s.eventRoutes(), s.shellCompatRoutes(), s.overlayRoutes(),
		s.spaceRoutes(), s.figureRoutes(), s.portRoutes(), s.egressRoutes(), s.jobRoutes(), s.otherRoutes())
}

func (s *Server) sandboxRoutes() []route {
	return []route{
		{
			method: "POST", path: "/v1/sandboxes", handle: s.createSandbox, status: http.StatusCreated,
			summary: "Lease a sandbox", body: v1.SandboxRequest{}, answer: v1.Sandbox{},
		},
		{
			method: "GET", path: "/v1/sandboxes", handle: s.listSandboxes,
			summary: "List leases; with all, for operators: every living sandbox",
			query:   []string{"ended", "all"}, answer: v1.List[v1.Sandbox]{},
		},
		{
			method: "GET", path: "/v1/sandboxes/{id}", handle: s.getSandbox,
			summary: "Describe a lease, also an ended one", answer: v1.Sandbox{},
		},
		{method: "DELETE", path: "/v1/sandboxes/{id}", handle: s.removeSandbox, summary: "Destroy a sandbox now"},
		{
			method: "POST", path: "/v1/sandboxes/{id}/sync", handle: s.syncSandbox,
			summary: "Copy a sandbox's files back to its workspace", answer: v1.Sync{},
		},
		{
			method: "POST", path: "/v1/sandboxes/{id}/stop", handle: s.stopSandbox,
			summary: "End a sandbox: TERM, the grace time, destroy", query: []string{"grace_ms"}, answer: v1.Sandbox{},
		},
		{
			method: "POST", path: "/v1/sandboxes/{id}/exec", direct: true, handle: s.exec, limit: maxExecBody,
			summary: "Run a command and wait for its end", body: v1.Exec{}, answer: v1.ExecResult{},
			also: execForms(),
		},
		{
			method: "POST", path: "/v1/run", direct: true, handle: s.run, limit: maxExecBody,
			summary: "Lease, run one command, destroy", body: v1.Run{}, answer: v1.ExecResult{},
			also: execForms(),
		},
		{
			method: "POST", path: "/v1/sandboxes/{id}/shells", direct: true, handle: s.startShell, status: http.StatusCreated, limit: maxExecBody,
			summary: "Start a background command", body: v1.ShellRequest{}, answer: v1.Shell{},
		},
		{
			method: "GET", path: "/v1/sandboxes/{id}/shells", handle: s.listShells,
			summary: "List background commands", answer: v1.List[v1.Shell]{},
		},
		{
			method: "GET", path: "/v1/sandboxes/{id}/pty", direct: true, handle: s.pty,
			summary: "Open a terminal, or attach to one (shell), as a WebSocket of subprotocol " + v1.TerminalProtocol,
			query:   ptyQuery, upgrade: true, answer: v1.TerminalMessage{},
		},
		{
			method: "GET", path: "/v1/shells/{id}", handle: s.getShell,
			summary: "Describe a background command", answer: v1.Shell{},
		},
		{
			method: "DELETE", path: "/v1/shells/{id}", handle: s.killShell,
			summary: "Kill a background command: TERM, the grace time, KILL",
			query:   []string{"grace_ms", "forget"}, answer: v1.Shell{},
		},
		{
			method: "POST", path: "/v1/shells/{id}/signal", handle: s.signalShell,
			summary: "Signal every process of a background command", query: []string{"signal"}, needs: []string{"signal"},
		},
		{
			method: "GET", path: "/v1/shells/{id}/output", handle: s.shellOutput,
			summary: "Read output from an offset",
			query:   []string{"stream", "offset", "limit", "wait_ms", "follow"}, answer: v1.Output{},
			also: rawForm(),
		},
		{
			method: "POST", path: "/v1/shells/{id}/input", direct: true, handle: s.shellInput, takes: bodyStream,
			summary: "Write the body to stdin", query: []string{"close"},
		},
		{
			method: "GET", path: "/v1/sandboxes/{id}/files", handle: s.getFile,
			summary: "Read or describe (stat) a file, or list a directory (list)",
			query:   []string{"path", "offset", "limit", "list", "stat"}, answer: anyOf{v1.File{}, Listing{}}, also: rawForm(),
		},
		{
			method: "PUT", path: "/v1/sandboxes/{id}/files", direct: true, handle: s.putFile, takes: bodyUpload,
			summary: "Write the body to a file, or make a directory (dir)",
			query:   []string{"path", "mode", "dir"}, needs: []string{"path"}, answer: v1.File{},
		},
		{
			method: "POST", path: "/v1/sandboxes/{id}/files", direct: true, handle: s.moveFile,
			summary: "Move a file", query: []string{"path", "to"}, needs: []string{"path", "to"}, answer: v1.File{},
		},
		{
			method: "DELETE", path: "/v1/sandboxes/{id}/files", direct: true, handle: s.removeFile,
			summary: "Remove a file or directory", query: []string{"path", "recursive"}, needs: []string{"path"},
		},
	}
}

func (s *Server) otherRoutes() []route {
	return []route{
		{
			method: "POST", path: "/v1/workspaces", handle: s.createWorkspace, status: http.StatusCreated,
			summary: "Create a workspace", body: v1.WorkspaceRequest{}, answer: v1.Workspace{},
		},
		{
			method: "GET", path: "/v1/workspaces", handle: s.listWorkspaces,
			summary: "List workspaces", answer: v1.List[v1.Workspace]{},
		},
		{
			method: "GET", path: "/v1/workspaces/{name}", handle: s.getWorkspace,
			summary: "Describe a workspace", answer: v1.Workspace{},
		},
		{
			method: "DELETE", path: "/v1/workspaces/{name}", direct: true, handle: s.deleteWorkspace,
			summary: "Remove a workspace with its files",
		},
		{
			method: "GET", path: "/v1/workspaces/{name}/files", handle: s.getWorkspaceFile,
			summary: "Read, describe or list files of a workspace",
			query:   []string{"path", "offset", "limit", "list", "stat"}, answer: anyOf{v1.File{}, Listing{}}, also: rawForm(),
		},
		{
			method: "PUT", path: "/v1/workspaces/{name}/files", direct: true, handle: s.putWorkspaceFile,
			takes:   bodyUpload,
			summary: "Write the body to a file, or make a directory (dir)",
			query:   []string{"path", "mode", "dir"}, needs: []string{"path"}, answer: v1.File{},
		},
		{
			method: "DELETE", path: "/v1/workspaces/{name}/files", direct: true, handle: s.removeWorkspaceFile,
			summary: "Remove a file or directory", query: []string{"path", "recursive"}, needs: []string{"path"},
		},
		{
			method: "GET", path: "/v1/pools", handle: s.pools,
			summary: "Describe the warm pools", answer: v1.List[v1.Pool]{},
		},
		{
			method: "GET", path: "/v1/version", handle: s.version,
			summary: "Describe the service and its runtime", answer: v1.Version{},
		},
		{
			method: "POST", path: "/v1/down", handle: s.down, status: http.StatusAccepted, operator: true,
			summary: "Destroy everything and stop the service",
		},
		{
			method: "GET", path: "/metrics", handle: s.metrics, operator: true,
			summary: "Read the metrics, as OpenMetrics or in the text format of Prometheus",
			also:    []answerForm{{"text/plain", nil}, {"application/openmetrics-text", nil}},
		},
		{method: "GET", path: "/healthz", handle: s.healthz, open: true, summary: "Check that the process answers",
			also: []answerForm{{"text/plain", nil}}},
		{method: "GET", path: readyPath, handle: s.readyz, open: true, summary: "Check that a call would be served", answer: v1.Readiness{}},
		{method: "GET", path: "/openapi.json", handle: s.openapi, open: true, summary: "This description",
			answer: map[string]json.RawMessage{}},
	}
}

func (s *Server) pools(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return reply(w, http.StatusOK, v1.List[v1.Pool]{Items: s.opts.Engine.Pools(r.Context(), p)})
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request, p caller.Principal) error {
	return reply(w, http.StatusOK, s.opts.Engine.Version(p))
}

func (s *Server) down(w http.ResponseWriter, _ *http.Request, _ caller.Principal) error {
	if s.opts.Down == nil {
		return fmt.Errorf("this service cannot be stopped over HTTP: %w", errdefs.ErrNotImplemented)
	}
	w.WriteHeader(http.StatusAccepted)
	s.opts.Down()
	return nil
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request, _ caller.Principal) error {
	_, err := fmt.Fprintln(w, "ok")
	return err
}

// readyz says whether a call would be served. A refusal is not logged, because probes repeat it.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	list, err := s.opts.Engine.Ready(r.Context(), p)
	if list == nil {
		list = []v1.TemplateReadiness{}
	}
	if err == nil {
		return reply(w, http.StatusOK, v1.Readiness{Status: "ready", Templates: list})
	}
	p503 := redactedProblem(w, err)
	w.Header().Set("Retry-After", "1")
	b, err := json.Marshal(v1.NotReady{Problem: *p503, Templates: list})
	if err != nil {
		return err
	}
	return sendCounted(w, p503.Status, formProblem, b)
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request, _ caller.Principal) error {
	if s.opts.Metrics == nil {
		return usererror.Errorf(errdefs.ErrNotFound, "this service has no metrics: use orchestrator serve")
	}
	s.opts.Metrics.ServeHTTP(w, r)
	return nil
}

// isStream reports whether a request of a route that is not always a stream lasts: it upgrades the
// connection, follows output, or is answered in pieces while something runs.
func isStream(r *http.Request) bool {
	switch {
	case r.Header.Get("Upgrade") != "", r.Header.Get(headerExec) != "", r.URL.Query().Get("follow") == "true":
		return true
	case r.URL.Path == mcpPath: // its clients always accept both forms
		return r.Method == http.MethodGet
	}
	accept := strings.ToLower(strings.Join(r.Header.Values("Accept"), ","))
	return strings.Contains(accept, formEvents) || strings.Contains(accept, formFrames)
}
