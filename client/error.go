package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// ErrNoServer says that nobody answers at the address; nothing was sent. It is
// of class Unavailable.
var ErrNoServer = fmt.Errorf("no server answers: %w", errdefs.ErrUnavailable)

// NoServerError is ErrNoServer with where nobody answers, and why.
type NoServerError struct {
	Address string
	Err     error
}

// Error is a whole sentence.
func (e *NoServerError) Error() string {
	return fmt.Sprintf("no server answers on %s: %v", e.Address, e.Err)
}

// Unwrap gives the class and the cause.
func (e *NoServerError) Unwrap() []error { return []error{ErrNoServer, e.Err} }

// ErrLost says that the way to the server was cut before its answer was whole.
// It is of class Unavailable.
var ErrLost = fmt.Errorf("the connection to the server was cut: %w", errdefs.ErrUnavailable)

// maxProblem bounds the body of an error.
const maxProblem = 64 << 10

// problemError is a problem and its class.
type problemError struct {
	*v1.Problem
	class error
}

// Unwrap gives both.
func (e *problemError) Unwrap() []error { return []error{e.Problem, e.class} }

// problem makes an error of one that the server sent.
func problem(p *v1.Problem) error {
	if p.Detail == "" {
		p.Detail = p.Title
	}
	return &problemError{Problem: p, class: class(p)}
}

// class is the errdefs class of a problem: what its code says, and for answers
// of something between us and the server, what the status says.
func class(p *v1.Problem) error {
	switch p.Code {
	case "invalid_argument":
		return errdefs.ErrInvalidArgument
	case "not_found":
		return errdefs.ErrNotFound
	case "already_exists":
		return errdefs.ErrAlreadyExists
	case "failed_precondition":
		return errdefs.ErrFailedPrecondition
	case "resource_exhausted":
		return errdefs.ErrResourceExhausted
	case "permission_denied":
		return errdefs.ErrPermissionDenied
	case "unauthenticated":
		return errdefs.ErrUnauthenticated
	case "unavailable":
		return errdefs.ErrUnavailable
	case "not_implemented":
		return errdefs.ErrNotImplemented
	case "deadline_exceeded":
		return context.DeadlineExceeded
	case "internal":
		return errdefs.ErrInternal
	}
	return classOfStatus(p.Status)
}

func classOfStatus(status int) error {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		return errdefs.ErrInvalidArgument
	case http.StatusUnauthorized:
		return errdefs.ErrUnauthenticated
	case http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	case http.StatusNotFound:
		return errdefs.ErrNotFound
	case http.StatusTooManyRequests, http.StatusInsufficientStorage:
		return errdefs.ErrResourceExhausted
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return errdefs.ErrNotImplemented
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return errdefs.ErrUnavailable
	}
	return errdefs.ErrInternal
}

// readProblem makes an error of an answer that is not a success.
func (c *Client) readProblem(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return c.lost(resp.Request.Context(), err)
	}
	if p, ok := v1.Decode(body); ok {
		return problem(p)
	}
	return problem(&v1.Problem{
		Status: resp.StatusCode,
		Detail: fmt.Sprintf("%s answered %d, and not as an orchestrator does", c.address, resp.StatusCode),
	})
}

// lost makes an error of a way that was cut: the context's cause where that is
// why.
func (c *Client) lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if isDial(err) {
		return &NoServerError{Address: c.address, Err: err}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
