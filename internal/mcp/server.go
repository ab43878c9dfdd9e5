package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

// Engine is what a Server needs of the service. *engine.Engine is one; a
// client of a running server is another.
type Engine interface {
	Tools(ctx context.Context, p engine.Principal, profile string) ([]v1.Tool, error)
	CallTool(ctx context.Context, p engine.Principal, name string, r v1.ToolCall, w engine.Watch) (v1.ToolResult, error)
	// RefuseCall records a tool call that did not get to CallTool, and returns cause.
	RefuseCall(ctx context.Context, p engine.Principal, name string, body []byte, cause error) error
	CallOutput(ctx context.Context, p engine.Principal, id string, r engine.OutputRequest) (v1.Output, error)
	AnswerApproval(ctx context.Context, p engine.Principal, id string, a v1.ApprovalAnswer) (v1.Approval, error)
	// EndSession removes the sandbox of a session, if it has one.
	EndSession(ctx context.Context, p engine.Principal, session string) error
}

// Defaults of Options.
const (
	DefaultPageSize    = 100
	DefaultSessionIdle = time.Hour
	// DefaultResume is enough for a client that comes back at once: the
	// official ones wait for a second.
	DefaultResume = 5 * time.Second
)

// Bounds that keep a caller from using the server up.
const (
	maxMessage = 32 << 20 // a request; over HTTP the interface takes less
	// maxParameters bounds the parameters of a URL.
	maxParameters = 64
	// maxParams bounds the parameters of every request but tools/call, as JSON in bytes: the library
	// keeps some of them for as long as the session lasts.
	maxParams = 64 << 10
	// maxToken bounds a progress token, which each message about progress repeats, in bytes.
	maxToken    = 256
	maxSessions = 1024 // at once; each is a goroutine until it calls something
	maxOfCaller = 256  // of them
	maxLost     = 64   // requests of a session whose client left, at once
	endTime     = time.Minute
)

// Options of a Server. Engine is needed.
type Options struct {
	Engine Engine
	// Refused is called before the answer that refuses n tool calls, and may delay it. It may be nil.
	Refused func(p engine.Principal, n int)
	// Version is told to clients.
	Version string
	// Access is whose calls those on stdio are. HTTP brings its own.
	Access Access
	// NoElicit never asks a session's user for approvals. ElicitAll asks the
	// user of any session, otherwise only an operator's: an elicited answer is
	// only as good as the client that gives it.
	NoElicit, ElicitAll bool
	// PageSize is how many tools a page of tools/list has at most.
	PageSize int
	// SessionIdle ends an HTTP session that asks nothing for so long.
	SessionIdle time.Duration
	// Requests is how many requests of one caller are under way at once, unless it
	// is an operator; zero is DefaultRequests.
	Requests int
	// Resume is how long calls whose HTTP stream was lost run on for a client
	// that comes back for the rest.
	Resume time.Duration
	// Origins are those, besides the server's own, whose pages may call it:
	// "https://example.com".
	Origins []string
	Log     *slog.Logger
}

// Access says as whom calls are made, and where they run.
type Access struct {
	Principal engine.Principal
	// Profile is for operators. The others are for the sandbox that the session
	// gets with its first call, as in v1.ToolCall.
	Profile, Workspace, Template, Job string
	ReadOnly                          bool

	post *post // of an HTTP request
}

// Server speaks MCP. Use New.
type Server struct {
	opts   Options
	log    *slog.Logger
	engine Engine
	sdk    *mcp.Server
	http   http.Handler

	// stopping ends when a hand-over begins: nothing new is taken.
	stopping context.Context
	stop     context.CancelCauseFunc

	requests requestLimiter

	mu       sync.Mutex
	sessions map[*mcp.ServerSession]*session
	ending   sync.WaitGroup // a goroutine for each of them
}

var errStopping = fmt.Errorf("the service is stopping: %w", errdefs.ErrUnavailable)

const instructions = `Every tool runs inside a sandbox of this session: a disposable container. Files and background commands stay from call to call and are gone when the session ends, but for what a workspace keeps.
A long command is best started in the background: read its output from the offset where the last reading ended, and kill it when it is no longer needed.
Output that was cut says where the rest can be read. A refused call says which rule refused it; asking again does not change that.`

// versions of the protocol that have sessions, the newest first.
var versions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// New returns a server without a session.
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
		o.Refused = func(engine.Principal, int) {}
	}
	s := &Server{opts: o, log: o.Log, engine: o.Engine, sessions: map[*mcp.ServerSession]*session{}}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	s.sdk = mcp.NewServer(&mcp.Implementation{Name: "orchestrator", Title: "Orchestrator", Version: o.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{}, Logging: &mcp.LoggingCapabilities{}, //nolint:staticcheck // logging is for the revisions that have it
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

// receive takes what concerns sessions and tools; the library does the rest.
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
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if strings.HasPrefix(method, "notifications/") { // they end what is under way
			return take(ctx, method, req)
		}
		return s.limit(ctx, take, method, req)
	}
}

// subscribed stands for whatever a client subscribes to. The library keeps each URI, and nobody is
// told of any: see subscribe.
const subscribed = "orchestrator:///"

// checkParams refuses parameters that are too large to be kept.
func checkParams(method string, p mcp.Params) error {
	if _, call := p.(*mcp.CallToolParamsRaw); call {
		return nil // they end with the call
	}
	b, err := json.Marshal(p)
	if err != nil || len(b) > maxParams {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("parameters of %s are over %d bytes", quote(method, maxName), maxParams)}
	}
	return nil
}

// access is as whom a request was made.
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

// Stop begins a hand-over: new sessions are refused, streams that only wait
// are let go, and a call whose client is gone ends at once. Calls under way go
// on until Close. It may be called more than once.
func (s *Server) Stop() { s.stop(errStopping) }

// Close ends all sessions and what they run, and waits until their sandboxes
// are removed, or ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.Stop()
	s.mu.Lock()
	for ss, x := range s.sessions {
		x.cancel(errStopping)
		s.ending.Go(func() {
			if err := ss.Close(); err != nil {
				s.log.Debug("mcp session not closed", "session", x.name, "error", err)
			}
		})
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the sessions, each of which is bounded
		s.ending.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("mcp sessions have not all ended"), context.Cause(ctx))
	}
}
