package mcp

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// DefaultRequests is the default of Options.Requests.
const DefaultRequests = 512

// retryTime is the suggested retry delay, as the end of requests is unknown.
const retryTime = time.Second

// requestLimiter counts running requests by caller. A batch has many requests, and those whose
// client left continue for a while. Operators are not counted. The zero value is ready to use.
type requestLimiter struct {
	mu sync.Mutex
	n  map[string]int
}

// enter counts a request until leave is called, or returns a *caller.QuotaError.
func (l *requestLimiter) enter(p caller.Principal, most int) (leave func(), err error) {
	if p.Operator {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.n[p.Caller]; n >= most {
		return nil, &caller.QuotaError{Quota: "max_requests", Limit: int64(most), Used: int64(n),
			Unit: "requests at once (callers.max_requests)", RetryAfter: retryTime}
	}
	if l.n == nil {
		l.n = map[string]int{}
	}
	l.n[p.Caller]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.n[p.Caller]--; l.n[p.Caller] == 0 {
			delete(l.n, p.Caller)
		}
	}, nil
}

// limit handles a request within the caller's limit, and delays the answer if it is refused. A tool
// call over the limit is recorded. Requests over the limit hold no goroutine while they are
// delayed: the delay is at the end of their POST.
func (s *Server) limit(
	ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request,
) (mcp.Result, error) {
	a := s.access(req)
	defer a.post.begin()()
	call, isCall := req.GetParams().(*mcp.CallToolParamsRaw)
	leave, err := s.requests.enter(a.Principal, cmp.Or(s.opts.Requests, DefaultRequests))
	if err != nil {
		a.post.decide(true)
		if isCall {
			if a.post != nil {
				a.post.in.noteReached(call.Name)
			}
			err = s.engine.RefuseCall(ctx, a.Principal, call.Name, call.Arguments, err)
		}
		return nil, s.protocolError(a, err, "request refused")
	}
	defer leave()
	// The library queues all messages of a session behind initialize, so its answer is not delayed.
	greeting := method == methodInitialize
	if !greeting {
		a.post.decide(false)
	}
	r, err := next(ctx, method, req)
	if err == nil {
		r, err = s.chargeResult(a, r)
	}
	switch {
	case greeting:
		a.post.decide(err != nil)
	case err != nil && !isCall: // callTool delays its own
		s.opts.Refused(a.Principal, 1)
	}
	return r, err
}

// errEvicted is the reason of a session that ends for another caller's.
var errEvicted = errors.New("all sessions are in use, and another caller has fewer")

// sessionToEvict returns the session to end for a new one of caller, or nil. It is an idle session
// of the caller that has the most, and more than this one; the one that is idle longest. The caller
// holds the lock.
func (s *Server) sessionToEvict(caller string) (*mcp.ServerSession, *session) {
	held := map[string]int{}
	for _, x := range s.sessions {
		held[x.caller]++
	}
	var of *mcp.ServerSession
	var out *session
	for ss, x := range s.sessions {
		busy, rested := x.rest()
		if busy || x.operator || held[x.caller] <= held[caller]+1 {
			continue
		}
		if out != nil {
			if _, longest := out.rest(); held[x.caller] < held[out.caller] ||
				held[x.caller] == held[out.caller] && !rested.Before(longest) {
				continue
			}
		}
		of, out = ss, x
	}
	return of, out
}

// rest reports whether something in the session is running, and otherwise since when it is idle.
func (x *session) rest() (busy bool, since time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.busy > 0, x.since
}

// enter marks the session as busy until end is called.
func (x *session) enter() (end func()) {
	x.mu.Lock()
	x.busy++
	x.mu.Unlock()
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.busy--
		x.since = time.Now()
	}
}
