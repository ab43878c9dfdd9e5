package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/ptysocket"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// ptyQuery are the parameters of GET /v1/sandboxes/{id}/pty.
var ptyQuery = []string{
	"argv", "command", "cwd", "user", "term", "cols", "rows", "timeout_ms", "spool_bytes", // for a new terminal
	"shell", "offset", "read_only", // for an existing terminal
}

// ptyRequest asks for a new terminal, or for an existing one.
type ptyRequest struct {
	open     v1.TerminalRequest
	shell    string // "": a new terminal
	offset   int64  // -1: the first kept byte
	readOnly bool
}

// pty connects a terminal to a WebSocket. It refuses invalid requests before it opens anything,
// with a normal error answer.
func (s *Server) pty(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	if err := s.checkUpgrade(r); err != nil {
		return err
	}
	req, err := readPTY(r)
	if err != nil {
		return err
	}
	// Serve waits for the terminal; net/http does not wait for hijacked connections.
	s.terminals.Add(1)
	defer s.terminals.Done()
	if req.shell == "" {
		sh, err := s.opts.Engine.OpenTerminal(r.Context(), p, r.PathValue("id"), req.open)
		if err != nil {
			return err
		}
		req.shell = sh.ID
	}
	at, err := s.opts.Engine.Attach(r.Context(), p, r.PathValue("id"), req.shell)
	if err != nil {
		return err
	}
	defer at.Leave()
	start, end := at.Span()
	switch {
	case req.offset < 0:
		req.offset = start
	case req.offset > end:
		return &strictjson.FieldError{Field: "offset", Message: "is beyond the end of the output"}
	}
	err = ptysocket.Serve(w, r, at, ptysocket.Options{ // checkUpgrade has checked the origin
		Shell: req.shell, Offset: req.offset, ReadOnly: req.readOnly, Stall: s.stall, Beat: s.beat, HandOver: s.handOver,
		Describe: func(err error) *v1.Problem { return redactedProblem(w, err) },
	})
	if err != nil {
		s.log.Debug("failed to accept terminal connection", "error", err) // Serve has answered
	}
	return nil
}

// checkUpgrade returns an error unless the request is a valid opening handshake for a terminal. It
// refuses pages of other origins, because a browser lets any page open WebSockets to any host.
func (s *Server) checkUpgrade(r *http.Request) error {
	if r.Method != http.MethodGet { // a GET route also matches HEAD
		return usererror.Errorf(errdefs.ErrNotFound, "route %s %s not found: see /openapi.json", r.Method, r.URL.Path)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || r.Header.Get("Sec-WebSocket-Version") != "13" ||
		!r.ProtoAtLeast(1, 1) {
		return &strictjson.FieldError{Field: "Upgrade",
			Message: "must be websocket, version 13"}
	}
	if !headerContains(r.Header, "Connection", "upgrade") { // a proxy may have dropped it
		return &strictjson.FieldError{Field: "Connection", Message: "must list upgrade"}
	}
	if key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key")); err != nil || len(key) != 16 ||
		len(r.Header.Values("Sec-WebSocket-Key")) != 1 {
		return &strictjson.FieldError{Field: "Sec-WebSocket-Key", Message: "must be 16 bytes in base64"}
	}
	if err := s.checkOrigin(r); err != nil {
		return err
	}
	if !headerContains(r.Header, "Sec-WebSocket-Protocol", v1.TerminalProtocol) {
		return &strictjson.FieldError{Field: "Sec-WebSocket-Protocol", Message: "must offer " + v1.TerminalProtocol}
	}
	return nil
}

// headerContains reports whether a header's list contains a word.
func headerContains(h http.Header, field, word string) bool {
	for _, line := range h.Values(field) {
		for name := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(name), word) {
				return true
			}
		}
	}
	return false
}

// checkOrigin returns an error for web pages of other origins. It accepts programs, and pages of
// the requested host. A page whose own host name resolves to this host is refused.
func (s *Server) checkOrigin(r *http.Request) error {
	refused := usererror.Errorf(errdefs.ErrPermissionDenied,
		"web pages of other origins may not open terminals, nor connect to sandboxes: if the page is this "+
			"service's behind a reverse proxy, add its host to allowed_hosts")
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
		return refused
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return nil
	}
	u, err := url.Parse(origins[0])
	if err == nil && len(origins) == 1 && u.Host != "" && s.opts.Hosts.Allows(u.Host) {
		return nil
	}
	if err != nil || len(origins) != 1 || u.Host == "" || !strings.EqualFold(u.Host, r.Host) ||
		localPeer(r) && !httpguard.IsLoopback(r.Host) {
		return refused
	}
	return nil
}

// readPTY decodes the request from the parameters, or for a new terminal from the header
// headerExec. The header keeps the request out of logs of URLs.
func readPTY(r *http.Request) (ptyRequest, error) {
	q := queryOf(r, ptyQuery...)
	req := ptyRequest{shell: q.text("shell"), offset: -1, readOnly: q.boolean("read_only")}
	if q.text("offset") != "" {
		req.offset = q.number("offset")
	}
	req.open = v1.TerminalRequest{
		Command: q.text("command"), Cwd: q.text("cwd"), User: q.text("user"), Term: q.text("term"),
		Cols: q.smallNumber("cols"), Rows: q.smallNumber("rows"), TimeoutMS: q.number("timeout_ms"),
		SpoolBytes: q.number("spool_bytes"),
	}
	if v := q.text("argv"); v != "" && json.Unmarshal([]byte(v), &req.open.Argv) != nil {
		q.fail("argv", `must be a JSON array of strings, such as ["top","-d","1"]`)
	}
	for _, name := range ptyQuery {
		old := name == "shell" || name == "offset" || name == "read_only"
		if _, given := q.values[name]; given && old != (req.shell != "") {
			q.fail(name, "cannot be combined: use the parameters of an existing terminal (shell) or of a new one")
		}
	}
	h := r.Header.Get(headerExec)
	if h == "" || q.err != nil {
		return req, q.err
	}
	if len(q.values) > 0 {
		return req, &strictjson.FieldError{Field: headerExec, Message: "and parameters are both given: use one of them"}
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(h, "="))
	if err != nil {
		return req, &strictjson.FieldError{Field: headerExec, Message: "is not base64url"}
	}
	return req, strictjson.Decode(b, &req.open)
}

// smallNumber returns a number that the engine checks further.
func (q *query) smallNumber(name string) int { return int(min(q.number(name), 1<<30)) }
