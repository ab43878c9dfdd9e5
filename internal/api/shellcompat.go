package api

import (
	"fmt"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Limits of POST /shell. Its clients send one command line, and give up after 35 seconds.
const (
	shellTimeout     = 30 * time.Second
	maxShellTimeout  = time.Hour
	shellCompatTool  = "run_shell"
	shellCompatVia   = "shell"
	shellCompatRoute = "/shell"
)

// shellRequest is the request that clients of the readonly system send.
type shellRequest struct {
	Command   string   `json:"command"`
	Workspace string   `json:"workspace"`
	Timeout   *float64 `json:"timeout"` // seconds
}

// shellAnswer is the answer that these clients expect in every case.
type shellAnswer struct {
	Success    bool   `json:"success"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	ReturnCode int    `json:"returncode"`
}

// shellCompatRoutes returns the route of the readonly system, or nil if it is not enabled. Its
// clients send no token.
func (s *Server) shellCompatRoutes() []route {
	if s.opts.ShellCaller == "" {
		return nil
	}
	return []route{{
		method: "POST", path: shellCompatRoute, handle: s.shellCompat, refused: s.refusedShell, open: true,
		summary: "Run a read-only command, for existing clients of the readonly system; from this host only",
		body:    shellRequest{}, answer: shellAnswer{},
	}}
}

// shellCompat answers every command of this host's programs with status 200, and refuses all other
// clients.
func (s *Server) shellCompat(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	p.Via = shellCompatVia
	if err := checkLocal(r); err != nil {
		if p.Caller == "" { // such a client has no share of the log
			s.opts.Engine.Governed.CountRefusal(r.Context(), p, shellCompatTool, err)
			return err
		}
		return s.opts.Engine.Governed.RefuseCall(r.Context(), p, shellCompatTool, nil, err)
	}
	if p.Caller == "" {
		p.Caller = s.opts.ShellCaller
	}
	var req shellRequest
	timeout := shellTimeout
	raw, err := readBody(r)
	if err == nil {
		err = strictjson.Decode(raw, &req)
	}
	if err == nil {
		timeout, err = req.timeout()
	}
	if err != nil {
		err = s.refuseCall(r, p, shellCompatTool, raw, err)
		return s.shellRefusal(w, p, err)
	}
	got, err := s.opts.Engine.Governed.ShellCompat(r.Context(), req.Command, req.Workspace, timeout)
	if err != nil {
		return s.shellRefusal(w, p, err)
	}
	return reply(w, http.StatusOK, got)
}

// refusedShell records a command that was refused before its body was read.
func (s *Server) refusedShell(_ http.ResponseWriter, r *http.Request, p caller.Principal, err error) error {
	p.Caller, p.Via = s.opts.ShellCaller, shellCompatVia
	return s.opts.Engine.Governed.RefuseCall(r.Context(), p, shellCompatTool, nil, err)
}

func (r shellRequest) timeout() (time.Duration, error) {
	if r.Timeout == nil {
		return shellTimeout, nil
	}
	if t := *r.Timeout; t > 0 && t <= maxShellTimeout.Seconds() {
		return time.Duration(t * float64(time.Second)), nil
	}
	return 0, &strictjson.FieldError{Field: "timeout",
		Message: fmt.Sprintf("is %v and must be over 0 and at most %v seconds", *r.Timeout, maxShellTimeout.Seconds())}
}

// shellRefusal answers an error in the form that the clients know, at the pace of refusals. They
// are anonymous, so the message reveals nothing about the host.
func (s *Server) shellRefusal(w http.ResponseWriter, p caller.Principal, err error) error {
	if p.Token == "" { // see holder
		p = caller.Principal{Caller: s.opts.ShellCaller}
	}
	s.paceRefusal(p, err, 1)
	return reply(w, http.StatusOK,
		shellAnswer{Stderr: problem(redactError(caller.Principal{}, s.log, err)).Detail, ReturnCode: -1})
}

// checkLocal returns an error unless the request comes from a program on this host. It also refuses
// web pages in a local browser: they send Origin or Sec-Fetch-Site, cannot send JSON, or use a host
// name of their own that resolves to this host.
func checkLocal(r *http.Request) error {
	refused := func(why string) error {
		return usererror.Errorf(errdefs.ErrPermissionDenied, "%s %s", shellCompatRoute, why)
	}
	if !localPeer(r) {
		return refused("answers programs on this host only")
	}
	if site := r.Header.Get("Sec-Fetch-Site"); r.Header.Get("Origin") != "" || site != "" && site != "none" {
		return refused("does not answer web pages")
	}
	if !isUnixSocket(r) && !httpguard.IsLoopback(r.Host) {
		return refused("is on this host alone: call it by localhost or a loopback address")
	}
	if m, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || m != formJSON {
		return refused("needs Content-Type " + formJSON)
	}
	return nil
}

// localPeer reports whether a request came over a unix socket or from a loopback address.
func localPeer(r *http.Request) bool { return isUnixSocket(r) || httpguard.IsLoopback(r.RemoteAddr) }

func isUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}
