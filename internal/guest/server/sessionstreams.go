package server

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// connectStreams moves input and output between the command and its stream. The returned function
// is called when the command has ended. Output that background processes write after that is
// dropped.
func (t *sessionCommand) connectStreams(c *wire.Conn, input *sync.WaitGroup) (hangUp func()) {
	se := t.se
	var stdout, stderr sink
	forget := func() {}
	if c != nil {
		if err := c.WriteJSON(wire.KindStarted, wire.Started{ID: t.req.ID, Pid: se.run.spare.process.Pid}); err != nil {
			t.stop(runtime.SandboxLost)
		}
		o := &frameSink{conn: c, kind: wire.KindStdout, large: se.s.large, file: t.pipes.out}
		e := &frameSink{conn: c, kind: wire.KindStderr, large: se.s.large, file: t.pipes.err}
		stdout, stderr, forget = o, e, func() { o.close(); e.close() }
		input.Go(func() { t.feed(c) })
	}
	var pumps sync.WaitGroup
	for _, p := range []*pump{{file: t.pipes.out, sink: stdout}, {file: t.pipes.err, sink: stderr}} {
		p.limit = t.req.OutputLimit
		p.onLimit = func() { t.stop(runtime.OutputLimit) }
		p.onError = func() { t.stop(runtime.SandboxLost) }
		t.outputs = append(t.outputs, p)
		pumps.Go(p.run)
	}
	return func() {
		if t.pipes.in != nil {
			t.pipes.in.Close()
		}
		soon := time.Now().Add(wire.SessionDrain)
		for _, file := range []*os.File{t.pipes.out, t.pipes.err} {
			file.SetReadDeadline(soon) //nolint:errcheck // a closed one has nothing to read
		}
		pumps.Wait()
		forget()
		se.discardLateOutput(t.pipes.out, t.pipes.err)
	}
}

// discardLateOutput reads and drops what background processes of a command write, so that a full
// pipe or SIGPIPE does not stop them.
func (se *session) discardLateOutput(files ...*os.File) {
	se.mu.Lock()
	se.background++
	se.mu.Unlock()
	var ends sync.WaitGroup
	for _, file := range files {
		ends.Go(func() {
			file.SetReadDeadline(time.Time{}) //nolint:errcheck // closed: the read says so
			stop := context.AfterFunc(se.ctx, func() { file.Close() })
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{file}) // wait for the end of the output, for whatever reason
			stop()
			file.Close()
		})
	}
	se.streams.Go(func() {
		ends.Wait()
		se.mu.Lock()
		se.background--
		se.mu.Unlock()
	})
}

// feed processes the host's frames: input and its end. Any other frame, or the end of the stream,
// ends the command.
func (t *sessionCommand) feed(c *wire.Conn) {
	for {
		kind, payload, err := c.ReadFrame()
		if err != nil {
			t.stop(runtime.SandboxLost) // no effect if the command has ended
			return
		}
		switch {
		case kind == wire.KindStdin && t.pipes.in != nil:
			if !writeInput(t.pipes.in, payload, c.PeerGone) {
				t.stop(runtime.SandboxLost)
				return
			}
		case kind == wire.KindStdin:
		case kind == wire.KindEOF && t.pipes.in != nil:
			t.pipes.in.Close()
		case kind == wire.KindEOF:
		default:
			t.stop(runtime.SandboxLost)
			return
		}
	}
}

// writeInput writes data until all is written, or gone reports that the host has disconnected. Then
// it returns false. If the reader is closed, the rest is dropped, which is not an error.
func writeInput(in *os.File, data []byte, gone func() bool) bool {
	for len(data) > 0 {
		in.SetWriteDeadline(time.Now().Add(peerCheckInterval)) //nolint:errcheck // closed: the write says so
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
