package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// ErrNoServer means that no server accepts connections at the address. Nothing was sent. It is of
// class Unavailable.
var ErrNoServer = fmt.Errorf("no server answers: %w", errdefs.ErrUnavailable)

// NoServerError is an ErrNoServer with the address and the cause.
type NoServerError struct {
	Address string
	Err     error
}

// Error implements error.
func (e *NoServerError) Error() string {
	return fmt.Sprintf("no server answers on %s: %v", e.Address, e.Err)
}

// Unwrap returns ErrNoServer and the cause.
func (e *NoServerError) Unwrap() []error { return []error{ErrNoServer, e.Err} }

// AccessError means that this process may not connect to the socket of a server. Nothing was sent.
// A server may be running, so errors.Is does not match it with ErrNoServer. It is of class
// PermissionDenied.
type AccessError struct {
	Address string
	Err     error
}

// Error implements error.
func (e *AccessError) Error() string {
	return fmt.Sprintf("no permission for the server's socket %s: %v", e.Address, e.Err)
}

// Unwrap returns the class and the cause.
func (e *AccessError) Unwrap() []error { return []error{errdefs.ErrPermissionDenied, e.Err} }

// ErrLost means that the connection broke before the answer was complete, or that the answer was
// malformed. The operation may have happened. It is of class Unavailable.
var ErrLost = fmt.Errorf("the connection to the server was cut: %w", errdefs.ErrUnavailable)

// maxProblem bounds the body of an error answer, in bytes.
const maxProblem = 64 << 10

// problemError adds the errdefs class to a problem.
type problemError struct {
	*v1.Problem
	class error
}

// Unwrap returns the problem and its class.
func (e *problemError) Unwrap() []error { return []error{e.Problem, e.class} }

// newProblemError returns the error for a problem that the server sent.
func newProblemError(p *v1.Problem) error {
	if p.Detail == "" {
		p.Detail = p.Title
	}
	return &problemError{Problem: p, class: errorClass(p)}
}

// errorClass returns the errdefs class for the problem's code. An answer without a known code comes
// from a proxy: its HTTP status decides.
func errorClass(p *v1.Problem) error {
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
	return errorClassOfStatus(p.Status)
}

func errorClassOfStatus(status int) error {
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

// readProblem returns the error for an answer whose status is not 2xx.
func (c *Client) readProblem(ctx context.Context, resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil {
		return c.connectionError(ctx, err)
	}
	if p, ok := v1.Decode(body); ok {
		return newProblemError(p)
	}
	if resp.StatusCode == http.StatusBadRequest && bytes.Contains(body, []byte("HTTP request to an HTTPS server")) {
		return &TLSError{Address: c.address, Err: http.ErrSchemeMismatch}
	}
	return newProblemError(&v1.Problem{
		Status: resp.StatusCode,
		Detail: fmt.Sprintf("%s answered %d, and not as an orchestrator does", c.address, resp.StatusCode),
	})
}

// connectionError returns the error for a broken connection: the context's cause if ctx has ended,
// AccessError if the socket exists but is closed to this process, NoServerError if dialing failed
// otherwise, TLSError if the handshake failed, and ErrLost if the connection broke.
func (c *Client) connectionError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	switch {
	case isDialError(err) && strings.HasPrefix(c.address, unixScheme) && errors.Is(err, os.ErrPermission):
		return &AccessError{Address: c.address, Err: err}
	case isDialError(err):
		return &NoServerError{Address: c.address, Err: err}
	}
	if bad := tlsError(c.address, err); bad != nil {
		return bad
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
