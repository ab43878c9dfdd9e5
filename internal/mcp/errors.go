package mcp

import (
	"cmp"
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

// failed is a call that could not be carried out. Models see why, and may do
// better; what concerns the way itself is an error of the protocol.
func (s *Server) failed(a Access, err error) (*mcp.CallToolResult, error) {
	if errdefs.IsUnauthorized(err) {
		return nil, s.protocolError(a, err, "call refused")
	}
	text := s.words(a, err, "tool call not carried out")
	meta := mcp.Meta{}
	if e, ok := errors.AsType[*engine.EmptyError](err); ok && e.RetryAfter > 0 {
		meta[metaError] = v1.ToolError{Type: "unavailable", Message: text, RetryAfterMS: e.RetryAfter.Milliseconds()}
	}
	return &mcp.CallToolResult{Meta: meta, Content: []mcp.Content{&mcp.TextContent{Text: text}}, IsError: true}, nil
}

func (s *Server) protocolError(a Access, err error, what string) error {
	code := int64(jsonrpc.CodeInternalError)
	if errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) {
		code = jsonrpc.CodeInvalidParams
	}
	return &jsonrpc.Error{Code: code, Message: s.words(a, err, what)}
}

// words is an error as its caller may read it: operators all of it, others
// what was said to them. The rest may tell of the host, and stays in the log.
func (s *Server) words(a Access, err error, what string) string {
	said := err
	if !a.Principal.Operator {
		said = cmp.Or(engine.As[*v1.Problem](err), engine.ForCallers(err))
	}
	if said == nil || !known(err) {
		s.log.Error(what, "caller", a.Principal.Caller, "error", err)
	}
	if said == nil {
		return what + ": the service could not do this; its log says why"
	}
	return strings.ReplaceAll(withoutClass(said.Error()), "\n", "; ")
}

// classes are those of errors that are no fault of the service.
var classes = []error{
	errdefs.ErrInvalidArgument, errdefs.ErrOutOfRange, errdefs.ErrUnauthenticated, errdefs.ErrPermissionDenied, errdefs.ErrNotFound,
	errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition, errdefs.ErrConflict, errdefs.ErrResourceExhausted, errdefs.ErrNotImplemented, errdefs.ErrUnavailable,
}

func known(err error) bool {
	for _, c := range classes {
		if errors.Is(err, c) {
			return true
		}
	}
	return false
}

// withoutClass leaves out what a wrapped class adds to a message.
func withoutClass(s string) string {
	for _, c := range classes {
		if cut, ok := strings.CutSuffix(s, ": "+c.Error()); ok {
			return cut
		}
	}
	return s
}
