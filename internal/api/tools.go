package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

func (s *Server) toolRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/tools", handle: s.listTools,
			summary: "List the tools that can be called, with their schemas",
			query:   []string{"profile"}, answer: v1.List[v1.Tool]{},
		},
		{
			method: "POST", path: "/v1/tools/{name}/call", handle: s.callTool, limit: maxToolBody, twice: true,
			refused: s.refusedTool,
			summary: "Call a tool: policy, approval, run, audit", body: v1.ToolCall{}, answer: v1.ToolResult{},
			also: []answerForm{{formEvents, v1.ToolEvent{}}},
		},
		{
			method: "GET", path: "/v1/calls/{id}/output", handle: s.callOutput,
			summary: "Read the whole output of an earlier call from an offset",
			query:   []string{"stream", "offset", "limit", "wait_ms"}, answer: v1.Output{},
			also: rawForm(),
		},
		{
			method: "DELETE", path: "/v1/sessions/{name}", handle: s.endSession,
			summary: "End a session: its sandbox is destroyed",
		},
		{
			method: "POST", path: "/v1/policy/check", handle: s.checkPolicy,
			summary: "Check a command against a policy without running it", body: v1.PolicyCheck{},
			answer: v1.Verdict{},
		},
		{
			method: "GET", path: "/v1/profiles", handle: s.listProfiles,
			summary: "List the profiles", answer: v1.List[v1.Profile]{},
		},
	}
}

func (s *Server) listTools(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "profile")
	if q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Governed.Tools(r.Context(), p, q.text("profile"))
	return replyList(w, items, err)
}

// callTool calls a tool. Requests that cannot be decoded are audited too, so that probing leaves a
// trace.
func (s *Server) callTool(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	name := r.PathValue("name")
	raw, err := readJSON(r)
	var req v1.ToolCall
	if err == nil {
		req, err = decodeToolCall(raw)
	}
	if err == nil && req.Sandbox != "" {
		req.Sandbox, err = s.opts.Engine.ResolveID(r.Context(), p, "sandboxes", req.Sandbox, false)
	}
	f := formJSON
	if err == nil {
		f, err = form(r, formJSON, formEvents)
	}
	if err != nil {
		return s.refuseCall(r, p, name, raw, err)
	}
	w.Header().Set("Cache-Control", "no-store")
	if f == formEvents {
		return s.toolEvents(w, r, p, name, req)
	}
	res, err := s.opts.Engine.Governed.CallTool(r.Context(), p, name, req, governed.Watch{})
	if err != nil {
		return err
	}
	if limited(res) {
		s.opts.Refusals.Wait(p, 1)
	}
	err = reply(w, http.StatusOK, res)
	e, ok := errors.AsType[*httpguard.BodyError](err)
	if a, isAnswer := w.(*answer); ok && e.Dropped && isAnswer {
		a.ChargeTo(nil, p, false)
		return reply(w, http.StatusOK, shortened(res))
	}
	return err
}

// shortened returns the result of a call without its output, for an answer over the budget.
func shortened(r v1.ToolResult) v1.ToolResult {
	r.Output, r.Text = nil, httpguard.Dropped("the call has ended, but its output").Error()
	return r
}

// limited reports whether a quota or a rate refused the call.
func limited(r v1.ToolResult) bool { return r.Error != nil && r.Error.RetryAfterMS > 0 }

// sharedJSON is JSON that shares memory with the document that contains it.
type sharedJSON json.RawMessage

// UnmarshalJSON implements json.Unmarshaler without a copy.
func (s *sharedJSON) UnmarshalJSON(b []byte) error {
	*s = b
	return nil
}

// decodeToolCall decodes a call. Its input shares memory with raw.
func decodeToolCall(raw []byte) (v1.ToolCall, error) {
	var got struct {
		v1.ToolCall
		Input sharedJSON `json:"input"`
	}
	err := decodeJSON(raw, &got)
	got.ToolCall.Input = json.RawMessage(got.Input)
	return got.ToolCall, err
}

// refuseCall records a call that is refused before it begins, and returns the error to answer. raw
// is its body. If the body did not arrive completely, the record has the size and the hash of the
// received part.
func (s *Server) refuseCall(r *http.Request, p caller.Principal, name string, raw []byte, cause error) error {
	if e, ok := errors.AsType[*httpguard.BodyError](cause); ok {
		return s.opts.Engine.Governed.RefuseBody(r.Context(), p, name, e.Read, e.Sum, cause)
	}
	return s.opts.Engine.Governed.RefuseCall(r.Context(), p, name, raw, cause)
}

// refusedTool records a call that was refused before its body was read.
func (s *Server) refusedTool(_ http.ResponseWriter, r *http.Request, p caller.Principal, err error) error {
	return s.opts.Engine.Governed.RefuseCall(r.Context(), p, r.PathValue("name"), nil, err)
}

func (s *Server) callOutput(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "stream", "offset", "limit", "wait_ms")
	req := core.OutputRequest{Stream: q.text("stream"), Offset: q.number("offset"), Limit: q.number("limit"),
		Wait: q.millis("wait_ms")}
	if q.err != nil {
		return q.err
	}
	f, err := form(r, formJSON, formRaw)
	if err != nil {
		return err
	}
	ctx, cancel := s.untilStop(r)
	defer cancel()
	got, err := s.opts.Engine.Governed.CallOutput(ctx, p, r.PathValue("id"), req)
	if err != nil {
		return err
	}
	if f == formJSON {
		return reply(w, http.StatusOK, got)
	}
	data := []byte(got.Data)
	if got.Base64 != "" {
		if data, err = base64.StdEncoding.DecodeString(got.Base64); err != nil {
			return err
		}
	}
	h := w.Header()
	h.Set("Orchestrator-Offset", strconv.FormatInt(got.Offset, 10))
	h.Set("Orchestrator-End", strconv.FormatBool(got.EOF))
	return sendCounted(w, http.StatusOK, formRaw, data)
}

func (s *Server) endSession(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	return replyDone(w, s.opts.Engine.EndSession(r.Context(), p, r.PathValue("name")))
}

func (s *Server) checkPolicy(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.PolicyCheck
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.Governed.CheckPolicy(r.Context(), p, req)
	return replyOK(w, got, err)
}

func (s *Server) listProfiles(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	items, err := s.opts.Engine.Governed.Profiles(r.Context(), p)
	return replyList(w, items, err)
}
