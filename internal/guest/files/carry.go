package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/filesync"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// copyWorkspace packs or unpacks the workspace, as the user. It occupies one thread. Only one copy
// can run at a time.
func (s *Server) copyWorkspace(ctx context.Context, op wire.Op, body json.RawMessage, c *wire.Conn) error {
	var q wire.Carry
	if err := wire.Decode(body, &q); err != nil {
		return c.FailWith(err)
	}
	if q.MaxBytes < 1 {
		return c.Fail(wire.InvalidArgument, "max_bytes", "must be at least 1")
	}
	if !s.copying.TryLock() {
		return c.Fail(wire.Unavailable, "", "the workspace is already being copied")
	}
	defer s.copying.Unlock()
	var sum filesync.Sum
	var err error
	run := func() { sum, err = s.unpack(ctx, q, c) }
	if op == wire.OpPack {
		run = func() { sum, err = s.pack(ctx, q, c) }
	}
	if derr := s.threads.do(ctx, run); derr != nil {
		err = derr
	}
	if err != nil {
		return c.FailWith(copyFailure(err))
	}
	return c.Reply(wire.Carried{Entries: sum.Entries, Bytes: sum.Bytes, Kept: sum.Kept})
}

func (s *Server) unpack(ctx context.Context, q wire.Carry, c *wire.Conn) (filesync.Sum, error) {
	in := &frames{c: c}
	sum, err := filesync.Unpack(ctx, in, s.opt.Dir, filesync.Limits{Bytes: q.MaxBytes}, q.ReadOnly)
	if err != nil {
		return sum, err
	}
	s.known, err = filesync.Remember(ctx, s.opt.Dir)
	return sum, err
}

func (s *Server) pack(ctx context.Context, q wire.Carry, c *wire.Conn) (filesync.Sum, error) {
	known := s.known
	if q.Whole {
		known = nil
	}
	return filesync.Pack(ctx, dataFrames{c}, s.opt.Dir, filesync.Limits{Bytes: q.MaxBytes}, known)
}

// copyFailure returns an error with its class in the protocol.
func copyFailure(err error) error {
	large, ok := errors.AsType[*filesync.TooLargeError](err)
	switch {
	case ok:
		return wire.Failf(wire.FailedPrecondition, "max_bytes", "the files exceed %d bytes at %.200q", large.Limit,
			large.Path)
	case errors.Is(err, errClosed), errors.Is(err, context.Canceled):
		return wire.Failf(wire.Unavailable, "", "%v", err)
	case errdefs.IsFailedPrecondition(err):
		return wire.Failf(wire.FailedPrecondition, "", "%v", err)
	case errdefs.IsInvalidArgument(err):
		return wire.Failf(wire.InvalidArgument, "", "%v", err)
	}
	return err
}

// frames is a Reader of the host's data frames.
type frames struct {
	c    *wire.Conn
	left []byte
	over bool
}

func (f *frames) Read(b []byte) (int, error) {
	for len(f.left) == 0 {
		if f.over {
			return 0, io.EOF
		}
		if err := f.c.SetReadDeadline(time.Now().Add(IdleTime)); err != nil {
			return 0, err
		}
		kind, payload, err := f.c.ReadFrame()
		if err != nil {
			return 0, fmt.Errorf("receive files: %w", err)
		}
		switch kind {
		case wire.KindStdin:
			f.left = payload
		case wire.KindEOF:
			f.over = true
		default:
			return 0, wire.Failf(wire.InvalidArgument, "", "unexpected frame of kind %q", byte(kind))
		}
	}
	n := copy(b, f.left)
	f.left = f.left[n:]
	return n, nil
}

// dataFrames is a Writer that sends data frames to the host.
type dataFrames struct{ c *wire.Conn }

func (d dataFrames) Write(b []byte) (int, error) {
	sent := 0
	for len(b) > 0 {
		part := b[:min(len(b), wire.MaxFrame)]
		if err := d.c.SetWriteDeadline(time.Now().Add(IdleTime)); err != nil {
			return sent, err
		}
		if err := d.c.WriteFrame(wire.KindData, part); err != nil {
			return sent, fmt.Errorf("send files: %w", err)
		}
		sent += len(part)
		b = b[len(part):]
	}
	return sent, nil
}
