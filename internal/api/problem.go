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
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// classes maps an error's class to a code and a status: the only place that
// does.
var classes = []struct {
	is     func(error) bool
	code   string
	status int
	text   error // what a wrapped class adds to a message, and people need not read
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

// retryTime is when to ask again where nobody can tell when there is room.
const retryTime = time.Second

// statusClientGone is what is logged when nobody is there to read an answer.
const statusClientGone = 499

// problem describes an error. One without a class is ours: its text stays in
// the log, since it may tell of the host.
func problem(err error) *v1.Problem {
	p := &v1.Problem{Type: "about:blank", Status: http.StatusInternalServerError, Code: "internal", Detail: "the service could not do this; its log says why"}
	for _, c := range classes {
		if c.is(err) {
			p.Status, p.Code, p.Detail = c.status, c.code, strings.TrimSuffix(err.Error(), ": "+c.text.Error())
			break
		}
	}
	if noRoom(err) && p.Status == http.StatusTooManyRequests {
		p.Status = http.StatusInsufficientStorage
	}
	if e, ok := errors.AsType[*usererror.Error](err); ok && p.Code == "internal" {
		p.Detail = e.Message
	}
	p.Detail = strings.ReplaceAll(p.Detail, "\n", "; ") // joined errors stand one to a line
	p.Title = http.StatusText(p.Status)
	if p.Status == http.StatusTooManyRequests {
		p.RetryAfterMS = retryTime.Milliseconds() // unless more is known, below
	}
	p.Field = field(err)
	if e, ok := errors.AsType[*engine.InputError](err); ok {
		p.Kind = e.Type
	}
	if e, ok := errors.AsType[*usererror.Error](err); ok && e.RetryAfter > 0 {
		p.RetryAfterMS = e.RetryAfter.Milliseconds()
	}
	if e, ok := errors.AsType[*engine.EmptyError](err); ok {
		p.RetryAfterMS = e.RetryAfter.Milliseconds()
	}
	if e, ok := errors.AsType[*engine.QuotaError](err); ok && e.RetryAfter > 0 {
		p.RetryAfterMS = e.RetryAfter.Milliseconds()
	}
	if _, ok := errors.AsType[*engine.EndedError](err); ok {
		p.Title = "Gone"
	}
	if _, ok := errors.AsType[*engine.PortError](err); ok {
		p.Status, p.Title, p.Field = http.StatusBadGateway, http.StatusText(http.StatusBadGateway), "port"
	}
	if e, ok := errors.AsType[*bodyError](err); ok {
		p.Field, p.Detail = "body", e.Error()
		if e.status != 0 {
			p.Status, p.Title = e.status, http.StatusText(e.status)
		}
		if e.retry > 0 {
			p.RetryAfterMS = e.retry.Milliseconds()
		}
	}
	p.Detail = clip(p.Detail, maxDetail)
	return p
}

// maxDetail bounds the text of a problem, which may repeat what a caller sent.
const maxDetail = 4 << 10

// clip is s, or its beginning of about n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func field(err error) string {
	if e, ok := errors.AsType[*engine.InvalidError](err); ok {
		return e.Field
	}
	if e, ok := errors.AsType[*engine.InputError](err); ok {
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

// fail answers an error. When the answer has begun, all that is left is to cut
// it: no client may take it for whole.
func (s *Server) fail(w *answer, r *http.Request, err error) {
	p := told(w, err)
	gone := r.Context().Err() != nil && errors.Is(context.Cause(r.Context()), context.Canceled)
	switch {
	case gone:
		s.log.Debug("client went away", "method", r.Method, "path", r.URL.Path, "error", err)
	case p.Status >= http.StatusInternalServerError && p.Status != http.StatusInsufficientStorage && p.Status != http.StatusBadGateway: // which are the caller's
		s.log.Error("request not carried out", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if w.status != 0 {
		panic(http.ErrAbortHandler) // net/http's way to cut a response
	}
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	body, err := json.Marshal(p)
	w.Header().Set("Content-Length", strconv.Itoa(len(body))) // it is whole while the handler still runs
	w.WriteHeader(p.Status)
	if err == nil {
		_, err = w.Write(body)
	}
	if err != nil {
		s.log.Debug("answer not written", "error", err)
	}
}
