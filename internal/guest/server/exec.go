package server

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// stallTime is how long a host may take to read the remaining output of an ended command, and
	// requestTime how long a request may take to arrive on an open stream. An outage of the connection
	// may come in between.
	stallTime   = guestconn.OutageTime + wire.HeaderTime
	requestTime = guestconn.OutageTime + wire.HeaderTime
	// peerCheckInterval is how often the guest checks whether the host is still connected while a
	// command does not read its input.
	peerCheckInterval = 100 * time.Millisecond
)

// serveExec runs a command for as long as its stream lives.
func (s *Server) serveExec(ctx context.Context, c *wire.Conn, body json.RawMessage) error {
	var cmd wire.Command
	if err := wire.Decode(body, &cmd); err != nil {
		return err
	}
	if f := check(&cmd); f != nil {
		return f
	}
	if cmd.TTY != nil {
		return wire.Failf(wire.InvalidArgument, "tty", "is supported for shells only")
	}
	p, f := s.program(&cmd)
	if f != nil {
		return f
	}
	r, err := s.newRun(cmd)
	if err != nil {
		return err
	}
	var input sync.WaitGroup
	input.Go(func() { r.feed(c) })
	defer input.Wait()
	defer c.Close() // ends feed
	if err := r.launch(ctx, p); err != nil {
		s.answer(c, err)
		return nil
	}
	if err := c.WriteJSON(wire.KindStarted, wire.Started{ID: r.id, Pid: r.spare.process.Pid}); err != nil {
		r.stop(runtime.SandboxLost)
	}
	stdout := &frameSink{conn: c, kind: wire.KindStdout, large: s.large, file: r.spare.out.ours}
	stderr := &frameSink{conn: c, kind: wire.KindStderr, large: s.large, file: r.spare.err.ours}
	defer stdout.close()
	defer stderr.close()
	r.startPumps(stdout, stderr)
	res := r.wait(func() {
		c.SetWriteDeadline(time.Now().Add(stallTime)) //nolint:errcheck // a closed stream takes no time
	})
	return c.Reply(res)
}

// feed processes the host's frames: input, end of input, signals. The command is killed when the
// stream ends or a frame is invalid. The guest cannot distinguish a host that gave up from one that
// died.
func (r *commandRun) feed(c *wire.Conn) {
	defer r.stop(runtime.SandboxLost)
	in := r.spare.in.ours
	for {
		kind, payload, err := c.ReadFrame()
		if err != nil {
			return
		}
		switch kind {
		case wire.KindStdin:
			if r.cmd.Stdin && !writeInput(in, payload, c.PeerGone) {
				return
			}
		case wire.KindEOF:
			in.Close()
		case wire.KindSignal:
			var sig wire.Signal
			if json.Unmarshal(payload, &sig) != nil {
				return
			}
			_ = r.signal(sig.Number, sig.All) // the command may just have ended; a bad number is ignored
		default:
			return
		}
	}
}
