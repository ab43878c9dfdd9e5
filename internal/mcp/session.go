package mcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// keptCalls is how many ids of earlier calls a session keeps for completion.
const keptCalls = 100

var (
	errEnded = errors.New("the client ended the session")
	errGone  = errors.New("the client went away")
)

// session is one MCP session. name is its session in the engine.
type session struct {
	name     string
	caller   string
	operator bool
	holder   string
	// ctx ends with the session and cancels its calls.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	busy   int       // running calls
	since  time.Time // the last end of a call
	used   bool      // a tool was called
	access Access
	names  names
	calls  []string
	// lost are requests whose HTTP stream broke. resumed counts the connections that resume a stream,
	// by the stream's id.
	lost    []*post
	resumed map[string]int
}

// admit opens the session of a client that initializes.
func (s *Server) admit(ss *mcp.ServerSession, a Access) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Err() != nil {
		return refusal("the service is stopping")
	}
	if _, ok := s.sessions[ss]; ok {
		return nil // the library refuses a second initialize
	}
	own := 0
	for _, x := range s.sessions {
		if x.caller == a.Principal.Caller {
			own++
		}
	}
	full := len(s.sessions) >= maxSessions && !a.Principal.Operator
	if full && own < maxOfCaller {
		if other, x := s.sessionToEvict(a.Principal.Caller); x != nil {
			full = false
			x.cancel(errEvicted)
			delete(s.sessions, other)
			s.ending.Go(func() {
				if err := other.Close(); err != nil {
					s.log.Debug("failed to close mcp session", "session", x.name, "error", err)
				}
			})
		}
	}
	if own >= maxOfCaller || full {
		return refusal(fmt.Sprintf("too many sessions: you have %d of at most %d, all callers %d of %d; "+
			"end some (DELETE), or wait until idle ones end", own, maxOfCaller, len(s.sessions), maxSessions))
	}
	x := &session{
		name: "mcp-" + strings.ToLower(rand.Text()), caller: a.Principal.Caller, operator: a.Principal.Operator,
		holder: holder(a.Principal), since: time.Now(),
	}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	s.sessions[ss] = x
	s.ending.Go(func() { s.awaitEnd(ss, x) })
	return nil
}

// refusal returns a protocol error.
func refusal(message string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: message}
}

// session returns the session of a client that has initialized.
func (s *Server) session(ss *mcp.ServerSession) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.sessions[ss]; ok {
		return x, nil
	}
	return nil, refusal("session not found: initialize first")
}

// byID returns the session that an HTTP header names, or nil.
func (s *Server) byID(id string) *session {
	if id == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss, x := range s.sessions {
		if ss.ID() == id {
			return x
		}
	}
	return nil
}

// awaitEnd waits for the end of a session and removes its sandbox.
func (s *Server) awaitEnd(ss *mcp.ServerSession, x *session) {
	if err := ss.Wait(); err != nil {
		s.log.Debug("mcp session ended with an error", "session", x.name, "error", err)
	}
	x.cancel(errEnded)
	x.mu.Lock()
	used, p := x.used, x.access.Principal
	x.mu.Unlock()
	if used {
		p.Key = ""
		ctx, cancel := context.WithTimeoutCause(context.Background(), endTime,
			fmt.Errorf("the session's sandbox was not removed within %s", endTime))
		defer cancel()
		// NotFound means that the sandbox is gone or was never created.
		if err := s.engine.EndSession(ctx, p, x.name); err != nil && !errdefs.IsNotFound(err) {
			s.log.Warn("failed to remove sandbox of mcp session", "session", x.name,
				"error", errors.Join(err, context.Cause(ctx)))
		}
	}
	s.mu.Lock()
	delete(s.sessions, ss)
	s.mu.Unlock()
}

// use records a call and its caller.
func (x *session) use(a Access) caller.Principal {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.used, x.access = true, a
	return a.Principal
}

// called records the id of a call.
func (x *session) called(id string) {
	if id == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls = append(x.calls, id)
	if n := len(x.calls) - keptCalls; n > 0 {
		x.calls = slices.Delete(x.calls, 0, n)
	}
}
