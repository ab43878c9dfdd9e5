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

// SessionOptions configures a Session.
type SessionOptions struct {
	// Name is copied to each Connection.
	Name string
	// Rules are what the sandbox requested; nil allows nothing. Ceiling limits them: both must
	// allow a connection. A nil ceiling does not limit.
	Rules, Ceiling *Rules
	Secrets        []Secret
	// Sent and Received are bytes that already count as carried.
	Sent, Received int64
}

// Session is the connection of one sandbox to a [Gateway]. All methods are safe for concurrent use.
type Session struct {
	g       *Gateway
	name    string
	ceiling *Rules

	// buffers are limited and used only while bytes move, so that a sandbox that does not read uses
	// little memory of the host.
	buffers        relay.Pool
	sent, received atomic.Int64 // on connections to servers
	outside        atomic.Int64 // open connections to servers for requests, including idle ones

	mu sync.Mutex
	// These transports serve plain HTTP requests. They reuse connections only for requests of this
	// session under the same rules.
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

// Reasons for an early end. Those of Serve's context are errSessionEnd and errClosed.
var (
	errSessionEnd = errors.New("the sandbox's egress has ended")
	errGone       = errors.New("the client closed the connection")
)

// Delays after a failed accept.
const (
	acceptMin = 20 * time.Millisecond
	acceptMax = time.Second
)

// Serve accepts connections from the sandbox until ctx ends or the gateway is closed, and returns
// when all of them have ended. It returns nil, or an error if the gateway was closed. accept must
// return when its context ends. Several accepts are pending at a time. A failed accept is retried,
// because an unreachable guest may come back.
func (s *Session) Serve(ctx context.Context, accept func(context.Context) (net.Conn, error)) error {
	if err := s.g.addServe(); err != nil {
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
	s.resetTransports()
	if s.g.ctx.Err() != nil {
		return errClosed
	}
	return nil
}

func (s *Session) acceptAll(ctx context.Context, accept func(context.Context) (net.Conn, error),
	handlers *sync.WaitGroup) {
	wait := acceptMin
	for ctx.Err() == nil {
		nc, err := accept(ctx)
		if err == nil {
			wait = acceptMin
			handlers.Go(func() { s.handle(ctx, nc) })
			continue
		}
		if ctx.Err() == nil && wait == acceptMin {
			s.g.log.DebugContext(ctx, "accept from sandbox failed; will retry", "session", s.name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, acceptMax)
	}
}

// Set replaces the rules and secrets. It immediately ends tunnels and requests that the new rules
// do not allow, or allow differently, and those with a removed secret. The audit record contains
// the reason.
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
		case !f.hasSecrets(secrets):
			f.cancel(errors.New("ended by a change of the secrets: a secret that it used was removed"))
		}
	}
	s.mu.Unlock()
	s.resetTransports()
}

// hasSecrets reports whether secrets contains all credentials that the flow was given.
func (f *flow) hasSecrets(secrets []Secret) bool {
	for _, had := range f.usedSecrets {
		same := func(s Secret) bool { return s.Name == had.Name && s.Header == had.Header && s.Value == had.Value }
		if !slices.ContainsFunc(secrets, same) {
			return false
		}
	}
	return true
}

// State returns a copy of the session's state.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{
		Open: s.open, Allowed: s.allowed, Refused: s.refused,
		Sent: s.sent.Load(), Received: s.received.Load(), Recent: s.recent.list(),
	}
}

// decide applies the rules and the ceiling. The caller holds mu.
func (s *Session) decide(w Want) Decision { return s.rules.Within(s.ceiling, w) }

// resolved applies them to an address that a name resolved to. The caller holds mu.
func (s *Session) resolved(d Decision, a netip.Addr) Decision {
	return s.ceiling.Resolved(s.rules.Resolved(d, a), a)
}

// checkResolved is like resolved, but returns an error and locks mu.
func (s *Session) checkResolved(d Decision, a netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d = s.resolved(d, a); !d.Allowed {
		return denied(d.Reason)
	}
	return nil
}

// spend counts bytes carried outside. Above the limit it ends all flows of the session.
func (s *Session) spend(counter *atomic.Int64, n int) {
	counter.Add(int64(n))
	if !s.exceedsBytes() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent {
		return
	}
	s.spent = true
	for f := range s.flows {
		f.cancel(s.errBytesSpent())
	}
}

func (s *Session) exceedsBytes() bool {
	most := s.g.o.Limits.Bytes
	return most > 0 && s.sent.Load()+s.received.Load() > most
}

func (s *Session) errBytesSpent() error {
	return overLimit("this sandbox has used its limit of %d bytes", s.g.o.Limits.Bytes)
}

// admit counts a connection from the sandbox. limitErr, if not nil, refuses all its requests. ok
// reports whether the client may be told so.
func (s *Session) admit() (over error, ok bool) {
	most, all := s.g.o.Limits.Connections, int(s.g.open.Add(1))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	switch {
	case s.open > most:
		over = overLimit("this sandbox has reached its limit of %d open connections: close one", most)
	case all > s.g.maxOpen && s.open > freeShare:
		over = overLimit("all sandboxes together have reached the service's limit of open connections: close one, or try " +
			"again")
		most = freeShare
	}
	return over, s.open <= most+maxRefused
}

// openFromSandbox returns the number of open connections from the sandbox.
func (s *Session) openFromSandbox() int64 {
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
