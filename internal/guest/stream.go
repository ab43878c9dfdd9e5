package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// stream is one request. Except for pump, it is for one goroutine.
type stream struct {
	client *Client
	nc     net.Conn
	c      *wire.Conn
	op     wire.Op

	// unwatch returns when the end of ctx can no longer change the deadlines.
	unwatch func()

	limit time.Duration // time limit of the answer, for messages
	until time.Time     // when the answer is overdue; zero: never
	armed time.Time     // when the read deadline was last set
	down  time.Time     // since when pings are unanswered; zero: they are answered
}

// within limits the time for the rest of the answer. 0 removes the limit.
func (s *stream) within(d time.Duration) {
	s.limit, s.until, s.armed = d, time.Time{}, time.Time{}
	if d > 0 {
		s.until = time.Now().Add(d)
	}
}

// close ends the stream and the watch of its context.
func (s *stream) close() {
	s.unwatch()
	_ = s.nc.Close()
}

// watch makes reads and writes return when ctx ends.
func (s *stream) watch(ctx context.Context) {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		_ = s.nc.SetDeadline(time.Unix(1, 0))
	})
	s.unwatch = sync.OnceFunc(func() {
		if !stop() {
			<-fired
		}
	})
}

// next returns the next frame. The payload is valid until the next call. If the guest is silent,
// next pings it.
func (s *stream) next(ctx context.Context) (wire.Kind, []byte, error) {
	for {
		if err := s.arm(); err != nil {
			return 0, nil, err
		}
		// Check after arm, which may have replaced the deadline that the end of ctx set.
		if ctx.Err() != nil {
			return 0, nil, s.ended(ctx)
		}
		kind, payload, err := s.c.ReadFrame()
		if err == nil {
			s.down = time.Time{}
			return kind, payload, nil
		}
		if ctx.Err() != nil {
			return 0, nil, s.ended(ctx)
		}
		if !isTimeout(err) {
			return 0, nil, s.lost(err)
		}
		s.armed = time.Time{}
		if err := s.check(ctx); err != nil {
			return 0, nil, err
		}
	}
}

// arm sets the read deadline, but not again for each of many frames.
func (s *stream) arm() error {
	now := time.Now()
	quiet := s.client.times.quiet
	if !s.down.IsZero() {
		quiet /= 8
	}
	if now.Sub(s.armed) < quiet/8 {
		return nil
	}
	d := now.Add(quiet)
	if !s.until.IsZero() && s.until.Before(d) {
		d = s.until
		if now.After(d) {
			return s.overdue()
		}
	}
	// A stream that the guest has closed may refuse a deadline while its answer is still unread.
	// Reading from it does not block.
	if err := s.nc.SetReadDeadline(d); errors.Is(err, os.ErrNoDeadline) {
		return s.lost(err)
	}
	s.armed = now
	return nil
}

func (s *stream) overdue() error {
	return s.lost(fmt.Errorf("no answer within %s", s.limit))
}

// check decides whether a silent guest is lost.
func (s *stream) check(ctx context.Context) error {
	if !s.until.IsZero() && !time.Now().Before(s.until) {
		return s.overdue()
	}
	if s.op == wire.OpPing {
		return nil
	}
	pctx, cancel := context.WithTimeout(ctx, s.client.times.ping)
	defer cancel()
	_, err := s.client.Ping(pctx)
	if err == nil {
		s.down = time.Time{}
		return nil
	}
	if s.down.IsZero() {
		s.down = time.Now()
	}
	if patience := s.patience(); ctx.Err() == nil && time.Since(s.down) >= patience {
		return s.lost(fmt.Errorf("no data, and no answer to pings for %s: %w", patience, err))
	}
	return nil
}

// patience returns how long pings may remain unanswered.
func (s *stream) patience() time.Duration {
	if s.muxed() {
		return s.client.times.outage
	}
	return s.client.times.patience
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// reply waits for the last frame if no other frame may precede it.
func (s *stream) reply(ctx context.Context) ([]byte, error) {
	kind, payload, err := s.next(ctx)
	if err != nil {
		return nil, err
	}
	switch kind {
	case wire.KindReply:
		return payload, nil
	case wire.KindFailure:
		return nil, s.failure(payload)
	default:
		return nil, s.unexpected(kind)
	}
}

func (s *stream) unexpected(kind wire.Kind) error {
	return s.protocolError("unexpected frame of kind %q", byte(kind))
}

func (s *stream) failure(payload []byte) error {
	f, err := decode[wire.Failure](s, payload)
	if err != nil {
		return err
	}
	return refusalError(f)
}

func decode[T any](s *stream, payload []byte) (T, error) {
	var v T
	if err := json.Unmarshal(payload, &v); err != nil {
		var none T
		return none, s.protocolError("decode the answer: %v", err)
	}
	return v, nil
}

// pump sends the content of r in stdin frames. At the end of r it calls done, and if r fails it
// calls broken. It ends when the stream is closed, or when a blocked Read returns. Frames may be
// written concurrently.
func (s *stream) pump(r io.Reader, done func(), broken func(error)) {
	buf := s.client.buffers.Get().(*[]byte)
	defer s.client.buffers.Put(buf)
	const maxEmpty = 100
	for empty := 0; ; {
		n, err := r.Read((*buf)[wire.HeaderLen:])
		if n > 0 {
			empty = 0
			if s.c.WriteRoom(wire.KindStdin, (*buf)[:wire.HeaderLen+n]) != nil {
				return // the reader of the answer gets the reason
			}
		}
		if err == nil && n == 0 {
			if empty++; empty > maxEmpty {
				err = io.ErrNoProgress
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			done()
			return
		case err != nil:
			broken(err)
			return
		}
	}
}

// eof tells the guest that no more input comes.
func (s *stream) eof() { _ = s.c.WriteFrame(wire.KindEOF, nil) }

// hangUp closes the write direction if the stream supports it, and reports whether it did.
func (s *stream) hangUp() bool {
	half, ok := s.nc.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// carrier is a stream of a mux, which can count as a connection instead of a request.
type carrier interface {
	Carry(ctx context.Context) error
}

// muxed reports whether the stream shares its transport with others.
func (s *stream) muxed() bool {
	_, ok := s.nc.(carrier)
	return ok
}
