package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"
	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// ptyQuery are the parameters of GET /v1/sandboxes/{id}/pty.
var ptyQuery = []string{
	"argv", "command", "cwd", "user", "term", "cols", "rows", "timeout_ms", "spool_bytes", // a new one
	"shell", "offset", "read_only", // one that is there
}

// ptyRequest asks for a new terminal, or one that is there.
type ptyRequest struct {
	open     v1.TerminalRequest
	shell    string // "": a new one
	offset   int64  // -1: the first byte that is kept
	readOnly bool
}

// pty is a terminal over a WebSocket. What can be refused is refused before
// anything is opened, and as every other request is.
func (s *Server) pty(w http.ResponseWriter, r *http.Request, p engine.Principal) error {
	if err := upgradable(r); err != nil {
		return err
	}
	req, err := readPTY(r)
	if err != nil {
		return err
	}
	// Serve waits for it: net/http does not, once the connection is not its own.
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
		return &strictjson.FieldError{Field: "offset", Message: "is beyond the end of what was written"}
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{v1.TerminalProtocol}, InsecureSkipVerify: true, // upgradable has looked at the origin
	})
	if err != nil {
		s.log.Debug("terminal not connected", "error", err) // it was answered
		return nil
	}
	defer conn.CloseNow() //nolint:errcheck // most often closed by now
	conn.SetReadLimit(v1.TerminalInput)
	t := newPTYSession(s, conn, at, req, func(err error) *v1.Problem { return told(w, err) })
	t.run()
	return nil
}

// upgradable refuses what is no opening handshake of ours, and pages of other
// origins: a browser lets any page open WebSockets to any host.
func upgradable(r *http.Request) error {
	if r.Method != http.MethodGet { // the route of GET is that of HEAD, too
		return usererror.Errorf(errdefs.ErrNotFound, "there is no %s %s: see /openapi.json", r.Method, r.URL.Path)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || r.Header.Get("Sec-WebSocket-Version") != "13" || !r.ProtoAtLeast(1, 1) {
		return &strictjson.FieldError{Field: "Upgrade", Message: "must be websocket, of version 13: this is a WebSocket"}
	}
	if !lists(r.Header, "Connection", "upgrade") { // something between us may have dropped it
		return &strictjson.FieldError{Field: "Connection", Message: "must list upgrade: this is a WebSocket"}
	}
	if key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key")); err != nil || len(key) != 16 || len(r.Header.Values("Sec-WebSocket-Key")) != 1 {
		return &strictjson.FieldError{Field: "Sec-WebSocket-Key", Message: "must be 16 bytes in base64"}
	}
	if err := ownOrigin(r); err != nil {
		return err
	}
	if !lists(r.Header, "Sec-WebSocket-Protocol", v1.TerminalProtocol) {
		return &strictjson.FieldError{Field: "Sec-WebSocket-Protocol", Message: "must offer " + v1.TerminalProtocol}
	}
	return nil
}

// lists says whether a word is in a header's list.
func lists(h http.Header, field, word string) bool {
	for _, line := range h.Values(field) {
		for name := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(name), word) {
				return true
			}
		}
	}
	return false
}

// ownOrigin lets in who is no web page, and pages of the host that was asked. A
// name of a page's own that leads to this host is not that.
func ownOrigin(r *http.Request) error {
	refused := usererror.Errorf(errdefs.ErrPermissionDenied, "web pages of other origins may not open terminals, nor connect to sandboxes")
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
		return refused
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return nil
	}
	u, err := url.Parse(origins[0])
	if err != nil || len(origins) != 1 || u.Host == "" || !strings.EqualFold(u.Host, r.Host) || localPeer(r) && !loopback(r.Host) {
		return refused
	}
	return nil
}

// readPTY reads the request: parameters, or for a new terminal the header that
// streamed commands have as well, which does not end up in logs as a URL does.
func readPTY(r *http.Request) (ptyRequest, error) {
	q := queryOf(r, ptyQuery...)
	req := ptyRequest{shell: q.text("shell"), offset: -1, readOnly: q.yes("read_only")}
	if q.text("offset") != "" {
		req.offset = q.number("offset")
	}
	req.open = v1.TerminalRequest{
		Command: q.text("command"), Cwd: q.text("cwd"), User: q.text("user"), Term: q.text("term"),
		Cols: q.small("cols"), Rows: q.small("rows"), TimeoutMS: q.number("timeout_ms"), SpoolBytes: q.number("spool_bytes"),
	}
	if v := q.text("argv"); v != "" && json.Unmarshal([]byte(v), &req.open.Argv) != nil {
		q.fail("argv", `must be a JSON array of strings, such as ["top","-d","1"]`)
	}
	for _, name := range ptyQuery {
		old := name == "shell" || name == "offset" || name == "read_only"
		if _, given := q.values[name]; given && old != (req.shell != "") {
			q.fail(name, "is for a terminal that is there (shell) or for a new one, and both are asked for")
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

// small is a number that is checked further on.
func (q *query) small(name string) int { return int(min(q.number(name), 1<<30)) }
