package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

const (
	// maxHead is how much of a request's body is kept to see which tools it calls.
	maxHead = 64 << 10
	// headTime bounds reading what is missing of it once the request is refused.
	headTime = 5 * time.Second
	// methodCall is the method whose refusals are recorded. It stands for the
	// tool's name where that cannot be read.
	methodCall = "tools/call"
	maxCause   = 300 // bytes of an answer's text
)

// intake is the body of a POST and the tool calls in it. Each call either
// reaches callTool, which leaves a record, or was refused before.
type intake struct {
	io.ReadCloser
	head []byte // the body's beginning
	cut  bool   // there is more
	eof  bool

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

// took notes a call that reached callTool.
func (in *intake) took(tool string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reached = append(in.reached, tool)
}

// missed returns the calls in the body that did not reach callTool.
func (in *intake) missed() []toolCall {
	in.mu.Lock()
	defer in.mu.Unlock()
	calls := callsIn(in.head)
	if calls == nil && in.cut && len(in.reached) == 0 {
		return []toolCall{{name: methodCall}} // too long to tell
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

// toolCall is a tools/call as far as it can be read.
type toolCall struct {
	name  string
	input json.RawMessage
}

// callsIn returns the tool calls of a message or a batch; nil if the text is no
// JSON.
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

// Refuse records the tool calls of a POST that is refused before Serve, and
// returns the reason.
func (s *Server) Refuse(w http.ResponseWriter, r *http.Request, p engine.Principal, cause error) error {
	if r.Method != http.MethodPost {
		return cause
	}
	return s.recordMissed(w, r, &intake{ReadCloser: r.Body}, p, cause)
}

// recordMissed records the calls of a body that reached no tool. It reads what is
// missing of the body's beginning.
func (s *Server) recordMissed(w http.ResponseWriter, r *http.Request, in *intake, p engine.Principal, cause error) error {
	if !in.eof && !in.cut {
		ctl := http.NewResponseController(w)
		_ = ctl.SetReadDeadline(time.Now().Add(headTime)) // any connection can
		_, _ = io.CopyN(io.Discard, in, maxHead+1)
		_ = ctl.SetReadDeadline(time.Time{})
	}
	p.Key, p.Via = "", "mcp"
	missed := in.missed()
	for _, c := range missed {
		if err := s.engine.RefuseCall(r.Context(), p, c.name, c.input, cause); err != cause { //nolint:errorlint // that the record failed is added
			s.log.Error("failed to record a refused call", "caller", p.Caller, "error", err)
		}
	}
	if len(missed) > 0 {
		s.opts.Refused(p, len(missed))
	}
	return cause
}

// refuse records a call that reached no tool, and returns the reason.
func (s *Server) refuse(ctx context.Context, a Access, tool string, input json.RawMessage, cause error) error {
	err := s.engine.RefuseCall(ctx, a.Principal, tool, input, cause)
	s.opts.Refused(a.Principal, 1)
	return err
}

// outcome is a response whose refusal is kept.
type outcome struct {
	http.ResponseWriter
	status int
	text   bytes.Buffer
}

// WriteHeader notes the status.
func (o *outcome) WriteHeader(status int) {
	o.status = cmp.Or(o.status, status)
	o.ResponseWriter.WriteHeader(status)
}

// Write keeps the beginning of a refusal.
func (o *outcome) Write(p []byte) (int, error) {
	if o.status >= http.StatusBadRequest {
		o.text.Write(p[:min(len(p), maxCause-o.text.Len())])
	}
	return o.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (o *outcome) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// cause is why calls were refused whose tool was not reached.
func (o *outcome) cause() error {
	if o.status < http.StatusBadRequest {
		return usererror.Errorf(errdefs.ErrInvalidArgument, "the message of the protocol cannot be used")
	}
	return usererror.Errorf(errdefs.ErrInvalidArgument, "answered with status %d: %s", o.status, strings.TrimSpace(o.text.String()))
}
