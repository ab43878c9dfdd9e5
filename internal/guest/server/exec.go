package server

import (
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// stallTime is how long a host may take for what an ended command wrote.
	stallTime = time.Minute
	// goneCheck is how often a stream is looked at while the command does not
	// take its input.
	goneCheck = 100 * time.Millisecond
)

// exec runs a command for as long as its stream lives.
func (s *Server) exec(c *wire.Conn, body json.RawMessage) error {
	var cmd wire.Command
	if err := wire.Decode(body, &cmd); err != nil {
		return err
	}
	if f := check(&cmd); f != nil {
		return f
	}
	if cmd.TTY != nil {
		return wire.Failf(wire.InvalidArgument, "tty", "is for shells")
	}
	p, f := s.program(&cmd)
	if f != nil {
		return f
	}
	r, err := s.begin(cmd)
	if err != nil {
		return err
	}
	var input sync.WaitGroup
	input.Go(func() { r.feed(c) })
	defer input.Wait()
	defer c.Close() // ends feed
	if err := r.launch(p); err != nil {
		s.answer(c, err)
		return nil
	}
	if err := c.WriteJSON(wire.KindStarted, wire.Started{ID: r.id, Pid: r.sp.leader.Pid}); err != nil {
		r.stop(runtime.SandboxLost)
	}
	stdout := &frames{conn: c, kind: wire.KindStdout, large: s.large, file: r.sp.out.ours}
	stderr := &frames{conn: c, kind: wire.KindStderr, large: s.large, file: r.sp.err.ours}
	defer stdout.close()
	defer stderr.close()
	r.pump(stdout, stderr)
	res := r.wait(func() {
		c.SetWriteDeadline(time.Now().Add(stallTime)) //nolint:errcheck // a closed stream takes no time
	})
	return c.Reply(res)
}

// feed carries out what the host sends: input, its end, signals. When the
// stream ends, or what comes is not that, the command is killed: there is no
// telling a host that gave it up from one that is gone.
func (r *run) feed(c *wire.Conn) {
	defer r.stop(runtime.SandboxLost)
	in := r.sp.in.ours
	for {
		kind, payload, err := c.ReadFrame()
		if err != nil {
			return
		}
		switch kind {
		case wire.KindStdin:
			if !r.write(in, payload, c.PeerGone) {
				return
			}
		case wire.KindEOF:
			in.Close()
		case wire.KindSignal:
			var sig wire.Signal
			if json.Unmarshal(payload, &sig) != nil {
				return
			}
			_ = r.signal(sig.Number, sig.All) // it may just have ended; a bad number does nothing
		default:
			return
		}
	}
}

// write gives input to the command, for as long as it takes and the host is
// there. A command that closed its input gets no more, and that is no error.
func (r *run) write(in *os.File, data []byte, gone func() bool) bool {
	if !r.cmd.Stdin {
		return true
	}
	for len(data) > 0 {
		in.SetWriteDeadline(time.Now().Add(goneCheck)) //nolint:errcheck // closed: the write says so
		n, err := in.Write(data)
		data = data[n:]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if gone() {
				return false
			}
			continue
		}
		if err != nil {
			return true
		}
	}
	return true
}
