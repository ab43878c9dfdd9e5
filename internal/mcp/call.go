package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// runningCall is a running call.
type runningCall struct {
	s      *Server
	x      *session
	access Access
	client *mcp.ServerSession
	tool   string

	progress *progress // nil if the client wants none
	// asking waits for elicitations. They end when the tool starts or the call ends.
	asking       sync.WaitGroup
	ctx          context.Context // context of asking
	cancelAsking context.CancelFunc
	mu           sync.Mutex
	asked        map[string]bool // by approval id
}

// callTool carries out tools/call. A call that is refused before it reaches the engine is recorded
// too.
func (s *Server) callTool(
	ctx context.Context, ss *mcp.ServerSession, a Access, p *mcp.CallToolParamsRaw,
) (*mcp.CallToolResult, error) {
	if a.post != nil {
		a.post.in.noteReached(p.Name)
	}
	x, err := s.session(ss)
	if err != nil {
		return nil, s.refuse(ctx, a, p.Name, p.Arguments, err)
	}
	if a.Principal.Key, err = idempotencyKey(p.Meta); err != nil {
		return nil, s.refuse(ctx, a, p.Name, p.Arguments, err)
	}
	defer x.enter()()
	ctx, cancel := x.bind(ctx, a)
	defer cancel()
	tool, known, listErr := s.resolve(ctx, x, a, p.Name)
	if !known {
		tool = p.Name // the engine refuses and records it
	}
	if token, ok := p.GetProgressToken().(string); ok && len(token) > maxToken {
		return nil, s.refuse(ctx, a, p.Name, p.Arguments, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
			Message: fmt.Sprintf("progressToken is over %d bytes", maxToken)})
	}
	c := &runningCall{s: s, x: x, access: a, client: ss, tool: tool, asked: map[string]bool{}}
	c.ctx, c.cancelAsking = context.WithCancel(ctx)
	if token := p.GetProgressToken(); token != nil {
		c.progress = startProgress(ctx, func(ctx context.Context, value float64, message string) {
			// A client that is gone is detected by the answer.
			_ = ss.NotifyProgress(ctx,
				&mcp.ProgressNotificationParams{ProgressToken: token, Progress: value, Message: message})
		})
	}
	r, err := s.engine.CallTool(ctx, x.use(a), tool, v1.ToolCall{
		Input: p.Arguments, Session: x.name, Workspace: a.Workspace, ReadOnly: a.ReadOnly, Job: a.Job,
		Template: a.Template, Profile: a.Profile,
	}, c.watch())
	c.cancelAsking()
	c.asking.Wait()
	if c.progress != nil {
		c.progress.finish()
	}
	x.called(r.ID)
	if limited := r.Error != nil && r.Error.RetryAfterMS > 0; (err != nil || limited) && ctx.Err() == nil {
		s.opts.Refused(a.Principal, 1)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx) // the client no longer waits
	case err != nil && listErr != nil:
		return nil, s.protocolError(a, listErr, "failed to list tools")
	case err != nil && !known:
		return nil, unknownTool(p.Name)
	case err != nil:
		return s.failedResult(a, err)
	}
	return result(r), nil
}

// bind returns the context of a call. It ends with the request, with the session, and with the HTTP
// request of the call.
func (x *session) bind(ctx context.Context, a Access) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := []func() bool{context.AfterFunc(x.ctx, func() { cancel(context.Cause(x.ctx)) })}
	if a.post != nil {
		stop = append(stop, context.AfterFunc(a.post.ctx, func() { cancel(context.Cause(a.post.ctx)) }))
	}
	return ctx, func() {
		for _, f := range stop {
			f()
		}
		cancel(context.Canceled)
	}
}

// idempotencyKey returns the idempotency key in a request's _meta, or "".
func idempotencyKey(m mcp.Meta) (string, error) {
	switch v := m[metaKey].(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	}
	return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "_meta " + metaKey + " must be a string"}
}

func (c *runningCall) watch() tool.Watch {
	w := tool.Watch{
		Asked: c.ask,
		Started: func(string) {
			c.cancelAsking()
			if c.progress != nil {
				c.progress.wait("")
			}
		},
	}
	if c.progress != nil {
		w.Output = func(_ string, b []byte) { c.progress.output(b) }
	}
	return w
}

// ask reports an approval request that the call waits for, and asks the user if that is allowed.
func (c *runningCall) ask(a v1.Approval) {
	if c.progress != nil {
		c.progress.wait("waiting for the answer to approval " + plain(a.ID, maxName))
	}
	c.mu.Lock()
	again := c.asked[a.ID]
	c.asked[a.ID] = true
	c.mu.Unlock()
	if again {
		return
	}
	c.asking.Go(func() {
		//nolint:staticcheck // for clients of the revisions that have logging, and that set a level
		_ = c.client.Log(c.ctx, &mcp.LoggingMessageParams{
			Level: "notice", Logger: "orchestrator",
			Data: map[string]any{
				"message": "a call waits for an approval", "approval": a.ID, "tool": c.tool, "rule": a.Rule,
			},
		})
		c.elicit(a)
	})
}

// result converts the result of a call to MCP.
func result(r v1.ToolResult) *mcp.CallToolResult {
	text := r.Text
	meta := mcp.Meta{metaCall: r.ID, metaEnding: r.Ending}
	if r.Error != nil {
		if !strings.Contains(text, r.Error.Message) {
			text = strings.TrimSpace(r.Error.Type + ": " + r.Error.Message + "\n" + text)
		}
		meta[metaError] = r.Error
	}
	for k, v := range map[string]string{metaSandbox: r.SandboxID, metaAsked: r.Approval, metaRest: r.Rest} {
		if v != "" {
			meta[k] = v
		}
	}
	if r.Verdict != nil && r.Verdict.Rule != "" {
		meta[metaRule] = r.Verdict.Rule
	}
	if text == "" {
		text = string(r.Output)
	}
	res := &mcp.CallToolResult{Meta: meta, Content: []mcp.Content{&mcp.TextContent{Text: text}},
		IsError: r.Error != nil}
	if o := strings.TrimSpace(string(r.Output)); strings.HasPrefix(o, "{") {
		res.StructuredContent = json.RawMessage(o)
	}
	if r.Rest != "" {
		res.Content = append(res.Content, outputLink(r.Rest))
	}
	return res
}
