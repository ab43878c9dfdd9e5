package server

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/server/spool"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// maxWait bounds wire.Output.Wait.
const maxWait = time.Minute

var errHostGone = errors.New("the host closed the stream")

// serveOutput sends what a shell has written; see wire.Output.
func (s *Server) serveOutput(ctx context.Context, c *wire.Conn, body json.RawMessage) error {
	var o wire.Output
	if err := wire.Decode(body, &o); err != nil {
		return err
	}
	sh, err := s.findShell(o.ID)
	if err != nil {
		return err
	}
	st, err := selectStream(sh, &o)
	if err != nil {
		return err
	}
	st.Ack(o.Offset)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watch sync.WaitGroup
	watch.Go(func() { // a read only returns once the the host closed the stream
		for {
			if _, _, err := c.ReadFrame(); err != nil {
				cancel(errHostGone)
				return
			}
		}
	})
	defer watch.Wait()
	defer c.Close()
	t := &outputSender{conn: c, stream: st, next: o.Offset}
	defer func() {
		if len(t.buf) > wire.HeaderLen+smallBuffer {
			s.large.put(t.buf)
		}
	}()
	if t.buf = s.large.get(); t.buf == nil {
		t.buf = make([]byte, wire.HeaderLen+smallBuffer)
	}
	if o.Follow {
		err = t.follow(ctx)
	} else {
		err = t.sendAvailable(ctx, &o)
	}
	switch {
	case errors.Is(err, errHostGone):
		return nil
	case errors.Is(err, spool.ErrFreed):
		s.answer(c, wire.Failf(wire.NotFound, "id", "shell %q was forgotten", o.ID))
		return nil
	case err != nil:
		s.answer(c, err)
		return nil
	}
	_, end, eof := st.Span()
	if o.Follow { // the shell ends right after its output does
		select {
		case <-sh.done:
		case <-ctx.Done():
		}
	}
	return c.Reply(wire.OutputEnd{Next: t.next, EOF: eof && t.next >= end, Shell: sh.state()})
}

// selectStream checks a request for output and returns the requested stream.
func selectStream(sh *shell, o *wire.Output) (*spool.Stream, error) {
	st := sh.out
	switch o.Stream {
	case wire.Stdout, "":
	case wire.Stderr:
		st = sh.err
	default:
		return nil, wire.Failf(wire.InvalidArgument, "stream", `must be "stdout" or "stderr"`)
	}
	_, end, _ := st.Span()
	switch {
	case o.Offset < 0 || o.Offset > end:
		return nil, wire.Failf(wire.InvalidArgument, "offset", "must be from 0 to %d, the end of the output", end)
	case o.Limit < 0:
		return nil, wire.Failf(wire.InvalidArgument, "limit", "is negative")
	case o.Wait < 0 || o.Wait > maxWait:
		return nil, wire.Failf(wire.InvalidArgument, "wait_ns", "must be from 0 to %d", maxWait)
	}
	return st, nil
}

// outputSender sends spooled bytes from offset next on.
type outputSender struct {
	conn   *wire.Conn
	stream *spool.Stream
	next   int64
	buf    []byte // starts with room for a frame header
	chunk  []byte
}

// sendAvailable sends the bytes available now. It first waits up to o.Wait for one byte.
func (t *outputSender) sendAvailable(ctx context.Context, o *wire.Output) error {
	if o.Wait > 0 {
		wait, cancel := context.WithTimeout(ctx, o.Wait)
		err := t.stream.Wait(wait, t.next)
		cancel()
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, spool.ErrFreed) {
			return err
		}
	}
	_, end, _ := t.stream.Span()
	left := o.Limit
	if left == 0 {
		left = end // at least everything available
	}
	for left > 0 && t.next < end {
		n, err := t.sendChunk(left)
		if err != nil || n == 0 {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// follow sends everything up to the stream's end. It acknowledges sent bytes only half a spool
// later: so much may be in transit when a connection breaks, and the next reader still finds it.
func (t *outputSender) follow(ctx context.Context) error {
	for {
		if err := t.stream.Wait(ctx, t.next); err != nil {
			return err
		}
		n, err := t.sendChunk(int64(len(t.buf)))
		if err != nil {
			return err
		}
		if n == 0 { // Wait returned without data: the stream has ended
			return nil
		}
		t.stream.Ack(t.next - t.stream.Limit()/2)
	}
}

// sendChunk sends one chunk of at most limit bytes, preceded by its offset.
func (t *outputSender) sendChunk(limit int64) (int, error) {
	room := t.buf[wire.HeaderLen:]
	n, at := t.stream.ReadAt(room[:min(int64(len(room)), limit)], t.next)
	t.next = at
	if n == 0 {
		return 0, nil
	}
	t.chunk = append(strconv.AppendInt(append(t.chunk[:0], `{"offset":`...), at, 10), '}')
	if err := t.conn.WriteFrame(wire.KindChunk, t.chunk); err != nil {
		return 0, errHostGone
	}
	if err := t.conn.WriteRoom(wire.KindData, t.buf[:wire.HeaderLen+n]); err != nil {
		return 0, errHostGone
	}
	t.next += int64(n)
	return n, nil
}

// serveInput writes to a shell's stdin. Streams take turns. Input that was received is delivered
// even if the host has disconnected, but not after a newer host has replaced it.
func (s *Server) serveInput(ctx context.Context, c *wire.Conn, body json.RawMessage) error {
	var ref wire.ShellRef
	if err := wire.Decode(body, &ref); err != nil {
		return err
	}
	sh, err := s.findShell(ref.ID)
	if err != nil {
		return err
	}
	if sh.cmd.TTY != nil {
		return s.serveTerminalInput(c, sh)
	}
	if !sh.cmd.Stdin {
		return wire.Failf(wire.FailedPrecondition, "id", "shell %q was started without stdin", ref.ID)
	}
	select {
	case sh.input <- struct{}{}:
		defer func() { <-sh.input }()
	case <-sh.done:
	case <-ctx.Done():
	case <-time.After(wire.HeaderTime):
		return wire.Failf(wire.Unavailable, "id", "another stream writes to shell %q", ref.ID)
	}
	for {
		if ctx.Err() != nil {
			return errShutDown()
		}
		if sh.ended() {
			return wire.Failf(wire.FailedPrecondition, "id", "shell %q has ended", ref.ID)
		}
		kind, payload, err := c.ReadFrame()
		if err != nil { // the host leaves stdin open, and may still read the reply
			c.SetWriteDeadline(time.Now().Add(wire.HeaderTime)) //nolint:errcheck // closed: nobody listens
			_ = c.Reply(nil)
			return nil
		}
		switch kind {
		case wire.KindStdin:
			if sh.run.cmd.Stdin {
				writeInput(sh.run.spare.in.ours, payload, func() bool { return ctx.Err() != nil })
			}
		case wire.KindEOF:
			sh.run.spare.in.ours.Close()
			return c.Reply(nil)
		default:
			return wire.Failf(wire.InvalidArgument, "", "unexpected frame of kind %q in input", byte(kind))
		}
	}
}
