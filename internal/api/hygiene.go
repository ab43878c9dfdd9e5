package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// generalMessages maps each code to a message that every caller may see.
var generalMessages = map[string]string{
	"invalid_argument":    "the request is invalid",
	"unauthenticated":     "a valid bearer token is required",
	"permission_denied":   "this is not allowed",
	"not_found":           "not found, or owned by another caller",
	"already_exists":      "it already exists",
	"failed_precondition": "this is not possible in the present state",
	"resource_exhausted":  "no capacity for this now: try again later",
	"not_implemented":     "this service does not support this",
	"unavailable":         "the service cannot do this now: try again later",
	"deadline_exceeded":   "this took too long",
	"internal":            "the service could not do this",
}

// redactError returns the error that the caller may see. Operators see the whole error. Others see
// the part that was written for callers, or else a general message with a reference; the log has
// the error under that reference.
func redactError(principal caller.Principal, log *slog.Logger, err error) error {
	if err == nil || principal.Operator {
		return err
	}
	if got := cmp.Or(core.As[*httpguard.BodyError](err), core.ForCallers(err)); got != nil {
		return got
	}
	p := problem(err)
	ref := "e-" + rand.Text()[:12]
	report := log.Warn
	if errors.Is(err, context.Canceled) {
		report = log.Debug // the client went away
	}
	report("error hidden from caller", "reference", ref, "caller", principal.Caller,
		"code", p.Code, "error", err)
	var class error = errdefs.ErrInternal
	for _, c := range classes {
		if c.code == p.Code && c.is(err) {
			class = c.text
		}
	}
	return usererror.Errorf(class, "%s; the service's log has the reason under %s", generalMessages[p.Code], ref)
}

// redact returns the error that the client of a request may see. It logs internal errors, because
// their answer refers to the log.
func (s *Server) redact(r *http.Request, p caller.Principal, err error) error {
	log := s.logger(r)
	if ctx := r.Context(); ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		err = fmt.Errorf("%w: %w", context.Canceled, err) // the client is gone and gets no answer
	}
	if problem(err).Status == http.StatusInternalServerError {
		log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	return redactError(p, log, err)
}

// redactedProblem returns the problem for an error that occurs after the answer has begun.
func redactedProblem(w any, err error) *v1.Problem {
	a, ok := w.(*answer)
	if ok && a.redact != nil {
		err = a.redact(err)
	} else {
		err = redactError(caller.Principal{}, slog.New(slog.DiscardHandler), err)
	}
	out := problem(err)
	if ok {
		out.RequestID = a.request
	}
	return out
}
