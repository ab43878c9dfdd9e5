package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long bounds waits on a busy machine.
const long = 2 * time.Minute

// fake is an engine with one tool that understands a few commands. It keeps sessions, waits for
// approvals and records its requests.
type fake struct {
	tools []v1.Tool

	mu       sync.Mutex
	calls    []v1.ToolCall
	by       []caller.Principal
	refused  []string // tool: cause
	ended    []string
	toolsErr error // the error of Tools
	callErr  error // the error of CallTool
	answers  map[string]chan v1.ApprovalAnswer
	answered []caller.Principal
	running  chan string // receives the command when it waits
	killed   chan error  // receives the reason of its end
}

func newFake() *fake {
	object := json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}`)
	return &fake{
		tools: []v1.Tool{
			{Name: "system.bash", Title: "Bash", Description: "Runs a command.", Input: object,
				Output:  json.RawMessage(`{"type":"object"}`),
				Effects: []string{"calls(shell)"}, Trust: 3, Destructive: true, Enabled: true},
			{
				Name: "fs.read", Description: "Reads a file.", Input: json.RawMessage(`{"type":"object"}`),
				ReadOnly: true, Idempotent: true, Enabled: true,
			},
			{Name: "fs.gone", Description: "Is off.", Input: json.RawMessage(`{"type":"object"}`)},
			{Name: "web.fetch", Description: "Fetches a page.", Effects: []string{"calls(network)"}, Enabled: true},
		},
		answers: map[string]chan v1.ApprovalAnswer{}, running: make(chan string, 16), killed: make(chan error, 16),
	}
}

func (f *fake) Tools(context.Context, caller.Principal, string) ([]v1.Tool, error) {
	return f.tools, f.toolsErr
}

func (f *fake) RefuseCall(_ context.Context, p caller.Principal, name string, body []byte, cause error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = append(f.refused, fmt.Sprintf("%s %s %s %s: %v", p.Caller, p.Via, name, body, cause))
	return cause
}

// hasRefused returns the refusals recorded since the last call.
func (f *fake) hasRefused() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.refused
	f.refused = nil
	return out
}

func (f *fake) CallTool(
	ctx context.Context, p caller.Principal, name string, r v1.ToolCall, w tool.Watch,
) (v1.ToolResult, error) {
	f.mu.Lock()
	f.calls, f.by = append(f.calls, r), append(f.by, p)
	id := fmt.Sprintf("call-%d", len(f.calls))
	f.mu.Unlock()
	if f.callErr != nil {
		return v1.ToolResult{}, f.callErr
	}
	if name != "system.bash" {
		return v1.ToolResult{}, fmt.Errorf("tool %q is not known: %w", name, errdefs.ErrNotFound)
	}
	var in struct {
		Command string `json:"command"`
	}
	if err := json.Unmarshal(r.Input, &in); err != nil || in.Command == "" {
		return v1.ToolResult{}, &usererror.InvalidError{Field: "input.command", Message: "is missing"}
	}
	res := v1.ToolResult{ID: id, Tool: name, Ending: "exited", SandboxID: "sb-1"}
	verb, rest, _ := strings.Cut(in.Command, " ")
	switch verb {
	case "ask":
		if denied, err := f.ask(ctx, id, p, r, w); denied || err != nil {
			res.Ending, res.Approval = "approval_denied", "apr-"+id
			res.Error = &v1.ToolError{Type: "denied", Message: "the approver said no"}
			return res, err
		}
	case "wait":
		w.Started("sb-1")
		f.running <- in.Command
		<-ctx.Done()
		f.killed <- context.Cause(ctx)
		return v1.ToolResult{}, context.Cause(ctx)
	case "lines":
		for i := range 3 {
			if w.Output != nil {
				w.Output("stdout", fmt.Appendf(nil, "line %d\n", i))
			}
		}
	case "refuse":
		res.Ending, res.Error = "policy_denied", &v1.ToolError{Type: "SafetyViolation", Message: "rm is refused"}
		res.Verdict = &v1.Verdict{Verdict: "deny", Rule: "never-rm"}
		return res, nil
	case "break":
		return res, errors.New("/var/lib/secret/path is broken")
	case "full":
		return res, &core.EmptyError{RetryAfter: 2 * time.Second}
	case "long":
		res.Rest = id
	}
	w.Started("sb-1")
	res.Text = rest
	res.Output, _ = json.Marshal(map[string]any{"stdout": rest, "exit_code": 0})
	return res, nil
}

// ask creates an approval request and waits for its answer.
func (f *fake) ask(
	ctx context.Context, id string, p caller.Principal, r v1.ToolCall, w tool.Watch,
) (denied bool, err error) {
	answer := make(chan v1.ApprovalAnswer, 1)
	a := v1.Approval{ID: "apr-" + id, Kind: "call", State: "pending", Caller: p.Caller, Tool: "system.bash",
		Input: r.Input, Rule: "push", Reason: "it leaves the machine"}
	f.mu.Lock()
	f.answers[a.ID] = answer
	f.mu.Unlock()
	w.Asked(a)
	f.running <- a.ID
	select {
	case got := <-answer:
		return got.Action == "deny", nil
	case <-ctx.Done():
		f.killed <- context.Cause(ctx)
		return false, context.Cause(ctx)
	}
}

func (f *fake) AnswerApproval(
	_ context.Context, p caller.Principal, id string, a v1.ApprovalAnswer,
) (v1.Approval, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.answers[id]
	if !ok {
		return v1.Approval{}, errdefs.ErrNotFound
	}
	f.answered = append(f.answered, p)
	select {
	case c <- a:
		return v1.Approval{ID: id}, nil
	default:
		return v1.Approval{}, errdefs.ErrFailedPrecondition
	}
}

func (f *fake) CallOutput(_ context.Context, _ caller.Principal, id string, r tool.OutputRequest) (v1.Output, error) {
	if !strings.HasPrefix(id, "call-") {
		return v1.Output{}, fmt.Errorf("call %q is not known: %w", id, errdefs.ErrNotFound)
	}
	if r.Offset == 0 {
		return v1.Output{Data: "first ", NextOffset: 6}, nil
	}
	return v1.Output{Data: "second", NextOffset: 12, EOF: true}, nil
}

func (f *fake) EndSession(_ context.Context, _ caller.Principal, session string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = append(f.ended, session)
	return nil
}

func (f *fake) sessions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]string, 0, len(f.calls))
	for _, c := range f.calls {
		out = append(out, c.Session)
	}
	return out
}

func (f *fake) hasEnded() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.ended...)
}

// within waits for a value.
func within[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(long):
		t.Fatalf("got nothing within %s, want %s", long, what)
		panic("unreachable")
	}
}

var eventually = testenv.Eventually

// operator is the access of a test's session.
var operator = Access{Principal: caller.Principal{Caller: "anna", Operator: true}}

// connect returns a client's session with a server over memory.
func connect(t *testing.T, o Options, co *mcp.ClientOptions) (*mcp.ClientSession, *Server) {
	t.Helper()
	o.ForCallers = core.ForCallers
	s := New(o)
	near, far := mcp.NewInMemoryTransports()
	if _, err := s.sdk.Connect(t.Context(), near, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test client", Version: "1"}, co).Connect(t.Context(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs, s
}

func closeServer(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}

func bash(command string) *mcp.CallToolParams {
	return &mcp.CallToolParams{Name: "system_bash", Arguments: map[string]any{"command": command}}
}

func textOf(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) == 0 {
		t.Fatal("the result has no content, want some")
	}
	c, ok := r.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("content is a %T, want text", r.Content[0])
	}
	return c.Text
}

// wantPart reports an error if the body that answers what lacks part.
func wantPart(t *testing.T, what, body, part string) {
	t.Helper()
	if !strings.Contains(body, part) {
		t.Errorf("%s is answered %.200s, want %q in it", what, body, part)
	}
}
