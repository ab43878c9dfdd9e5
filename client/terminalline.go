package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	// handshakeTime bounds connecting, including the start of the sandbox's shell.
	handshakeTime = time.Minute
	// quietTime is how long the server may send nothing. It sends several pings in that time.
	quietTime = time.Minute
	// maxPiece bounds a message of the server, in bytes.
	maxPiece = 1 << 20
)

// ptyLine is one connection to a terminal.
type ptyLine struct {
	client *Client
	conn   *websocket.Conn
	ctx    context.Context // ends with the connection
	cut    context.CancelCauseFunc
	quiet  *time.Timer
	sizes  chan v1.TerminalMessage
	// settled is set once the server has reported exactly how much input it took. Only run's
	// goroutine uses it.
	settled bool
}

var errQuiet = fmt.Errorf("the server said nothing for %s: %w", quietTime, errdefs.ErrUnavailable)

// connectPTY connects and waits for the "started" message.
func (c *Client) connectPTY(ctx context.Context, k *call) (*ptyLine, v1.TerminalMessage, error) {
	l := &ptyLine{client: c, sizes: make(chan v1.TerminalMessage, 1)}
	l.ctx, l.cut = context.WithCancelCause(ctx)
	l.quiet = time.AfterFunc(quietTime, func() { l.cut(errQuiet) })
	h := k.header.Clone()
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	if k.key != "" {
		h.Set("Idempotency-Key", k.key)
	}
	dctx, cancel := context.WithTimeout(l.ctx, handshakeTime)
	defer cancel()
	conn, resp, err := websocket.Dial(dctx, k.url(c.base), &websocket.DialOptions{ //nolint:bodyclose // Dial has read and closed it
		HTTPClient: c.http, HTTPHeader: h, Subprotocols: []string{v1.TerminalProtocol},
		OnPingReceived: func(context.Context, []byte) bool { l.heard(); return true },
	})
	if err != nil {
		defer l.drop(nil)
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			resp.Request = (&http.Request{}).WithContext(ctx)
			return nil, v1.TerminalMessage{}, c.readProblem(resp)
		}
		return nil, v1.TerminalMessage{}, c.lost(ctx, err)
	}
	l.conn = conn
	conn.SetReadLimit(maxPiece)
	go l.resize() // ends with the connection
	kind, r, err := conn.Reader(l.ctx)
	var m v1.TerminalMessage
	switch {
	case err != nil:
		err = l.why(err)
	case kind != websocket.MessageText:
		err = fmt.Errorf("%w: it does not begin as a terminal does", ErrLost)
	default:
		if m, err = l.message(r); err == nil && m.Type == "error" {
			err = l.refusal(m)
		} else if err == nil && (m.Type != "started" || m.Shell == "" || m.Offset < 0) {
			err = fmt.Errorf("%w: it begins with %.40q", ErrLost, m.Type)
		}
	}
	if err != nil {
		l.drop(err)
		return nil, m, err
	}
	return l, m, nil
}

func (l *ptyLine) heard() { l.quiet.Reset(quietTime) }

// drop closes the connection at once.
func (l *ptyLine) drop(err error) {
	l.quiet.Stop()
	l.cut(err)
	if l.conn != nil {
		_ = l.conn.CloseNow() // the connection is no longer needed
	}
}

// hangUp closes the connection after sending what was written.
func (l *ptyLine) hangUp() { _ = l.conn.Close(websocket.StatusNormalClosure, "detached") }

// send sends input. A failure is reported by the next read.
func (l *ptyLine) send(b []byte) { _ = l.conn.Write(l.ctx, websocket.MessageBinary, b) }

// steer queues the terminal's size and replaces a size that is still queued.
func (l *ptyLine) steer(m v1.TerminalMessage) {
	select {
	case <-l.sizes:
	default:
	}
	l.sizes <- m // never blocks, because Terminal.mu is held
}

func (l *ptyLine) resize() {
	for {
		select {
		case m := <-l.sizes:
			b, err := json.Marshal(m)
			if err != nil || l.conn.Write(l.ctx, websocket.MessageText, b) != nil {
				return
			}
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *ptyLine) message(r io.Reader) (m v1.TerminalMessage, err error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return m, l.why(err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("%w: a message that is no JSON: %w", ErrLost, err)
	}
	return m, nil
}

// refusal returns the error for an "error" message.
func (l *ptyLine) refusal(m v1.TerminalMessage) error {
	if m.Problem == nil {
		m.Problem = &v1.Problem{Status: http.StatusInternalServerError, Code: "internal", Detail: "the server gave the terminal up and did not say why"}
	}
	return problem(m.Problem)
}

// errRestart reports a server that restarts in an orderly way.
var errRestart = fmt.Errorf("%w: the server restarts", ErrLost)

// why returns the error for a connection that ended.
func (l *ptyLine) why(err error) error {
	if errors.Is(context.Cause(l.ctx), errQuiet) {
		return errQuiet
	}
	switch code := websocket.CloseStatus(err); code {
	case websocket.StatusServiceRestart:
		return errRestart
	case websocket.StatusPolicyViolation, websocket.StatusMessageTooBig, websocket.StatusInvalidFramePayloadData:
		return fmt.Errorf("the server closed the terminal: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return l.client.lost(l.ctx, err)
}

// run serves one connection after the other until the attachment ends.
func (t *Terminal) run(line *ptyLine) {
	defer close(t.done)
	for {
		result, err := t.serve(line)
		line.drop(err)
		t.mu.Lock()
		t.line = nil
		if !errors.Is(err, errRestart) || !line.settled {
			t.pending = nil // it may have been taken; see Terminal
		}
		closed := t.over
		t.mu.Unlock()
		if err == nil {
			t.result = result
			t.finish(io.EOF)
			return
		}
		if closed {
			err = io.ErrClosedPipe
		} else if again(t.ctx, err) {
			if line, err = t.reconnect(err); err == nil {
				continue
			}
		}
		t.err = err
		t.finish(err)
		return
	}
}

// again reports whether the attachment reconnects after err.
func again(ctx context.Context, err error) bool {
	return context.Cause(ctx) == nil && errdefs.IsUnavailable(err)
}

func (t *Terminal) finish(err error) {
	t.mu.Lock()
	t.over = true
	t.changed.Broadcast()
	t.mu.Unlock()
	t.cancel(err)
	t.show.CloseWithError(err) //nolint:errcheck // it never fails
}

// reconnect retries until the server accepts a connection or refuses it. The output continues where
// it stopped.
func (t *Terminal) reconnect(err error) (*ptyLine, error) {
	if t.o.Away != nil {
		t.o.Away(err)
	}
	for pause := followMin; ; pause = min(2*pause, followMax) {
		select {
		case <-time.After(pause):
		case <-t.ctx.Done():
			return nil, context.Cause(t.ctx)
		}
		k := ptyCall(t.sandbox).set("shell", t.shell).set("offset", fmt.Sprint(t.Offset())).flag("read_only", t.o.ReadOnly)
		line, _, err := t.client.connectPTY(t.ctx, k)
		if err != nil {
			if again(t.ctx, err) {
				continue
			}
			return nil, err
		}
		t.resume(line)
		if t.o.Back != nil {
			t.o.Back()
		}
		return line, nil
	}
}

// resume installs a new connection and first resends the input that the server certainly did not
// take.
func (t *Terminal) resume(line *ptyLine) {
	t.mu.Lock()
	left := bytes.Clone(t.pending)
	if t.size.Type != "" {
		line.steer(t.size)
	}
	t.mu.Unlock()
	for len(left) > 0 { // precedes other input, because t.line is still nil
		n := min(len(left), v1.TerminalInput)
		line.send(left[:n])
		left = left[n:]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = line
	t.changed.Broadcast()
}

// serve handles the messages of one connection. It returns no error if the command has ended.
func (t *Terminal) serve(line *ptyLine) (v1.ExecResult, error) {
	var taken int64
	for {
		kind, r, err := line.conn.Reader(line.ctx)
		if err != nil {
			return v1.ExecResult{}, line.why(err)
		}
		line.heard()
		if kind == websocket.MessageBinary {
			if err := t.put(line, r); err != nil {
				return v1.ExecResult{}, err
			}
			continue
		}
		m, err := line.message(r)
		if err != nil {
			return v1.ExecResult{}, err
		}
		switch m.Type {
		case "taken":
			t.took(m.Bytes - taken)
			taken = m.Bytes
			if m.Settled {
				line.settled = true
			}
		case "gap":
			t.gap(m.From, m.To)
		case "exit":
			if m.Result == nil {
				return v1.ExecResult{}, fmt.Errorf("%w: an end without a result", ErrLost)
			}
			return *m.Result, nil
		case "error":
			return v1.ExecResult{}, line.refusal(m)
		}
	}
}

// put passes output to Read. While the caller does not read, the server's silence is not counted
// against it.
func (t *Terminal) put(line *ptyLine, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return line.why(err)
	}
	line.quiet.Stop()
	n, err := t.show.Write(b)
	t.mu.Lock()
	t.offset += int64(n)
	t.mu.Unlock()
	line.heard()
	return err
}

func (t *Terminal) took(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = t.pending[max(0, min(n, int64(len(t.pending)))):]
	t.changed.Broadcast()
}

func (t *Terminal) gap(from, to int64) {
	t.mu.Lock()
	t.offset = max(t.offset, to)
	t.mu.Unlock()
	if t.o.Gap != nil {
		t.o.Gap(from, to)
	}
}
