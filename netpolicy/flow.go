package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/descriptors"
)

// flow is one tunnel or one request, from the decision to the audit record.
type flow struct {
	s           *Session
	want        Want
	decision    Decision
	begun       time.Time
	clientCtx   context.Context                // of the connection from the sandbox
	outer       *flow                          // the surrounding tunnel, or nil
	address     atomic.Pointer[netip.AddrPort] // the address that it connected to
	usedSecrets []Secret                       // the credentials that were added; Session.mu protects it

	// ctx ends with the connection, or early with the reason as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	sent, received atomic.Int64
	lastActive     atomic.Int64 // time of the last traffic, in nanoseconds since begun

	mu     sync.Mutex
	watch  *time.Timer // nil after the end
	ends   []syscall.RawConn
	queued int // bytes in the kernel's send queues at the last check; used only by checkTimeouts
}

// begin decides on w and returns the flow. If w is refused, it returns the flow and a *refusal. The
// caller must call end in both cases. The flow ends with ctx; c is its client.
func (s *Session) begin(ctx context.Context, c *client, w Want) (*flow, error) {
	f := &flow{s: s, want: w, begun: time.Now(), clientCtx: c.ctx, outer: c.outer}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	f.decision = s.decide(w)
	over := c.limitErr
	if over == nil && s.spent {
		over = s.errBytesSpent()
	}
	switch {
	case !f.decision.Allowed:
		return f, denied(f.decision.Reason)
	case over != nil:
		f.decision.Allowed = false
		return f, over
	}
	s.flows[f] = struct{}{}
	f.watch = time.AfterFunc(f.nextCheck(0, 0), f.checkTimeouts)
	return f, nil
}

// nextCheck returns the time until checkTimeouts has to run again. It runs at least twice per idle
// time, see queuesMoved.
func (f *flow) nextCheck(lived, idle time.Duration) time.Duration {
	l := f.s.g.o.Limits
	wait := min(l.IdleTime-idle, (l.IdleTime+1)/2)
	if l.MaxTime > 0 {
		wait = min(wait, l.MaxTime-lived)
	}
	return wait
}

// checkTimeouts ends a flow that is idle or exceeds its maximum time. A single timer for both
// avoids a system call for each read.
func (f *flow) checkTimeouts() {
	l := f.s.g.o.Limits
	lived := time.Since(f.begun)
	if f.queuesMoved() {
		f.lastActive.Store(int64(lived))
	}
	idle := lived - time.Duration(f.lastActive.Load())
	switch {
	case l.MaxTime > 0 && lived >= l.MaxTime:
		f.cancel(&refusal{504, socksExpired, "ended after " + l.MaxTime.String() + ", the maximum time"})
	case idle >= l.IdleTime:
		f.cancel(&refusal{504, socksExpired, "ended after " + l.IdleTime.String() + " without traffic"})
	default:
		f.mu.Lock()
		if f.watch != nil {
			f.watch.Reset(f.nextCheck(lived, idle))
		}
		f.mu.Unlock()
	}
}

// watchQueues adds connections whose send queues queuesMoved checks.
func (f *flow) watchQueues(ends ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, end := range ends {
		if c, ok := end.(syscall.Conn); ok {
			if raw, err := c.SyscallConn(); err == nil {
				f.ends = append(f.ends, raw)
			}
		}
	}
}

// queuesMoved reports whether a peer received bytes from the kernel's queues since the last check.
// A slow reader may need minutes for bytes that were counted at once.
func (f *flow) queuesMoved() bool {
	f.mu.Lock()
	ends := f.ends
	f.mu.Unlock()
	was := f.queued
	f.queued = 0
	for _, end := range ends {
		_ = end.Control(func(fd uintptr) {
			f.queued += descriptors.SendQueue(fd)
		})
	}
	return was != 0 && f.queued != was
}

// count adds n bytes of traffic in one direction.
func (f *flow) count(inward bool, n int) {
	if n == 0 {
		return
	}
	if inward {
		f.received.Add(int64(n))
	} else {
		f.sent.Add(int64(n))
	}
	f.lastActive.Store(int64(time.Since(f.begun)))
	if f.outer != nil {
		f.outer.count(inward, n)
	}
}

// recordAddress stores the address of the connection. It checks the rules again, because rules that
// were set during the dial did not know the address.
func (f *flow) recordAddress(a net.Addr) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return
	}
	at := t.AddrPort()
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	f.address.Store(&at)
	if err := f.s.checkResolved(f.decision, at.Addr()); err != nil {
		f.cancel(fmt.Errorf("ended by a change of the rules: %w", err))
	}
}

// earlyEnd returns why the flow ended early, or nil.
func (f *flow) earlyEnd() error {
	if f.clientCtx.Err() != nil {
		return context.Cause(f.clientCtx)
	}
	cause := context.Cause(f.ctx)
	if cause == context.Canceled {
		return errGone
	}
	return cause
}

// preferEarly reports whether an early end is a better reason than err. A client that leaves after
// the complete exchange did nothing wrong. One that leaves during an invalid request may still read
// what was wrong with it.
func preferEarly(early, err error) bool {
	no, ok := errors.AsType[*refusal](err)
	return early != errGone || err != nil && (!ok || no.status != http.StatusBadRequest)
}

// failure returns the refusal for the client: the reason of an early end if it is the better one,
// or else err.
func (f *flow) failure(err error) *refusal {
	early := f.earlyEnd()
	if early == nil || !preferEarly(early, err) {
		return asRefusal(err)
	}
	if no, ok := errors.AsType[*refusal](early); ok {
		return no
	}
	return denied(early.Error())
}

// end closes the flow and writes its audit record. err is what failed, or nil.
func (f *flow) end(err error) {
	f.mu.Lock()
	if f.watch != nil {
		f.watch.Stop()
		f.watch = nil
	}
	f.mu.Unlock()
	if early := f.earlyEnd(); early != nil && preferEarly(early, err) {
		err = early
	}
	f.cancel(nil)
	d := f.decision
	c := Connection{
		Time: f.begun, Duration: time.Since(f.begun), Session: f.s.name,
		Host: truncate(d.Host), Port: f.want.Port, Protocol: d.Protocol, Method: truncate(f.want.Method),
		Path:    truncate(f.want.Path),
		Allowed: d.Allowed, Reason: d.Reason, Sent: f.sent.Load(), Received: f.received.Load(),
	}
	if c.Host == "" {
		c.Host = truncate(f.want.Host)
	}
	if f.want.Tunnel {
		c.Method = "CONNECT"
	}
	if at := f.address.Load(); at != nil {
		c.Address = at.String()
	}
	if err != nil {
		c.Reason = oneLine(err.Error())
		var no *refusal
		if errors.As(err, &no) && no.forbids() {
			c.Allowed = false
		}
	}
	f.s.record(f, c)
}

// record counts a connection, adds it to the recent ones, and passes it to the audit. f may be nil.
func (s *Session) record(f *flow, c Connection) {
	s.mu.Lock()
	delete(s.flows, f)
	if c.Allowed {
		s.allowed++
	} else {
		s.refused++
	}
	s.recent.add(c)
	s.mu.Unlock()
	s.g.o.Audit(c)
}

// recordInvalid audits a connection without a valid request.
func (s *Session) recordInvalid(begun time.Time, reason string) {
	s.record(nil, Connection{Time: begun, Duration: time.Since(begun), Session: s.name, Reason: oneLine(reason)})
}

// truncate limits the length of a client's text and removes control characters.
func truncate(s string) string {
	const most = 256
	if len(s) > most {
		return oneLine(s[:most]) + "..."
	}
	return oneLine(s)
}
