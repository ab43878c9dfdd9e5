package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// Engine is the part of the service that a Server uses. *governed.Service implements it, and so
// does a client of a running server.
type Engine interface {
	Tools(ctx context.Context, p caller.Principal, profile string) ([]v1.Tool, error)
	CallTool(ctx context.Context, p caller.Principal, name string, r v1.ToolCall, w tool.Watch) (v1.ToolResult, error)
	// RefuseCall records a tool call that did not reach CallTool, and returns cause.
	RefuseCall(ctx context.Context, p caller.Principal, name string, body []byte, cause error) error
	CallOutput(ctx context.Context, p caller.Principal, id string, r tool.OutputRequest) (v1.Output, error)
	AnswerApproval(ctx context.Context, p caller.Principal, id string, a v1.ApprovalAnswer) (v1.Approval, error)
	// EndSession removes the sandbox of a session, if it has one.
	EndSession(ctx context.Context, p caller.Principal, session string) error
}

// Defaults of Options.
const (
	DefaultPageSize    = 100
	DefaultSessionIdle = time.Hour
	// DefaultResume suffices for a client that reconnects at once: the official ones wait a second.
	DefaultResume = 5 * time.Second
)

// Limits that keep a caller from exhausting the server.
const (
	maxMessage = 32 << 20 // bytes of a request; over HTTP a smaller limit applies
	// maxParameters bounds the number of URL parameters.
	maxParameters = 64
	// maxParams bounds the parameters of every request except tools/call, as JSON in bytes. The
	// library keeps some of them until the session ends.
	maxParams = 64 << 10
	// maxToken bounds a progress token, in bytes. Every progress notification repeats it.
	maxToken    = 256
	maxSessions = 1024 // at once; each has a goroutine
	maxOfCaller = 256  // of one caller
	maxLost     = 64   // requests of one session whose client left
	endTime     = time.Minute
)

// Options configure a Server. Engine is required.
type Options struct {
	Engine Engine
	// Refused is called before the answer that refuses n tool calls, and may delay it. It may be nil.
	Refused func(p caller.Principal, n int)
	// ForCallers returns the error in err's tree whose text callers who are no operators may read, or
	// nil. By default, they read none but those of a remote service.
	ForCallers func(err error) error
	// Version is sent to clients.
	Version string
	// Access applies to calls on stdio. HTTP requests have their own.
	Access Access
	// NoElicit disables asking a session's user for approvals. ElicitAll asks the user of every
	// session, otherwise only an operator's: the client decides what it answers.
	NoElicit, ElicitAll bool
	// PageSize is the maximum number of tools in a page of tools/list.
	PageSize int
	// SessionIdle is how long an HTTP session without requests is kept.
	SessionIdle time.Duration
	// Requests bounds the concurrent requests of one caller that is not an operator. Zero means
	// DefaultRequests.
	Requests int
	// Resume is how long the calls of a broken HTTP stream continue for a client that resumes.
	Resume time.Duration
	// Hosts are the names by which clients reach the server through a reverse proxy.
	Hosts httpguard.Hosts
	Log   *slog.Logger
}

// Access says for whom calls are made, and where they run.
type Access struct {
	Principal caller.Principal
	// Profile is for operators. The other fields configure the sandbox that the session gets with
	// its first call, as in v1.ToolCall.
	Profile, Workspace, Template, Job string
	ReadOnly                          bool

	post *post // of an HTTP request
}

// Server serves MCP. Use New. Its methods may be called concurrently.
type Server struct {
	opts   Options
	log    *slog.Logger
	engine Engine
	sdk    *mcp.Server
	http   http.Handler

	// stopping ends when a hand-over begins; then new sessions are refused.
	stopping context.Context
	stop     context.CancelCauseFunc

	requests requestLimiter
	results  *httpguard.Budget
	events   *eventStore

	mu       sync.Mutex
	sessions map[*mcp.ServerSession]*session
	ending   sync.WaitGroup // one goroutine per session
}

var errStopping = fmt.Errorf("the service is stopping: %w", errdefs.ErrUnavailable)

const instructions = "Every tool runs inside a sandbox of this session: a disposable container. Files and background " +
	"commands stay from call to call and are gone when the session ends, but for what a workspace keeps.\n" +
	"A long command is best started in the background: read its output from the offset where the last " +
	"reading ended, and kill it when it is no longer needed.\n" +
	"Output that was cut says where the rest can be read. A refused call says which rule refused it; " +
	"asking again does not change that."

// versions are the supported revisions of the protocol, newest first.
var versions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// New returns a server without sessions.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.PageSize <= 0 {
		o.PageSize = DefaultPageSize
	}
	if o.SessionIdle <= 0 {
		o.SessionIdle = DefaultSessionIdle
	}
	if o.Resume <= 0 {
		o.Resume = DefaultResume
	}
	if o.Refused == nil {
		o.Refused = func(caller.Principal, int) {}
	}
	if o.ForCallers == nil {
		o.ForCallers = func(error) error { return nil }
	}
	s := &Server{opts: o, log: o.Log, engine: o.Engine, results: newResultBudget(),
		events: newEventStore(maxEventBytes), sessions: map[*mcp.ServerSession]*session{}}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	s.sdk = mcp.NewServer(&mcp.Implementation{Name: "orchestrator", Title: "Orchestrator", Version: o.Version},
		&mcp.ServerOptions{
			Instructions: instructions,
			Capabilities: &mcp.ServerCapabilities{
				Tools:     &mcp.ToolCapabilities{},
				Logging:   &mcp.LoggingCapabilities{}, //nolint:staticcheck // for the revisions that have logging
				Resources: &mcp.ResourceCapabilities{Subscribe: true}, Prompts: &mcp.PromptCapabilities{},
			},
			CompletionHandler: s.complete, SubscribeHandler: s.subscribe, UnsubscribeHandler: s.unsubscribe,
			SupportedProtocolVersions: versions,
		})
	s.addResources()
	s.addPrompts()
	s.sdk.AddReceivingMiddleware(s.receive)
	s.http = s.newHTTP()
	return s
}

// receive handles requests about sessions and tools. The library handles all others.
func (s *Server) receive(next mcp.MethodHandler) mcp.MethodHandler {
	take := func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		ss, ok := req.GetSession().(*mcp.ServerSession)
		if !ok {
			return next(ctx, method, req)
		}
		if err := checkParams(method, req.GetParams()); err != nil {
			return nil, err
		}
		switch p := req.GetParams().(type) {
		case *mcp.SubscribeParams:
			p.URI = subscribed
		case *mcp.UnsubscribeParams:
			p.URI = subscribed
		case *mcp.InitializeParams:
			//nolint:contextcheck // the session outlives the request
			if err := s.admit(ss, s.access(req)); err != nil {
				return nil, err
			}
		case *mcp.ListToolsParams:
			return s.listTools(ctx, s.access(req), p)
		case *mcp.CallToolParamsRaw:
			return s.callTool(ctx, ss, s.access(req), p)
		}
		return next(ctx, method, req)
	}
	return func(ctx context.Context, method string, req mcp.Request) (_ mcp.Result, err error) {
		defer func() { // the library calls this on its own goroutine, where a panic ends the process
			if p := recover(); p != nil {
				s.log.Error("panic in mcp request", "method", plain(method, maxName), "panic", p, "stack", string(debug.Stack()))
				err = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the service could not do this; its log says why"}
			}
		}()
		if strings.HasPrefix(method, "notifications/") { // they end running requests
			return take(ctx, method, req)
		}
		r, err := s.limit(ctx, take, method, req)
		if err := unanswered(ctx, err); err != nil {
			return nil, err
		}
		return r, nil
	}
}

// subscribed replaces the URI of every subscription, because the library keeps each URI. No
// notifications are sent: see subscribe.
const subscribed = "orchestrator:///"

// checkParams returns an error for parameters that are too large to keep.
func checkParams(method string, p mcp.Params) error {
	if _, call := p.(*mcp.CallToolParamsRaw); call {
		return nil // its parameters are not kept after the call
	}
	b, err := json.Marshal(p)
	if err != nil || len(b) > maxParams {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
			Message: fmt.Sprintf("parameters of %s are over %d bytes", quote(method, maxName), maxParams)}
	}
	return nil
}

// access returns for whom a request is made.
func (s *Server) access(req mcp.Request) Access {
	a := s.opts.Access
	if extra := req.GetExtra(); extra != nil && extra.TokenInfo != nil {
		if of, ok := extra.TokenInfo.Extra[accessKey].(Access); ok {
			a = of
		}
	}
	a.Principal.Via = "mcp"
	return a
}

// Stop begins a hand-over: it refuses new sessions, ends streams that only wait, and ends calls
// whose client is gone. Other calls continue until Close. It may be called more than once.
func (s *Server) Stop() { s.stop(errStopping) }

// Close ends all sessions and their calls, and waits until their sandboxes are removed or ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.Stop()
	s.mu.Lock()
	for ss, x := range s.sessions {
		x.cancel(errStopping)
		s.ending.Go(func() {
			if err := ss.Close(); err != nil {
				s.log.Debug("failed to close mcp session", "session", x.name, "error", err)
			}
		})
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the sessions, whose time is bounded
		s.ending.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("mcp sessions are still open"), context.Cause(ctx))
	}
}
