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

// connect moves input and output between the command and its stream. The
// function that it returns is called when the command has ended. Where something
// still holds the output open then, what it writes is dropped.
func (t *turn) connect(c *wire.Conn, input *sync.WaitGroup) (hangUp func()) {
	se := t.se
	var stdout, stderr sink
	forget := func() {}
	if c != nil {
		if err := c.WriteJSON(wire.KindStarted, wire.Started{ID: t.x.ID, Pid: se.run.sp.leader.Pid}); err != nil {
			t.stop(runtime.SandboxLost)
		}
		o := &frames{conn: c, kind: wire.KindStdout, large: se.s.large, file: t.p.out}
		e := &frames{conn: c, kind: wire.KindStderr, large: se.s.large, file: t.p.err}
		stdout, stderr, forget = o, e, func() { o.close(); e.close() }
		input.Go(func() { t.feed(c) })
	}
	var pumps sync.WaitGroup
	for _, p := range []*pump{{file: t.p.out, sink: stdout}, {file: t.p.err, sink: stderr}} {
		p.limit = t.x.OutputLimit
		p.over = func() { t.stop(runtime.OutputLimit) }
		p.lost = func() { t.stop(runtime.SandboxLost) }
		t.outputs = append(t.outputs, p)
		pumps.Go(p.run)
	}
	return func() {
		if t.p.in != nil {
			t.p.in.Close()
		}
		soon := time.Now().Add(wire.SessionDrain)
		for _, file := range []*os.File{t.p.out, t.p.err} {
			file.SetReadDeadline(soon) //nolint:errcheck // a closed one has nothing to read
		}
		pumps.Wait()
		forget()
		se.leave(t.p.out, t.p.err)
	}
}

// leave reads what comes late of a command, so that what it left in the
// background is not stopped by it, and drops it.
func (se *session) leave(files ...*os.File) {
	se.mu.Lock()
	se.left++
	se.mu.Unlock()
	var ends sync.WaitGroup
	for _, file := range files {
		ends.Go(func() {
			file.SetReadDeadline(time.Time{}) //nolint:errcheck // closed: the read says so
			stop := context.AfterFunc(se.ctx, func() { file.Close() })
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{file}) // its end, whichever, is what is waited for
			stop()
			file.Close()
		})
	}
	se.streams.Go(func() {
		ends.Wait()
		se.mu.Lock()
		se.left--
		se.mu.Unlock()
	})
}

// feed carries out what the host sends: input, its end, a wish to end.
func (t *turn) feed(c *wire.Conn) {
	for {
		kind, payload, err := c.ReadFrame()
		if err != nil {
			t.stop(runtime.SandboxLost) // no matter if it is over
			return
		}
		switch {
		case kind == wire.KindStdin && t.p.in != nil:
			if !pour(t.p.in, payload, c.PeerGone) {
				t.stop(runtime.SandboxLost)
				return
			}
		case kind == wire.KindStdin:
		case kind == wire.KindEOF && t.p.in != nil:
			t.p.in.Close()
		case kind == wire.KindEOF:
		default:
			t.stop(runtime.SandboxLost)
			return
		}
	}
}

// pour writes input for as long as it is taken and the host is there. That it is
// not taken any more is no error.
func pour(in *os.File, data []byte, gone func() bool) bool {
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
