package guestconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// errReleased ends a Redialer.
var errReleased = fmt.Errorf("the sandbox was released: %w", ErrClosed)

// Redialer opens streams to one sandbox. All streams share a mux, which the first one dials. If the
// mux is lost, its streams are lost too, and the next stream dials another mux. Its methods are
// safe for concurrent use.
type Redialer struct {
	o    RedialOptions
	turn chan struct{} // held while dialling; guards all below
	mux  *Mux
	over bool
	// dialled is the end of the last dial, and pause the time from then to the next.
	dialled time.Time
	pause   time.Duration
}

// RedialOptions are the options of a Redialer.
type RedialOptions struct {
	// Dial makes a mux.
	Dial func(context.Context) (*Mux, error)
	// Final reports whether a failure of Dial, or of opening a stream, ends Open. Other failures are
	// retried.
	Final func(error) bool
	// Redialled, if not nil, is called after a lost mux was replaced.
	Redialled func()
}

// NewRedialer returns a Redialer. It dials nothing.
func NewRedialer(o RedialOptions) *Redialer {
	return &Redialer{o: o, turn: make(chan struct{}, 1)}
}

// Open opens a stream. It retries with pauses of 50 ms to 2 s until ctx ends.
func (r *Redialer) Open(ctx context.Context) (net.Conn, error) {
	for pause := firstDial; ; pause = min(2*pause, lastDial) {
		m, err := r.live(ctx)
		if err == nil {
			var conn net.Conn
			if conn, err = m.Open(ctx); err == nil {
				return conn, nil
			}
		}
		if errors.Is(err, errReleased) || r.o.Final(err) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// Keep dials again whenever the mux is lost, until ctx ends: a guest without a host ends after its
// orphan timeout.
func (r *Redialer) Keep(ctx context.Context) {
	for ctx.Err() == nil {
		m, err := r.live(ctx)
		if errors.Is(err, errReleased) {
			return
		}
		if err == nil {
			select {
			case <-m.Done():
			case <-ctx.Done():
			}
		}
	}
}

// Cut ends all streams and reports whether there was a mux. The next stream dials again. Cut does
// nothing if ctx ends while another call dials.
func (r *Redialer) Cut(ctx context.Context) bool {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-r.turn }()
	if r.mux == nil {
		return false
	}
	_ = r.mux.Close()
	r.mux = nil
	return true
}

// Close ends all streams and waits for their goroutines. Later calls of Open fail with ErrClosed.
func (r *Redialer) Close() {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.over = true
	if r.mux != nil {
		_ = r.mux.Close()
	}
}

// live returns the live mux, or a new one.
func (r *Redialer) live(ctx context.Context) (*Mux, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-r.turn }()
	if r.over {
		return nil, errReleased
	}
	if r.mux != nil {
		select {
		case <-r.mux.Done():
			_ = r.mux.Close()
		default:
			return r.mux, nil
		}
	}
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	m, err := r.o.Dial(ctx)
	r.dialled = time.Now()
	if err != nil {
		return nil, err
	}
	if r.mux != nil && r.o.Redialled != nil {
		r.o.Redialled()
	}
	r.mux = m
	return m, nil
}

// wait waits before a dial if the last one was a short time ago: a guest whose mux ends at once
// must not make the host dial in a loop, however many callers there are.
func (r *Redialer) wait(ctx context.Context) error {
	if r.dialled.IsZero() || time.Since(r.dialled) >= steady {
		r.pause = 0
		return nil
	}
	r.pause = min(max(2*r.pause, firstDial), lastDial)
	select {
	case <-time.After(time.Until(r.dialled.Add(r.pause))):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// maxStderr is how much of a bridge's stderr is kept, in bytes.
const maxStderr = 1 << 10

// Stderr keeps the first KiB of what a bridge writes to its stderr. It is safe for concurrent use:
// some engines' clients still write when a cancelled exec has returned.
type Stderr struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer. It never fails.
func (s *Stderr) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b[:min(len(b), maxStderr-len(s.text))]...)
	return len(b), nil
}

// Reason returns why the bridge ended: what it wrote, or else err. Some connections that were cut
// end without an error, so err may be nil. The reason wraps [ErrVersion] if the guest is too old
// for [DialMux].
func (s *Stderr) Reason(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.text) > 0 || err == nil {
		return bridgeEnded(string(s.text))
	}
	return err
}
