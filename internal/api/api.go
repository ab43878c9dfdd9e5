// Package api serves the HTTP interface below /v1. Handlers decode a request, call the engine and
// encode its result. Rules belong to the engine.
//
// A handler writes an answer or returns an error. One wrapper answers errors as
// application/problem+json (RFC 9457), logs requests and counts them. Serve starts the goroutines
// of net/http and waits for them. Package httpguard bounds what clients can take.
package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
	"github.com/sandbox-orchestrator/orchestrator/internal/ui"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

const (
	mcpPath = "/mcp" // path of the Model Context Protocol
	// readyPath answers errors with more than a problem.
	readyPath = "/readyz"
	mcpCall   = "tools/call"
	// unansweredCall is the action of tool calls that are refused without an answer.
	unansweredCall = "unanswered"
)

// Limits of bodies that are held in memory, in bytes. A route without a limit has maxBody.
const (
	maxBody     = 1 << 20
	maxToolBody = 24 << 20 // the largest input fits, and an input that is one byte larger gets its own error
	maxMCPBody  = 17 << 20 // the largest input fits
	maxExecBody = 32 << 20 // the largest stdin fits in base64
)

// Limits of requests, in bytes and as durations.
const (
	maxHeader     = 64 << 10 // read before the caller is known
	headerTime    = 10 * time.Second
	idleTime      = 2 * time.Minute
	heartbeatTime = 15 * time.Second
	takeTime      = 5 * time.Minute // for a client to accept a piece of an answer
	leaveTime     = 5 * time.Second // to tell clients at terminals that the service restarts
)

// Options configure a Server. Engine is required.
type Options struct {
	Engine *engine.Engine
	// Token, if set, is required in every request except those to open routes, such as /healthz.
	Token string
	// TLS, if set, encrypts the connections. It must offer HTTP/1.1 only.
	TLS *tls.Config
	// Trusts, if set, reports whether a client's verified chains are still accepted: the authorities
	// may have changed since the handshake.
	Trusts func(chains [][]*x509.Certificate) bool
	// ShellCaller, if set, enables POST /shell of the readonly system, which needs no token. Its
	// commands run as this caller.
	ShellCaller string
	// MCP serves /mcp. If nil, the path does not exist.
	MCP interface {
		// Serve answers a request. It calls over once, when nothing holds the request's body any more.
		Serve(w http.ResponseWriter, r *http.Request, p caller.Principal, over func())
		// Refuse records the tool calls of a request that is refused before Serve.
		Refuse(w http.ResponseWriter, r *http.Request, p caller.Principal, cause error) error
	}
	// Hosts are the names by which clients reach the service through a reverse proxy.
	Hosts httpguard.Hosts
	// Bodies and CallerBodies bound the memory of request bodies, in bytes: of all callers together,
	// and of each. Zero means the defaults of httpguard.
	Bodies, CallerBodies int64
	// MaxRequests and MaxStreams bound the concurrent requests of one caller that is not an
	// operator. Streams are requests that last: events, terminals, tunnels. Zero means a share of
	// the connections.
	MaxRequests, MaxStreams int
	// Refusals delays answers to refused requests. If it is nil, the server makes its own.
	Refusals *httpguard.RefusalPacer
	// Metrics serves GET /metrics to operators. If nil, there are none.
	Metrics http.Handler
	// Sessions are the sessions of the dashboard. If nil, /ui does not exist and cookies mean nothing.
	Sessions *ui.Sessions
	// Tracer makes a trace of each request that runs something. If nil, there are none.
	Tracer *tracing.Tracer
	// Down is called once after POST /v1/down, to destroy everything and stop the service.
	Down func()
	Log  *slog.Logger
}

// Server serves HTTP requests. Its methods may be called concurrently.
type Server struct {
	opts Options
	log  *slog.Logger
	mux  *http.ServeMux
	// replaced is the token of SetToken, or nil.
	replaced atomic.Pointer[string]
	// stall is takeTime and beat is heartbeatTime, except in tests.
	stall, beat time.Duration
	pages       ui.Files // of the dashboard
	conns       *httpguard.ConnLimiter
	// bodies counts the memory of bodies. pace is the minimum speed at which they must arrive.
	bodies *httpguard.Budget
	pace   httpguard.Pace
	// answers counts the memory of answers until they are written.
	answers *httpguard.Budget
	// description returns the answer of /openapi.json.
	description func() ([]byte, error)
	// terminals counts hijacked connections, for which net/http does not wait.
	terminals sync.WaitGroup
	// handOver ends when a hand-over begins. Requests that only wait for output then end at once, and
	// their clients ask the next process.
	handOver      context.Context
	beginHandOver context.CancelCauseFunc
}

// New returns a server that does not listen yet.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Refusals == nil {
		o.Refusals = httpguard.NewRefusalPacer()
	}
	s := &Server{
		opts: o, log: o.Log, mux: http.NewServeMux(), stall: takeTime, beat: heartbeatTime,
		bodies: httpguard.NewBodyBudget(o.Bodies, o.CallerBodies), pace: httpguard.DefaultPace(),
		answers: httpguard.NewAnswerBudget(),
		conns:   httpguard.NewConnLimiter(httpguard.HostBounds(o.MaxRequests, o.MaxStreams), o.Log),
	}
	s.handOver, s.beginHandOver = context.WithCancelCause(context.Background())
	s.description = sync.OnceValues(s.describe)
	for _, r := range s.routes() {
		r.session = !r.foreign
		s.mux.Handle(strings.TrimPrefix(r.method+" "+r.path, " "), s.wrap(r))
	}
	if o.Sessions != nil {
		s.pages = ui.NewFiles()
		for _, r := range s.uiRoutes() {
			s.mux.Handle(r.method+" "+r.path, s.wrap(r))
		}
	}
	if o.MCP != nil {
		s.mux.Handle(mcpPath, s.wrap(route{
			path: mcpPath, handle: s.serveMCP, takes: bodyHeld, limit: maxMCPBody, twice: true, refused: o.MCP.Refuse,
		}))
	}
	s.mux.Handle("/", s.wrap(route{handle: s.unknown}))
	return s
}

// Serve serves l until ctx ends. It then waits up to grace for running requests and cancels the
// rest: their contexts end, and their commands are killed.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	h := &http.Server{
		Handler: s.mux, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	l = s.conns.Limit(h, l)
	if s.opts.TLS != nil { // outside of the limit, so that net/http sees the certificates
		l = tls.NewListener(l, s.opts.TLS)
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }() // received below
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.beginHandOver(errStopping)
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := h.Shutdown(wait); err != nil {
		cut(errStopping)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if h.Shutdown(last) != nil {
			h.Close()
		}
	}
	s.leaveTerminals()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// leaveTerminals waits until clients at terminals were told to attach again, at most leaveTime.
func (s *Server) leaveTerminals() {
	told := make(chan struct{})
	go func() { // ends with the last terminal
		defer close(told)
		s.terminals.Wait()
	}()
	select {
	case <-told:
	case <-time.After(leaveTime):
	}
}

var errStopping = usererror.Errorf(errdefs.ErrUnavailable, "the service is stopping")

// untilStop returns a context for a request that only waits: it ends when the request ends or a
// hand-over begins.
func (s *Server) untilStop(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.handOver, func() { cancel(context.Cause(s.handOver)) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}

// handler serves a route. It writes an answer or returns an error, never both.
type handler func(w http.ResponseWriter, r *http.Request, p caller.Principal) error

type route struct {
	method, path string // method "": all methods
	handle       handler
	// open routes need no token and have no caller. operator routes are for operators only.
	open, operator bool
	// foreign routes answer with what a server in a sandbox wrote, which a browser could run as a
	// page of the service. They are not for sessions of the dashboard; session routes are.
	foreign, session bool
	// stream routes last until their client leaves, and count as streams of their caller.
	stream bool
	// direct routes run commands or write files without a tool: see engine.Direct.
	direct bool
	// takes says how the route reads a body; if it is bodyNone, body decides. limit bounds a body
	// that is held in memory (0: maxBody). twice charges a body twice, because the route copies it.
	takes bodyKind
	limit int64
	twice bool
	// refused records a tool call that did not reach handle. It is nil for routes that are not tool
	// calls.
	refused func(w http.ResponseWriter, r *http.Request, p caller.Principal, err error) error
	// The following fields describe the route in /openapi.json. id is the operation's id, by default
	// the handler's name. status is that of a success, by default 200, or 204 without an answer. also
	// are the forms that a client can ask for instead of answer. upgrade routes answer with 101.
	id           string
	summary      string
	query        []string
	needs        []string // of query, those that are required
	body, answer any
	status       int
	also         []answerForm
	upgrade      bool
	// methods are those to describe of a route for all methods.
	methods []string
}

// bodyKind says how a route reads a body.
type bodyKind int

const (
	bodyNone   bodyKind = iota // not read
	bodyHeld                   // held in memory, within the route's limit and the budget
	bodyUpload                 // streamed; fails if nothing arrives for the stall time
	bodyStream                 // streamed without a deadline: stdin of commands, requests to servers in sandboxes
)

func (rt route) kind() bodyKind {
	switch {
	case rt.takes != bodyNone:
		return rt.takes
	case rt.body != nil:
		return bodyHeld
	}
	return bodyNone
}

// wrap returns the handler of a route. It identifies the caller, checks the limits, calls the
// route's handler and answers its error.
func (s *Server) wrap(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		out := &answer{Answer: httpguard.NewAnswer(w, s.stall)}
		defer out.Last()
		r, endSpan := s.opts.Tracer.Request(out.number(r), strings.TrimSpace(rt.method+" "+rt.path))
		defer func() { endSpan(out.Status()) }()
		p, err := s.identify(rt, r)
		if err != nil { // do not wait long for an unknown client
			out.Hurry()
		}
		if rt.open && errors.Is(err, errUnauthenticated) { // invalid credentials are refused here too
			p, err = caller.Principal{}, nil
		}
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		out.ChargeTo(s.answers, p, reads)
		if p.Via == uiVia {
			ui.Secure(w.Header(), ui.DataPolicy)
			w.Header().Set("Cache-Control", "no-store")
		}
		end, full := s.conns.Begin(r, s.holder(rt, r, p), rt.stream || isStream(r))
		defer end()
		if full == nil && !reads && !p.Operator { // refuse before the request changes something
			full = s.answers.Check(p, 0)
		}
		if err == nil && p.Token != "" && !s.opts.Engine.Callers.Valid(p.Token) {
			err = caller.ErrToken // it was revoked before Begin registered the connection
		}
		if err == nil && full != nil {
			s.paceConnection(r, rt, p, full)
			out.Hurry()
			err = rt.refuse(w, r, p, full)
		}
		out.redact = func(err error) error { return s.redact(r, p, err) }
		if err == nil && rt.operator {
			err = p.Operate("use " + rt.method + " " + rt.path)
		}
		if err == nil && rt.direct {
			err = s.opts.Engine.Governed.Direct(p, "use "+rt.method+" "+rt.path)
		}
		if err == nil && rt.kind() == bodyNone && r.ContentLength != 0 {
			err = httpguard.DropBody(out, r)
		}
		if err == nil {
			s.serve(out, r, rt, p)
		} else {
			// Bound how long net/http waits for the rest of the body before it answers. Every
			// connection supports deadlines.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(httpguard.RefusedTime))
			w.Header().Set("Connection", "close")
			s.paceRefusal(p, err, 1)
			s.fail(out, r, err)
		}
		s.logger(r).Debug("request", "method", r.Method, "route", rt.path, "caller", p.Caller, "status", out.Status(),
			"took", time.Since(began))
	})
}

// serve calls a route's handler, answers its error, and returns the body's memory to the budget.
func (s *Server) serve(out *answer, r *http.Request, rt route, p caller.Principal) {
	if err := s.resolveID(r, rt, p); err != nil {
		s.paceRefusal(p, err, 1)
		s.fail(out, r, err)
		return
	}
	r, in := s.receive(out, r, rt, p)
	defer in.BoundRest()
	defer in.Release()
	if err := handle(out, r, rt.handle, p); err != nil {
		in.Refuse()
		in.Release()
		s.paceRefusal(p, err, in.Weight())
		s.fail(out, r, err)
		in.DiscardRest()
	}
}

// receive replaces the body of a request by one that is read as its route says.
func (s *Server) receive(
	w http.ResponseWriter, r *http.Request, rt route, p caller.Principal,
) (*http.Request, *httpguard.Body) {
	o := httpguard.BodyOptions{
		Limit: cmp.Or(rt.limit, maxBody), Twice: rt.twice, Budget: s.bodies, Pace: s.pace, Refusals: s.opts.Refusals,
	}
	if rt.kind() == bodyUpload {
		o.Stall = s.stall
	}
	return httpguard.Receive(w, r, p, o)
}

// paceRefusal counts n refusals of the caller and waits until the request may be answered. It does
// not count errors of the service, and not connections over the limit, because those end with the
// answer. If too many requests without a caller wait, it ends this one without an answer: a waiting
// request keeps its memory even after its connection was evicted.
func (s *Server) paceRefusal(p caller.Principal, err error, n int) {
	_, over := errors.AsType[*httpguard.ConnectionError](err)
	if !over && problem(err).Status < http.StatusInternalServerError &&
		!s.opts.Refusals.WaitAmong(p, n, s.conns.AnonymousShare()) {
		panic(http.ErrAbortHandler)
	}
}

// paceConnection ends the request without an answer if its connection is over the limit, and too
// many such connections are open or its caller gets too many refusals. A tool call is then only
// counted.
func (s *Server) paceConnection(r *http.Request, rt route, p caller.Principal, err error) {
	e, over := errors.AsType[*httpguard.ConnectionError](err)
	if !over || !e.Drop && s.opts.Refusals.Allow(p) {
		return
	}
	if rt.refused != nil {
		s.opts.Engine.Governed.CountRefusal(r.Context(), p, unansweredCall, err)
	}
	panic(http.ErrAbortHandler)
}

// holder returns the caller that a request counts for. A command without a token counts for the
// caller that it runs as, even if its sender has more rights.
func (s *Server) holder(rt route, r *http.Request, p caller.Principal) caller.Principal {
	if rt.path == shellCompatRoute && p.Token == "" && checkLocal(r) == nil {
		return caller.Principal{Caller: s.opts.ShellCaller}
	}
	return p
}

// refuse records the refusal of a tool call that does not reach its handler, and returns the error
// to answer.
func (rt route) refuse(w http.ResponseWriter, r *http.Request, p caller.Principal, err error) error {
	if rt.refused == nil {
		return err
	}
	return rt.refused(w, r, p, err)
}

// handle calls a handler and returns a panic in it as an error, which is logged and answered.
// http.ErrAbortHandler aborts an answer that has begun, and is passed on.
func handle(w http.ResponseWriter, r *http.Request, h handler, principal caller.Principal) error {
	err := recovered(func() error { return h(w, r, principal) })
	if err == http.ErrAbortHandler { // the value that was passed to panic
		panic(err)
	}
	return err
}

// recovered calls f and returns a panic in it as an error. Use it on every goroutine, where a panic
// would end the process.
func recovered(f func() error) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			err = http.ErrAbortHandler
		default:
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// wholeBody is a body in memory. Bytes returns all of it.
type wholeBody struct {
	*bytes.Reader
	raw []byte
}

// Bytes returns the whole body, which must not be changed.
func (b wholeBody) Bytes() []byte { return b.raw }

// Close implements io.Closer.
func (b wholeBody) Close() error { return nil }

// serveMCP forwards a request of the Model Context Protocol, which answers errors in its own form.
// A body that is refused may be a tool call, so it is recorded as one.
func (s *Server) serveMCP(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	over := func() {}
	if in, ok := r.Body.(*httpguard.Body); ok {
		raw, err := in.Hold()
		if err != nil {
			p.Via = "mcp"
			return s.refuseCall(r, p, mcpCall, nil, err)
		}
		r.Body, r.ContentLength = wholeBody{bytes.NewReader(raw), raw}, int64(len(raw))
		over = in.Detach()
	}
	s.opts.MCP.Serve(w, r, p, over)
	if out, ok := w.(*answer); ok && out.Status() >= http.StatusBadRequest {
		s.opts.Refusals.Wait(p, 1) // net/http sends a short answer after the handler
	}
	return nil
}

// unknown answers requests that match no route.
func (s *Server) unknown(_ http.ResponseWriter, r *http.Request, _ caller.Principal) error {
	return usererror.Errorf(errdefs.ErrNotFound, "route %s %s not found: see /openapi.json", r.Method, r.URL.Path)
}
