package mcp

import (
	"errors"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// retryable is an error that says when to try again, such as that no sandbox is free.
type retryable interface {
	error
	RetryIn() time.Duration
}

// failedResult returns the result of a call that could not be carried out. Models see the reason
// and can react. Errors of the connection are protocol errors.
func (s *Server) failedResult(a Access, err error) (*mcp.CallToolResult, error) {
	if errdefs.IsUnauthorized(err) {
		return nil, s.protocolError(a, err, "call refused")
	}
	text := s.userMessage(a, err, "tool call failed")
	meta := mcp.Meta{}
	if e, ok := errors.AsType[retryable](err); ok && e.RetryIn() > 0 {
		meta[metaError] = v1.ToolError{Type: "unavailable", Message: text, RetryAfterMS: e.RetryIn().Milliseconds()}
	}
	return &mcp.CallToolResult{Meta: meta, Content: []mcp.Content{&mcp.TextContent{Text: text}}, IsError: true}, nil
}

func (s *Server) protocolError(a Access, err error, what string) error {
	code := int64(jsonrpc.CodeInternalError)
	if errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) {
		code = jsonrpc.CodeInvalidParams
	}
	return &jsonrpc.Error{Code: code, Message: s.userMessage(a, err, what)}
}

// userMessage returns the part of an error that its caller may read: all of it for operators, else
// what was written for callers. The rest may reveal details of the host and stays in the log.
func (s *Server) userMessage(a Access, err error, what string) string {
	said := err
	if !a.Principal.Operator {
		said = s.opts.ForCallers(err)
		if problem, ok := errors.AsType[*v1.Problem](err); ok {
			said = problem
		}
	}
	if said == nil || !isExpected(err) {
		s.log.Error(what, "caller", a.Principal.Caller, "error", err)
	}
	if said == nil {
		return what + ": the service could not do this; its log says why"
	}
	return strings.ReplaceAll(withoutClass(said.Error()), "\n", "; ")
}

// classes are the classes of errors that are not the service's fault.
var classes = []error{
	errdefs.ErrInvalidArgument, errdefs.ErrOutOfRange, errdefs.ErrUnauthenticated, errdefs.ErrPermissionDenied,
	errdefs.ErrNotFound,
	errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition, errdefs.ErrConflict, errdefs.ErrResourceExhausted,
	errdefs.ErrNotImplemented, errdefs.ErrUnavailable,
}

func isExpected(err error) bool {
	for _, c := range classes {
		if errors.Is(err, c) {
			return true
		}
	}
	return false
}

// withoutClass removes the suffix that a wrapped class adds to a message.
func withoutClass(s string) string {
	for _, c := range classes {
		if cut, ok := strings.CutSuffix(s, ": "+c.Error()); ok {
			return cut
		}
	}
	return s
}
