// Package api serves HTTP /v1: it decodes requests, calls the engine, and
// encodes what comes back. It holds no rule of its own.
//
// A handler returns an error; one wrapper answers it as application/problem+json
// (RFC 9457), logs and counts. Serve owns the goroutines of net/http and waits
// for them. Requests are bounded in header time, header size and body size, and
// connections in number.
package api

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

const (
	mcpPath = "/mcp" // where the Model Context Protocol is spoken
	mcpCall = "tools/call"
)

// Bounds of requests.
const (
	maxDrop       = 4 * maxExecBody // of a body that was refused, read and dropped
	maxUnasked    = 64 << 10        // of a body that nobody reads
	maxHeader     = 256 << 10
	headerTime    = 10 * time.Second
	bodyTime      = 2 * time.Minute // for a body that is held in memory
	refusedTime   = 5 * time.Second // for the body of a caller without the token, and to take a piece
	idleTime      = 2 * time.Minute
	heartbeatTime = 15 * time.Second
	takeTime      = 5 * time.Minute // for a client to take a piece of an answer
	leaveTime     = 5 * time.Second // for clients at terminals to be told of a hand-over
)

// Options of a Server; Engine is needed.
type Options struct {
	Engine *engine.Engine
	// Token, if set, has to come with every request but /healthz.
	Token string
	// ShellCaller, if set, switches the readonly system's POST /shell on, which takes
	// no token. It is the caller whose commands these are.
	ShellCaller string
	// MCP answers what comes to /mcp, for the caller; nil: there is no such path.
	MCP interface {
		Serve(w http.ResponseWriter, r *http.Request, p engine.Principal)
		// Refuse records the tool calls of a request that is refused before Serve.
		Refuse(w http.ResponseWriter, r *http.Request, p engine.Principal, cause error) error
	}
	// Bodies bounds the memory that bodies of requests take.
	Bodies BodyBudget
	// MaxRequests and MaxStreams are how many requests a caller other than an operator
	// has at once, and how many of them last: events, terminals, tunnels. Zero
	// means a share of the connections.
	MaxRequests, MaxStreams int
	// Refusals delays answers to refused requests. If it is nil, the server makes its own.
	Refusals *RefusalPacer
	// Down is called once to take everything down after POST /v1/down.
	Down func()
	Log  *slog.Logger
}

// Server answers requests.
type Server struct {
	opts Options
	log  *slog.Logger
	mux  *http.ServeMux
	// stall is takeTime and beat heartbeatTime but in tests.
	stall, beat time.Duration
	conns       *connLimiter
	// bodies is what bodies hold, pace how fast they have to come.
	bodies *budget
	pace   pace
	// terminals are the connections that net/http does not wait for.
	terminals sync.WaitGroup
	// soon ends when a hand-over begins: who only waits for output is let go
	// at once, and asks the next process.
	soon    context.Context
	handing context.CancelCauseFunc
}

// New returns a server that listens nowhere yet.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Refusals == nil {
		o.Refusals = NewRefusalPacer()
	}
	s := &Server{opts: o, log: o.Log, mux: http.NewServeMux(), stall: takeTime, beat: heartbeatTime, bodies: newBudget(o.Bodies), pace: defaultPace()}
	s.conns = newConnLimiter(boundsOf(openFiles(), o.MaxRequests, o.MaxStreams), o.Log)
	s.soon, s.handing = context.WithCancelCause(context.Background())
	for _, r := range s.routes() {
		s.mux.Handle(strings.TrimPrefix(r.method+" "+r.path, " "), s.wrap(r))
	}
	if o.MCP != nil {
		s.mux.Handle(mcpPath, s.wrap(route{path: mcpPath, handle: s.talk, takes: bodyHeld, limit: maxMCPBody, twice: true, refused: o.MCP.Refuse}))
	}
	s.mux.Handle("/", s.wrap(route{handle: s.unknown}))
	return s
}

// Handler is the server without a listener.
func (s *Server) Handler() http.Handler { return s.mux }

// Serve answers on l until ctx ends, then waits up to grace for requests under
// way and cuts the rest: their contexts end, and their commands are killed.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	h := &http.Server{
		Handler: s.mux, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base }, ConnContext: s.conns.context, ConnState: s.conns.state,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve(limitedListener{l, s.conns}) }() // waited for below
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.handing(errStopping)
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := h.Shutdown(wait); err != nil {
		cut(errStopping)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if h.Shutdown(last) != nil {
			h.Close() //nolint:errcheck // there is nobody left to tell
		}
	}
	s.leaveTerminals()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// leaveTerminals waits until clients at terminals were told to come back, or
// do not listen.
func (s *Server) leaveTerminals() {
	told := make(chan struct{})
	go func() { // it ends with the last of them
		defer close(told)
		s.terminals.Wait()
	}()
	select {
	case <-told:
	case <-time.After(leaveTime):
	}
}

var errStopping = usererror.Errorf(errdefs.ErrUnavailable, "the service is stopping")

// untilStop is for requests that only wait: their context ends as soon as a
// hand-over begins.
func (s *Server) untilStop(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.soon, func() { cancel(context.Cause(s.soon)) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}

// handler is a route's code: it writes an answer or returns an error, not both.
type handler func(w http.ResponseWriter, r *http.Request, p engine.Principal) error

type route struct {
	method, path string // no method: every one
	handle       handler
	// open routes need no token, and have no caller; operator routes are not for
	// callers who are no operators.
	open, operator bool
	// direct routes run or write without a tool: see engine.Direct.
	direct bool
	// takes is what the route does with a body, unless body says it. limit bounds a body that is held
	// in memory; 0 is maxBody. A body is charged twice where carrying it out copies it.
	takes bodyKind
	limit int64
	twice bool
	// refused records that a tool call was not handed to handle; nil: it is none.
	refused func(w http.ResponseWriter, r *http.Request, p engine.Principal, err error) error
	// summary, body and answer are for /openapi.json.
	summary      string
	query        []string
	body, answer any
}

// wrap checks the token, calls the handler and answers its error.
func (s *Server) wrap(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		out := newAnswer(w, s.stall)
		defer out.last()
		p, err := s.identify(r)
		if err != nil { // for nobody in particular little is waited
			out.stall = min(out.stall, refusedTime)
		}
		if rt.open && errors.Is(err, errUnauthenticated) { // credentials that are no good are refused here too
			p, err = engine.Principal{}, nil
		}
		end, full := s.conns.begin(r, s.holder(rt, r, p))
		defer end()
		if err == nil && full != nil {
			err, out.stall = rt.refuse(w, r, p, full), min(out.stall, refusedTime)
		}
		out.seen = func(err error) error {
			if ctx := r.Context(); ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
				err = fmt.Errorf("%w: %w", context.Canceled, err) // nobody is there to be told
			}
			return seen(p, s.log, err)
		}
		if err == nil && rt.operator {
			err = p.Operate("use " + rt.method + " " + rt.path)
		}
		if err == nil && rt.direct {
			err = s.opts.Engine.Direct(p, "use "+rt.method+" "+rt.path)
		}
		if err == nil && rt.kind() == bodyNone && r.ContentLength != 0 {
			err = dropBody(out, r)
		}
		if err == nil {
			s.serve(out, r, rt, p)
		} else {
			// net/http takes what is left of the body off him before it answers.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedTime)) // any connection can
			w.Header().Set("Connection", "close")
			s.paceRefusal(p, err, 1)
			s.fail(out, r, err)
		}
		s.log.Debug("request", "method", r.Method, "route", rt.path, "caller", p.Caller, "status", out.status, "took", time.Since(began))
	})
}

// serve calls a route's handler and answers its error. What the body took of the budget is given
// back.
func (s *Server) serve(out *answer, r *http.Request, rt route, p engine.Principal) {
	r, in := s.receive(out, r, rt, p)
	defer in.leave()
	defer in.release()
	if err := handle(out, r, rt.handle, p); err != nil {
		in.refuse()
		in.release()
		s.paceRefusal(p, err, 1+in.taken/refusalBytes)
		s.fail(out, r, err)
		in.drop()
	}
}

// paceRefusal counts a request that the caller's own fault made fail as n refusals, and waits until
// it may be answered. A connection over the limit is answered at once, because it ends by that.
func (s *Server) paceRefusal(p engine.Principal, err error, n int) {
	if _, over := errors.AsType[*connectionError](err); !over && problem(err).Status < http.StatusInternalServerError {
		s.opts.Refusals.Wait(p, n)
	}
}

// holder is whom a request counts for. Commands of clients without a token count
// for the caller they run as, whatever else their sender may do.
func (s *Server) holder(rt route, r *http.Request, p engine.Principal) engine.Principal {
	if rt.path == shellCompatRoute && p.Token == "" && fromHere(r) == nil {
		return engine.Principal{Caller: s.opts.ShellCaller}
	}
	return p
}

// refuse records the refusal of a tool call that its handler does not see, and
// returns the reason.
func (rt route) refuse(w http.ResponseWriter, r *http.Request, p engine.Principal, err error) error {
	if rt.refused == nil {
		return err
	}
	return rt.refused(w, r, p, err)
}

// dropBody takes a body off a client that none is wanted from. Otherwise
// net/http would do that before the answer, and wait for as long as it likes.
func dropBody(w http.ResponseWriter, r *http.Request) error {
	ctl := http.NewResponseController(w)
	_ = ctl.SetReadDeadline(time.Now().Add(refusedTime)) // any connection can
	if _, err := io.CopyN(io.Discard, r.Body, maxUnasked); !errors.Is(err, io.EOF) {
		return &strictjson.FieldError{Field: "body", Message: fmt.Sprintf("of %s is not read, and is too long or did not come: send none", r.Method)}
	}
	_ = ctl.SetReadDeadline(time.Time{}) // it would end the request's context
	return nil
}

// handle calls a handler. A panic in it is an error as others are: it is
// logged and answered.
func handle(w http.ResponseWriter, r *http.Request, h handler, principal engine.Principal) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler: // how an answer that has begun is cut
			panic(p)
		default:
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return h(w, r, principal)
}

// identify finds out who calls. A token that the service made stands for its
// caller wherever it comes in. Without an Authorization header the caller is the
// local operator where the service has no token of its own. With it, only the
// service's own token makes one an operator.
func (s *Server) identify(r *http.Request) (engine.Principal, error) {
	got, given, err := bearerToken(r.Header)
	p := engine.Local("")
	switch {
	case err != nil:
		return engine.Principal{}, err
	case !given && s.opts.Token != "":
		return engine.Principal{}, errUnauthenticated
	case !given:
	case s.opts.Token != "" && subtle.ConstantTimeCompare([]byte(got), []byte(s.opts.Token)) == 1:
	case !strings.HasPrefix(got, engine.TokenPrefix):
		return engine.Principal{}, engine.ErrToken
	default:
		if p, err = s.opts.Engine.Identify(r.Context(), got); err != nil {
			return engine.Principal{}, err
		}
	}
	p.Key, p.Via = r.Header.Get("Idempotency-Key"), "http"
	return p, nil
}

// talk forwards a request of the Model Context Protocol, which has its own form for errors. A body
// that is not taken may be a tool call, and is recorded as one.
func (s *Server) talk(w http.ResponseWriter, r *http.Request, p engine.Principal) error {
	if in, ok := r.Body.(*callBody); ok {
		raw, err := in.hold()
		if err != nil {
			p.Via = "mcp"
			return s.refuseCall(r, p, mcpCall, nil, err)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	}
	s.opts.MCP.Serve(w, r, p)
	if out, ok := w.(*answer); ok && out.status >= http.StatusBadRequest {
		s.opts.Refusals.Wait(p, 1) // net/http sends a short answer after the handler
	}
	return nil
}

// unknown answers what is no route.
func (s *Server) unknown(_ http.ResponseWriter, r *http.Request, _ engine.Principal) error {
	return usererror.Errorf(errdefs.ErrNotFound, "there is no %s %s: see /openapi.json", r.Method, r.URL.Path)
}
