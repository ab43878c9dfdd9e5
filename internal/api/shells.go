package api

import (
	"errors"
	"net/http"
	"strconv"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
)

func (s *Server) startShell(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	var req v1.ShellRequest
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	got, err := s.opts.Engine.StartShell(r.Context(), p, r.PathValue("id"), req)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/shells/"+got.ID)
	return reply(w, http.StatusCreated, got)
}

func (s *Server) listShells(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	items, err := s.opts.Engine.Shells(r.Context(), p, r.PathValue("id"))
	return replyList(w, items, err)
}

func (s *Server) getShell(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	got, err := s.opts.Engine.Shell(r.Context(), p, r.PathValue("id"))
	return replyOK(w, got, err)
}

func (s *Server) killShell(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "grace_ms", "forget")
	grace, forget := q.millis("grace_ms"), q.boolean("forget")
	if q.err != nil {
		return q.err
	}
	got, err := s.opts.Engine.KillShell(r.Context(), p, r.PathValue("id"), grace, forget)
	return replyOK(w, got, err)
}

func (s *Server) signalShell(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "signal")
	n := q.number("signal")
	if q.err != nil {
		return q.err
	}
	return replyDone(w, s.opts.Engine.SignalShell(r.Context(), p, r.PathValue("id"), int(min(n, 1000))))
}

func (s *Server) shellInput(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "close")
	closeIt := q.boolean("close")
	if q.err != nil {
		return q.err
	}
	return replyDone(w, s.opts.Engine.Input(r.Context(), p, r.PathValue("id"), r.Body, closeIt))
}

func (s *Server) shellOutput(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "stream", "offset", "limit", "wait_ms", "follow")
	req := core.OutputRequest{
		Stream: q.text("stream"), Offset: q.number("offset"), Limit: q.number("limit"), Wait: q.millis("wait_ms"),
		Follow: q.boolean("follow"),
	}
	if q.err != nil {
		return q.err
	}
	f, err := form(r, formJSON, formRaw)
	if err != nil {
		return err
	}
	ctx, cancel := s.untilStop(r)
	defer cancel()
	if f == formRaw {
		return s.rawOutput(w, r.WithContext(ctx), p, req)
	}
	got, err := s.opts.Engine.Output(ctx, p, r.PathValue("id"), req)
	return replyOK(w, got, err)
}

// errGap ends a raw answer at bytes that do not follow the sent ones.
var errGap = errors.New("a gap in the output")

// rawOutput sends bytes. The offset of the first byte is in a header, so an answer ends before a
// gap. The next request shows the size of the gap.
func (s *Server) rawOutput(
	w http.ResponseWriter, r *http.Request, principal caller.Principal, req core.OutputRequest,
) error {
	ctl := http.NewResponseController(w)
	next := int64(-1)
	begin := func(offset int64) {
		w.Header().Set("Content-Type", formRaw)
		w.Header().Set("Orchestrator-Offset", strconv.FormatInt(offset, 10))
		w.WriteHeader(http.StatusOK)
		next = offset
	}
	end, err := s.opts.Engine.CopyOutput(r.Context(), principal, r.PathValue("id"), req,
		func(offset int64, p []byte) error {
			if next < 0 {
				begin(offset)
			}
			if offset != next {
				return errGap
			}
			n, err := w.Write(p)
			next += int64(n)
			if err == nil && len(p) < 4096 {
				err = ctl.Flush()
			}
			return err
		})
	if errors.Is(err, errGap) {
		return nil
	}
	if err != nil {
		return err
	}
	if next < 0 {
		begin(max(end, req.Offset))
	}
	return nil
}
