package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
)

// SessionOptions say who connects and what it may.
type SessionOptions struct {
	// Name is in each Connection.
	Name string
	// Rules are what was asked for; nil allows nothing. Ceiling is what may be had
	// at most: a connection has to be allowed by both. nil: no ceiling.
	Rules, Ceiling *Rules
	Secrets        []Secret
	// Sent and Received are bytes that count as carried already.
	Sent, Received int64
}

// Session is one sandbox's part of a [Gateway]. All methods are safe for
// concurrent use.
type Session struct {
	g       *Gateway
	name    string
	ceiling *Rules

	// buffers are there while bytes move, and bounded: what a sandbox does not read
	// costs the host little.
	buffers        relay.Pool
	sent, received atomic.Int64 // on connections to the outside
	outside        atomic.Int64 // connections for requests, those that are kept too

	mu sync.Mutex
	// Requests of plain HTTP go through these: connections are kept for the next
	// request of the same session alone, under the same rules.
	plain, upgrades *http.Transport

	rules   *Rules
	secrets []Secret
	flows   map[*flow]struct{}
	spent   bool // Limits.Bytes are used up
	open    int
	allowed int64
	refused int64
	recent  ring
}

// Why things end early. Those of Serve's context are errSessionEnd.
var (
	errSessionEnd = errors.New("the sandbox's egress has ended")
	errGone       = errors.New("the client closed the connection")
)

// Waits between accepts that fail.
const (
	acceptMin = 20 * time.Millisecond
	acceptMax = time.Second
)

// Serve takes connections from inside until the context ends, and returns nil
// once nothing of them runs any more. A few accepts are kept waiting; one that
// fails is tried again, for a guest may be out of reach and come back. An
// accept has to return when its context ends. The error says that the gateway
// is closed.
func (s *Session) Serve(ctx context.Context, accept func(context.Context) (net.Conn, error)) error {
	if err := s.g.enter(); err != nil {
		return err
	}
	defer s.g.works.Done()
	outer := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(outer))
	defer cancel(nil)
	defer context.AfterFunc(outer, func() { cancel(errSessionEnd) })()
	defer context.AfterFunc(s.g.ctx, func() { cancel(errClosed) })()

	var accepts, handlers sync.WaitGroup
	for range acceptsWaiting {
		accepts.Go(func() { s.acceptAll(ctx, accept, &handlers) })
	}
	accepts.Wait()
	handlers.Wait()
	s.forgetServers()
	if s.g.ctx.Err() != nil {
		return errClosed
	}
	return nil
}

func (s *Session) acceptAll(ctx context.Context, accept func(context.Context) (net.Conn, error), handlers *sync.WaitGroup) {
	wait := acceptMin
	for ctx.Err() == nil {
		nc, err := accept(ctx)
		if err == nil {
			wait = acceptMin
			handlers.Go(func() { s.handle(ctx, nc) })
			continue
		}
		if ctx.Err() == nil && wait == acceptMin {
			s.g.log.DebugContext(ctx, "accept from inside", "session", s.name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, acceptMax)
	}
}

// Set changes the rules and secrets. Tunnels and requests that would not be
// allowed any more, or not in the same way, or that have a credential that is
// gone, end at once, with that reason in the audit.
func (s *Session) Set(rules *Rules, secrets []Secret) {
	s.mu.Lock()
	s.rules, s.secrets = rules, slices.Clone(secrets)
	for f := range s.flows {
		d := s.decide(f.want)
		if at := f.address.Load(); at != nil {
			d = s.resolved(d, at.Addr())
		}
		switch {
		case !d.Allowed:
			f.cancel(fmt.Errorf("ended by a change of the rules: %s", d.Reason))
		case d.Protocol != f.decision.Protocol || d.Port != f.decision.Port:
			f.cancel(fmt.Errorf("ended by a change of the rules: now %s on port %d", d.Protocol, d.Port))
		case !f.keeps(secrets):
			f.cancel(errors.New("ended by a change of the secrets: it was given one that is no longer there"))
		}
	}
	s.mu.Unlock()
	s.forgetServers()
}

// keeps says whether all that was given to the flow is among secrets.
func (f *flow) keeps(secrets []Secret) bool {
	for _, had := range f.given {
		same := func(s Secret) bool { return s.Name == had.Name && s.Header == had.Header && s.Value == had.Value }
		if !slices.ContainsFunc(secrets, same) {
			return false
		}
	}
	return true
}

// State is a copy.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{
		Open: s.open, Allowed: s.allowed, Refused: s.refused,
		Sent: s.sent.Load(), Received: s.received.Load(), Recent: s.recent.list(),
	}
}

// decide asks the rules and the ceiling. mu is held.
func (s *Session) decide(w Want) Decision { return s.rules.Within(s.ceiling, w) }

// resolved asks them again about an address that a name led to. mu is held.
func (s *Session) resolved(d Decision, a netip.Addr) Decision {
	return s.ceiling.Resolved(s.rules.Resolved(d, a), a)
}

// checkResolved is resolved as an error.
func (s *Session) checkResolved(d Decision, a netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d = s.resolved(d, a); !d.Allowed {
		return denied(d.Reason)
	}
	return nil
}

// spend counts bytes that were carried outside. Over the limit everything of
// the session ends.
func (s *Session) spend(counter *atomic.Int64, n int) {
	counter.Add(int64(n))
	if !s.over() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent {
		return
	}
	s.spent = true
	for f := range s.flows {
		f.cancel(s.errSpent())
	}
}

func (s *Session) over() bool {
	most := s.g.o.Limits.Bytes
	return most > 0 && s.sent.Load()+s.received.Load() > most
}

func (s *Session) errSpent() error {
	return overLimit("the %d bytes that this sandbox may carry are used up", s.g.o.Limits.Bytes)
}

// admit counts a connection from inside. The refusal is for all that it asks;
// ok says whether there is even room to tell it.
func (s *Session) admit() (over error, ok bool) {
	most, all := s.g.o.Limits.Connections, int(s.g.open.Add(1))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	switch {
	case s.open > most:
		over = overLimit("this sandbox has %d connections open, as many as it may: close one", most)
	case all > s.g.most && s.open > freeShare:
		over = overLimit("all sandboxes together have as many connections open as the service has descriptors for: close one, or try again")
		most = freeShare
	}
	return over, s.open <= most+maxRefused
}

// inside is how many connections there are from inside.
func (s *Session) inside() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.open)
}

func (s *Session) leave() {
	s.g.open.Add(-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}
