package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// classes maps the class of an error to a code and a status. It is the only such mapping.
var classes = []struct {
	is     func(error) bool
	code   string
	status int
	text   error // the suffix that a wrapped class adds to a message; it is cut off
}{
	{errdefs.IsInvalidArgument, "invalid_argument", http.StatusBadRequest, errdefs.ErrInvalidArgument},
	{errdefs.IsOutOfRange, "invalid_argument", http.StatusBadRequest, errdefs.ErrOutOfRange},
	{errdefs.IsUnauthorized, "unauthenticated", http.StatusUnauthorized, errdefs.ErrUnauthenticated},
	{errdefs.IsPermissionDenied, "permission_denied", http.StatusForbidden, errdefs.ErrPermissionDenied},
	{errdefs.IsNotFound, "not_found", http.StatusNotFound, errdefs.ErrNotFound},
	{errdefs.IsAlreadyExists, "already_exists", http.StatusConflict, errdefs.ErrAlreadyExists},
	{errdefs.IsFailedPrecondition, "failed_precondition", http.StatusConflict, errdefs.ErrFailedPrecondition},
	{errdefs.IsConflict, "failed_precondition", http.StatusConflict, errdefs.ErrConflict},
	{errdefs.IsResourceExhausted, "resource_exhausted", http.StatusTooManyRequests, errdefs.ErrResourceExhausted},
	{errdefs.IsNotImplemented, "not_implemented", http.StatusNotImplemented, errdefs.ErrNotImplemented},
	{errdefs.IsUnavailable, "unavailable", http.StatusServiceUnavailable, errdefs.ErrUnavailable},
	{errdefs.IsDeadlineExceeded, "deadline_exceeded", http.StatusGatewayTimeout, context.DeadlineExceeded},
	{errdefs.IsCanceled, "unavailable", statusClientGone, context.Canceled},
}

// retryTime is the suggested retry delay when the real one is unknown.
const retryTime = time.Second

// statusClientGone is logged when the client is gone before the answer.
const statusClientGone = 499

// problem describes an error. The text of an error without a class stays in the log, since it may
// reveal details of the host.
func problem(err error) *v1.Problem {
	p := &v1.Problem{Type: "about:blank", Status: http.StatusInternalServerError, Code: "internal",
		Detail: "the service could not do this; its log says why"}
	for _, c := range classes {
		if c.is(err) {
			p.Status, p.Code, p.Detail = c.status, c.code, strings.TrimSuffix(err.Error(), ": "+c.text.Error())
			break
		}
	}
	if isDiskFull(err) && p.Status == http.StatusTooManyRequests {
		p.Status = http.StatusInsufficientStorage
	}
	if e, ok := errors.AsType[*usererror.Error](err); ok && p.Code == "internal" {
		p.Detail = e.Message
	}
	p.Detail = strings.ReplaceAll(p.Detail, "\n", "; ") // joined errors are separated by newlines
	p.Title = http.StatusText(p.Status)
	if p.Status == http.StatusTooManyRequests {
		p.RetryAfterMS = retryTime.Milliseconds() // the default; more specific errors replace it below
	}
	p.Field = field(err)
	if e, ok := errors.AsType[*governed.InputError](err); ok {
		p.Kind = e.Type
	}
	if e, ok := errors.AsType[*usererror.Error](err); ok && e.RetryAfter > 0 {
		p.RetryAfterMS = e.RetryAfter.Milliseconds()
	}
	if e, ok := errors.AsType[*core.EmptyError](err); ok {
		p.RetryAfterMS = e.RetryAfter.Milliseconds()
	}
	if e, ok := errors.AsType[*caller.QuotaError](err); ok && e.RetryAfter > 0 {
		p.RetryAfterMS = e.RetryAfter.Milliseconds()
	}
	if _, ok := errors.AsType[*core.EndedError](err); ok {
		p.Title = "Gone"
	}
	if _, ok := errors.AsType[*core.PortError](err); ok {
		p.Status, p.Title, p.Field = http.StatusBadGateway, http.StatusText(http.StatusBadGateway), "port"
	}
	if e, ok := errors.AsType[*httpguard.BodyError](err); ok {
		p.Field, p.Detail = "body", e.Error()
		if e.Answer {
			p.Field = ""
		}
		if e.Status != 0 {
			p.Status, p.Title = e.Status, http.StatusText(e.Status)
		}
		if e.RetryAfter > 0 {
			p.RetryAfterMS = e.RetryAfter.Milliseconds()
		}
	}
	p.Detail = clip.Elide(p.Detail, maxDetail)
	return p
}

// formProblem is the media type of errors.
const formProblem = "application/problem+json"

// maxDetail bounds the text of a problem, in bytes. It may repeat what a caller sent.
const maxDetail = 4 << 10

func field(err error) string {
	if e, ok := errors.AsType[*usererror.InvalidError](err); ok {
		return e.Field
	}
	if e, ok := errors.AsType[*governed.InputError](err); ok {
		return e.Field
	}
	if e, ok := errors.AsType[*strictjson.FieldError](err); ok {
		return e.Field
	}
	if e, ok := errors.AsType[*guest.Error](err); ok {
		return e.Field
	}
	if e, ok := errors.AsType[*safefile.Error](err); ok {
		return e.Field
	}
	return ""
}

// fail answers an error. If the answer has begun, fail aborts it, so that the client cannot take it
// for complete.
func (s *Server) fail(w *answer, r *http.Request, err error) {
	p := redactedProblem(w, err)
	p.Trace = tracing.ID(r.Context())
	log := s.logger(r)
	gone := r.Context().Err() != nil && errors.Is(context.Cause(r.Context()), context.Canceled)
	switch {
	case gone:
		log.Debug("client went away", "method", r.Method, "path", r.URL.Path, "error", err)
	// A full disk and a failed port are not errors of the service. Internal errors are logged by
	// Server.redact.
	case p.Status > http.StatusInternalServerError && p.Status != http.StatusInsufficientStorage &&
		p.Status != http.StatusBadGateway:
		log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if w.Status() != 0 {
		panic(http.ErrAbortHandler) // net/http then cuts the connection
	}
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", formProblem)
	body, err := json.Marshal(p)
	// The length lets the client read the whole answer while the handler still runs.
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	if err == nil {
		_, err = w.Write(body)
	}
	if err != nil {
		log.Debug("failed to write answer", "error", err)
	}
}
