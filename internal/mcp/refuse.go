package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

const (
	// maxHead is how many bytes of a request's body are kept to find its tool calls.
	maxHead = 64 << 10
	// headTime bounds reading the rest of these bytes after a refusal.
	headTime = 5 * time.Second
	// methodCall is the method whose refusals are recorded. It replaces a tool name that cannot be
	// read.
	methodCall       = "tools/call"
	methodInitialize = "initialize"
	maxCause         = 300 // bytes of an answer's text
)

// intake is the body of a POST and its tool calls. Each call either reaches callTool, which records
// it, or was refused before.
type intake struct {
	io.ReadCloser
	head []byte // the first bytes of the body
	cut  bool   // the body is longer
	eof  bool
	// calls is the number of tool calls in the body, if counted is set.
	calls   int
	counted bool

	mu      sync.Mutex
	reached []string // names of tools
}

// Read implements io.Reader.
func (in *intake) Read(p []byte) (int, error) {
	n, err := in.ReadCloser.Read(p)
	keep := min(n, maxHead-len(in.head))
	in.head = append(in.head, p[:keep]...)
	in.cut = in.cut || keep < n
	in.eof = in.eof || err != nil
	return n, err
}

// noteReached records that a call reached callTool.
func (in *intake) noteReached(tool string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reached = append(in.reached, tool)
}

// missed returns the calls in the body that did not reach callTool.
func (in *intake) missed() []toolCall {
	in.mu.Lock()
	defer in.mu.Unlock()
	calls := callsIn(in.head)
	if calls == nil && in.cut { // the kept bytes cannot be parsed
		n := 1
		if in.counted {
			n = max(in.calls-len(in.reached), 0)
		}
		return slices.Repeat([]toolCall{{name: methodCall}}, n)
	}
	left := slices.Clone(in.reached)
	return slices.DeleteFunc(calls, func(c toolCall) bool {
		i := slices.Index(left, c.name)
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	})
}

// toolCall is a tools/call as far as it could be parsed.
type toolCall struct {
	name  string
	input json.RawMessage
}

// callsIn returns the tool calls of a message or a batch, or nil if the text is not JSON.
func callsIn(body []byte) []toolCall {
	type message struct {
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	var batch []message
	if json.Unmarshal(body, &batch) != nil {
		var one message
		if json.Unmarshal(body, &one) != nil {
			return nil
		}
		batch = []message{one}
	}
	calls := []toolCall{}
	for _, m := range batch {
		if m.Method != methodCall {
			continue
		}
		var p struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if json.Unmarshal(m.Params, &p) != nil { // not an object, or the name is not a string
			p.Name, p.Arguments = "", m.Params
		}
		calls = append(calls, toolCall{name: cmp.Or(p.Name, methodCall), input: p.Arguments})
	}
	return calls
}

// Refuse records the tool calls of a POST that is refused before Serve, and returns cause.
func (s *Server) Refuse(w http.ResponseWriter, r *http.Request, p caller.Principal, cause error) error {
	if r.Method != http.MethodPost {
		return cause
	}
	return s.recordMissed(w, r, &intake{ReadCloser: r.Body}, p, cause)
}

// recordMissed records the calls of a body that did not reach a tool, and returns cause. It reads
// the missing part of the body's first bytes.
func (s *Server) recordMissed(
	w http.ResponseWriter, r *http.Request, in *intake, p caller.Principal, cause error,
) error {
	if !in.eof && !in.cut {
		ctl := http.NewResponseController(w)
		_ = ctl.SetReadDeadline(time.Now().Add(headTime)) // every connection supports it
		_, _ = io.CopyN(io.Discard, in, maxHead+1)
		_ = ctl.SetReadDeadline(time.Time{})
	}
	p.Key, p.Via = "", "mcp"
	missed := in.missed()
	n := len(missed)
	if over := n - maxBatch; over > 0 { // a small body can name thousands
		missed = missed[:maxBatch]
		rest := fmt.Errorf("%d more calls of the same request: %w", over, cause)
		if err := s.engine.RefuseCall(r.Context(), p, methodCall, nil, rest); err != rest {
			s.log.Error("failed to record refused calls", "caller", p.Caller, "error", err)
		}
	}
	for _, c := range missed {
		// A failure to record is joined to cause.
		err := s.engine.RefuseCall(r.Context(), p, c.name, c.input, cause)
		if err != cause { // the same error, not one that wraps it
			s.log.Error("failed to record a refused call", "caller", p.Caller, "error", err)
		}
	}
	if n > 0 {
		s.opts.Refused(p, n)
	}
	return cause
}

// refuse records a call that did not reach a tool, and returns the error to answer.
func (s *Server) refuse(ctx context.Context, a Access, tool string, input json.RawMessage, cause error) error {
	s.opts.Refused(a.Principal, 1)
	said := cause
	if e, ok := errors.AsType[*jsonrpc.Error](cause); ok { // its text is for the client
		said = usererror.Errorf(errdefs.ErrInvalidArgument, "%s", e.Message)
	}
	if err := s.engine.RefuseCall(ctx, a.Principal, tool, input, said); err != said {
		return errors.Join(cause, err)
	}
	return cause
}

// outcome is a ResponseWriter that keeps the text of a refusal.
type outcome struct {
	http.ResponseWriter
	status int
	text   bytes.Buffer
}

// WriteHeader records the status.
func (o *outcome) WriteHeader(status int) {
	o.status = cmp.Or(o.status, status)
	o.ResponseWriter.WriteHeader(status)
}

// Write keeps the first bytes of a refusal.
func (o *outcome) Write(p []byte) (int, error) {
	if o.status >= http.StatusBadRequest {
		o.text.Write(p[:min(len(p), maxCause-o.text.Len())])
	}
	return o.ResponseWriter.Write(p)
}

// Unwrap returns the wrapped ResponseWriter, for http.ResponseController.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// cause returns the reason for calls that did not reach a tool.
func (o *outcome) cause() error {
	if o.status < http.StatusBadRequest {
		return usererror.Errorf(errdefs.ErrInvalidArgument, "invalid MCP message")
	}
	return usererror.Errorf(errdefs.ErrInvalidArgument, "answered with status %d: %s", o.status,
		strings.TrimSpace(o.text.String()))
}
