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

	"golang.org/x/sys/unix"
)

// flow is one tunnel or one request, from the question to the audit.
type flow struct {
	s        *Session
	want     Want
	decision Decision
	begun    time.Time
	life     context.Context                // of the connection from inside
	outer    *flow                          // the tunnel it is in, if it is in one
	address  atomic.Pointer[netip.AddrPort] // what was connected to
	given    []Secret                       // credentials that were set; of Session.mu while others look

	// ctx ends with what the flow lives on, and early with the reason as cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	sent, received atomic.Int64
	moved          atomic.Int64 // when bytes did last, in nanoseconds since begun

	mu     sync.Mutex
	watch  *time.Timer // nil: ended
	ends   []syscall.RawConn
	queued int // in the kernel for them at the last look, which alone uses it
}

// begin asks whether something is allowed. The flow is there also if it is
// not, then with a *refusal; end has to be called either way.
// ctx is what it lives on; c is whose it is.
func (s *Session) begin(ctx context.Context, c *client, w Want) (*flow, error) {
	f := &flow{s: s, want: w, begun: time.Now(), life: c.ctx, outer: c.outer}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	f.decision = s.decide(w)
	over := c.over
	if over == nil && s.spent {
		over = s.errSpent()
	}
	switch {
	case !f.decision.Allowed:
		return f, denied(f.decision.Reason)
	case over != nil:
		f.decision.Allowed = false
		return f, over
	}
	s.flows[f] = struct{}{}
	f.watch = time.AfterFunc(f.next(0, 0), f.look)
	return f, nil
}

// next is how long it takes until there is something to look at. Twice in the
// idle time is, see drained.
func (f *flow) next(lived, idle time.Duration) time.Duration {
	l := f.s.g.o.Limits
	wait := min(l.IdleTime-idle, (l.IdleTime+1)/2)
	if l.MaxTime > 0 {
		wait = min(wait, l.MaxTime-lived)
	}
	return wait
}

// look ends a flow that carries nothing or has lived too long. One timer for
// both costs no system call per read.
func (f *flow) look() {
	l := f.s.g.o.Limits
	lived := time.Since(f.begun)
	if f.drained() {
		f.moved.Store(int64(lived))
	}
	idle := lived - time.Duration(f.moved.Load())
	switch {
	case l.MaxTime > 0 && lived >= l.MaxTime:
		f.cancel(&refusal{504, socksExpired, "ended after " + l.MaxTime.String() + ", the longest that is allowed"})
	case idle >= l.IdleTime:
		f.cancel(&refusal{504, socksExpired, "ended after " + l.IdleTime.String() + " without a byte"})
	default:
		f.mu.Lock()
		if f.watch != nil {
			f.watch.Reset(f.next(lived, idle))
		}
		f.mu.Unlock()
	}
}

// watched has the queues of streams looked at.
func (f *flow) watched(ends ...any) {
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

// drained says whether somebody took of what was in the kernel at the last look:
// a slow reader may need minutes for what was counted at once.
func (f *flow) drained() bool {
	f.mu.Lock()
	ends := f.ends
	f.mu.Unlock()
	was := f.queued
	f.queued = 0
	for _, end := range ends {
		_ = end.Control(func(fd uintptr) {
			if n, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ); err == nil {
				f.queued += n
			}
		})
	}
	return was != 0 && f.queued != was
}

// count says that bytes moved.
func (f *flow) count(inward bool, n int) {
	if n == 0 {
		return
	}
	if inward {
		f.received.Add(int64(n))
	} else {
		f.sent.Add(int64(n))
	}
	f.moved.Store(int64(time.Since(f.begun)))
	if f.outer != nil {
		f.outer.count(inward, n)
	}
}

// reached notes what was connected to. The rules are asked again: those that
// came while it was connected to did not know the address.
func (f *flow) reached(a net.Addr) {
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

// ended is what ended the flow early, if anything did.
func (f *flow) ended() error {
	if f.life.Err() != nil {
		return context.Cause(f.life)
	}
	cause := context.Cause(f.ctx)
	if cause == context.Canceled {
		return errGone
	}
	return cause
}

// outweighs says whether an early end is the better reason. A client that left
// after all was said did nothing wrong, and one that left in the middle of its
// request may still read what was wrong with it.
func outweighs(early, err error) bool {
	no, ok := errors.AsType[*refusal](err)
	return early != errGone || err != nil && (!ok || no.status != http.StatusBadRequest)
}

// failure is err for the client: the reason of an early end, if there is one.
func (f *flow) failure(err error) *refusal {
	early := f.ended()
	if early == nil || !outweighs(early, err) {
		return asRefusal(err)
	}
	if no, ok := errors.AsType[*refusal](early); ok {
		return no
	}
	return denied(early.Error())
}

// end writes the audit's line; err is what went wrong, nil for nothing.
func (f *flow) end(err error) {
	f.mu.Lock()
	if f.watch != nil {
		f.watch.Stop()
		f.watch = nil
	}
	f.mu.Unlock()
	if early := f.ended(); early != nil && outweighs(early, err) {
		err = early
	}
	f.cancel(nil)
	d := f.decision
	c := Connection{
		Time: f.begun, Duration: time.Since(f.begun), Session: f.s.name,
		Host: cut(d.Host), Port: f.want.Port, Protocol: d.Protocol, Method: cut(f.want.Method), Path: cut(f.want.Path),
		Allowed: d.Allowed, Reason: d.Reason, Sent: f.sent.Load(), Received: f.received.Load(),
	}
	if c.Host == "" {
		c.Host = cut(f.want.Host)
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

// record counts and keeps what ended, and hands it to the audit.
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

// garbage is the audit's line of a connection that asked for nothing that was
// understood.
func (s *Session) garbage(begun time.Time, reason string) {
	s.record(nil, Connection{Time: begun, Duration: time.Since(begun), Session: s.name, Reason: oneLine(reason)})
}

// cut bounds what a client wrote, and makes it fit for one line.
func cut(s string) string {
	const most = 256
	if len(s) > most {
		return oneLine(s[:most]) + "..."
	}
	return oneLine(s)
}
