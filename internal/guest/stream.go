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

// stream is one request under way. All but pump are for one goroutine.
type stream struct {
	client *Client
	nc     net.Conn
	c      *wire.Conn
	op     wire.Op

	// unwatch returns once the end of ctx cannot touch the deadlines any more.
	unwatch func()

	limit time.Duration // how long the answer may take, for messages
	until time.Time     // when the answer is overdue; zero: never
	armed time.Time     // when the read deadline was set last
	down  time.Time     // since when pings are not answered; zero: they are
}

// within bounds the time for what is still to come; zero lifts the bound.
func (s *stream) within(d time.Duration) {
	s.limit, s.until, s.armed = d, time.Time{}, time.Time{}
	if d > 0 {
		s.until = time.Now().Add(d)
	}
}

// close ends the stream and the watch over it.
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

// next returns the next frame; its payload is valid until the next call. While
// the guest is silent it is asked whether it is well.
func (s *stream) next(ctx context.Context) (wire.Kind, []byte, error) {
	for {
		if err := s.arm(); err != nil {
			return 0, nil, err
		}
		// After arm: it may have undone what the end of ctx had set.
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

// arm sets the read deadline, though not for each of many frames.
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
	// A stream that the guest has closed may refuse a deadline while its answer
	// is still to be read; reading from it does not block.
	if err := s.nc.SetReadDeadline(d); errors.Is(err, os.ErrNoDeadline) {
		return s.lost(err)
	}
	s.armed = now
	return nil
}

func (s *stream) overdue() error {
	return s.lost(fmt.Errorf("no answer within %s", s.limit))
}

// check decides whether a guest that is silent is lost.
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
	if ctx.Err() == nil && time.Since(s.down) >= s.client.times.patience {
		return s.lost(fmt.Errorf("it is silent, and no ping was answered for %s: %w", s.client.times.patience, err))
	}
	return nil
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// reply waits for the last frame where nothing comes before it.
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
	}
	return nil, s.unexpected(kind)
}

func (s *stream) unexpected(kind wire.Kind) error {
	return s.broke("a frame of kind %q where none may be", byte(kind))
}

func (s *stream) failure(payload []byte) error {
	f, err := decode[wire.Failure](s, payload)
	if err != nil {
		return err
	}
	return refused(f)
}

func decode[T any](s *stream, payload []byte) (T, error) {
	var v T
	if err := json.Unmarshal(payload, &v); err != nil {
		var none T
		return none, s.broke("decode its answer: %v", err)
	}
	return v, nil
}

// pump sends what r gives in frames of stdin. After the end of r it calls
// done; broken is called if r fails. It ends when the stream is closed, or,
// if r blocks then, when that Read returns. Many may write to a stream.
func (s *stream) pump(r io.Reader, done func(), broken func(error)) {
	buf := s.client.buffers.Get().(*[]byte)
	defer s.client.buffers.Put(buf)
	const maxEmpty = 100
	for empty := 0; ; {
		n, err := r.Read((*buf)[wire.HeaderLen:])
		if n > 0 {
			empty = 0
			if s.c.WriteRoom(wire.KindStdin, (*buf)[:wire.HeaderLen+n]) != nil {
				return // whoever reads the answer learns why
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

// hangUp ends what we send and leaves what we receive, where the stream can.
func (s *stream) hangUp() bool {
	half, ok := s.nc.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}
