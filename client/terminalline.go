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
	// handshakeTimeout bounds connecting, including the start of the sandbox's shell.
	handshakeTimeout = time.Minute
	// silenceTimeout is how long the server may send nothing. It sends several pings in that time.
	silenceTimeout = time.Minute
	// maxTerminalMessage bounds a message of the server, in bytes.
	maxTerminalMessage = 1 << 20
)

// ptyConn is one connection to a terminal.
type ptyConn struct {
	client       *Client
	conn         *websocket.Conn
	ctx          context.Context // ends with the connection
	cancel       context.CancelCauseFunc
	silenceTimer *time.Timer
	sizes        chan v1.TerminalMessage
	// settled is set once the server has reported exactly how much input it took. Only serveConns's
	// goroutine uses it.
	settled bool
}

var errServerSilent = fmt.Errorf("the server said nothing for %s: %w", silenceTimeout, errdefs.ErrUnavailable)

// connectPTY connects and waits for the "started" message.
func (c *Client) connectPTY(ctx context.Context, k *call) (*ptyConn, v1.TerminalMessage, error) {
	l := &ptyConn{client: c, sizes: make(chan v1.TerminalMessage, 1)}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.silenceTimer = time.AfterFunc(silenceTimeout, func() { l.cancel(errServerSilent) })
	h := k.header.Clone()
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	if k.key != "" {
		h.Set("Idempotency-Key", k.key)
	}
	dctx, cancel := context.WithTimeout(l.ctx, handshakeTimeout)
	defer cancel()
	options := &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: h, Subprotocols: []string{v1.TerminalProtocol},
		OnPingReceived: func(context.Context, []byte) bool { l.resetSilenceTimer(); return true },
	}
	conn, resp, err := websocket.Dial(dctx, k.url(c.base), options) //nolint:bodyclose,contextcheck // Dial has closed it; dctx ends with ctx
	if err != nil {
		defer l.drop(nil)
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil {
			return nil, v1.TerminalMessage{}, c.readProblem(ctx, resp)
		}
		return nil, v1.TerminalMessage{}, c.connectionError(ctx, err)
	}
	l.conn = conn
	conn.SetReadLimit(maxTerminalMessage)
	go l.sendResizes() // ends with the connection
	kind, r, err := conn.Reader(l.ctx)
	var m v1.TerminalMessage
	switch {
	case err != nil:
		err = l.closeError(err)
	case kind != websocket.MessageText:
		err = fmt.Errorf("%w: it does not begin as a terminal does", ErrLost)
	default:
		if m, err = l.message(r); err == nil && m.Type == "error" {
			err = l.serverError(m)
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

func (l *ptyConn) resetSilenceTimer() { l.silenceTimer.Reset(silenceTimeout) }

// drop closes the connection at once.
func (l *ptyConn) drop(err error) {
	l.silenceTimer.Stop()
	l.cancel(err)
	if l.conn != nil {
		_ = l.conn.CloseNow() // the connection is no longer needed
	}
}

// closeGracefully closes the connection after sending what was written.
func (l *ptyConn) closeGracefully() { _ = l.conn.Close(websocket.StatusNormalClosure, "detached") }

// send sends input. A failure is reported by the next read.
func (l *ptyConn) send(b []byte) { _ = l.conn.Write(l.ctx, websocket.MessageBinary, b) }

// queueResize queues the terminal's size and replaces a size that is still queued.
func (l *ptyConn) queueResize(m v1.TerminalMessage) {
	select {
	case <-l.sizes:
	default:
	}
	l.sizes <- m // never blocks, because Terminal.mu is held
}

func (l *ptyConn) sendResizes() {
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

func (l *ptyConn) message(r io.Reader) (m v1.TerminalMessage, err error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return m, l.closeError(err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("%w: invalid JSON in message: %w", ErrLost, err)
	}
	return m, nil
}

// serverError returns the error for an "error" message.
func (l *ptyConn) serverError(m v1.TerminalMessage) error {
	if m.Problem == nil {
		m.Problem = &v1.Problem{
			Status: http.StatusInternalServerError,
			Code:   "internal",
			Detail: "the server gave the terminal up and did not say why",
		}
	}
	return newProblemError(m.Problem)
}

// errRestart reports a server that restarts in an orderly way.
var errRestart = fmt.Errorf("%w: the server restarts", ErrLost)

// closeError returns the error for a connection that ended.
func (l *ptyConn) closeError(err error) error {
	if errors.Is(context.Cause(l.ctx), errServerSilent) {
		return errServerSilent
	}
	switch code := websocket.CloseStatus(err); code {
	case websocket.StatusServiceRestart:
		return errRestart
	case websocket.StatusPolicyViolation, websocket.StatusMessageTooBig, websocket.StatusInvalidFramePayloadData:
		return fmt.Errorf("the server closed the terminal: %w: %w", err, errdefs.ErrInvalidArgument)
	default:
		return l.client.connectionError(l.ctx, err)
	}
}

// serveConns serves one connection after the other until the attachment ends.
func (t *Terminal) serveConns(line *ptyConn) {
	defer close(t.done)
	for {
		result, err := t.serveConn(line)
		line.drop(err)
		t.mu.Lock()
		t.line = nil
		if !errors.Is(err, errRestart) || !line.settled {
			t.pending = nil // it may have been taken; see Terminal
		}
		closed := t.closed
		t.mu.Unlock()
		if err == nil {
			t.result = result
			t.finish(io.EOF)
			return
		}
		if closed {
			err = io.ErrClosedPipe
		} else if shouldReconnect(t.ctx, err) {
			if line, err = t.reconnect(err); err == nil {
				continue
			}
		}
		t.err = err
		t.finish(err)
		return
	}
}

// shouldReconnect reports whether the attachment reconnects after err.
func shouldReconnect(ctx context.Context, err error) bool {
	return context.Cause(ctx) == nil && errdefs.IsUnavailable(err)
}

func (t *Terminal) finish(err error) {
	t.mu.Lock()
	t.closed = true
	t.changed.Broadcast()
	t.mu.Unlock()
	t.cancel(err)
	t.outWriter.CloseWithError(err)
}

// reconnect retries until the server accepts a connection or refuses it. The output continues where
// it stopped.
func (t *Terminal) reconnect(err error) (*ptyConn, error) {
	if t.o.Away != nil {
		t.o.Away(err)
	}
	for pause := followPauseMin; ; pause = min(2*pause, followPauseMax) {
		select {
		case <-time.After(pause):
		case <-t.ctx.Done():
			return nil, context.Cause(t.ctx)
		}
		k := ptyCall(t.sandbox).set("shell", t.shell).set("offset", fmt.Sprint(t.Offset())).flag("read_only", t.o.ReadOnly)
		line, _, err := t.client.connectPTY(t.ctx, k)
		if err != nil {
			if shouldReconnect(t.ctx, err) {
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
func (t *Terminal) resume(line *ptyConn) {
	t.mu.Lock()
	left := bytes.Clone(t.pending)
	if t.size.Type != "" {
		line.queueResize(t.size)
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

// serveConn handles the messages of one connection. It returns no error if the command has ended.
func (t *Terminal) serveConn(line *ptyConn) (v1.ExecResult, error) {
	var taken int64
	for {
		kind, r, err := line.conn.Reader(line.ctx)
		if err != nil {
			return v1.ExecResult{}, line.closeError(err)
		}
		line.resetSilenceTimer()
		if kind == websocket.MessageBinary {
			if err := t.deliverOutput(line, r); err != nil {
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
			t.acknowledge(m.Bytes - taken)
			taken = m.Bytes
			if m.Settled {
				line.settled = true
			}
		case "gap":
			t.skipGap(m.From, m.To)
		case "exit":
			if m.Result == nil {
				return v1.ExecResult{}, fmt.Errorf("%w: an end without a result", ErrLost)
			}
			return *m.Result, nil
		case "error":
			return v1.ExecResult{}, line.serverError(m)
		}
	}
}

// deliverOutput passes output to Read. While the caller does not read, the server's silence is not
// counted against it.
func (t *Terminal) deliverOutput(line *ptyConn, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return line.closeError(err)
	}
	line.silenceTimer.Stop()
	n, err := t.outWriter.Write(b)
	t.mu.Lock()
	t.offset += int64(n)
	t.mu.Unlock()
	line.resetSilenceTimer()
	return err
}

func (t *Terminal) acknowledge(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = t.pending[max(0, min(n, int64(len(t.pending)))):]
	t.changed.Broadcast()
}

func (t *Terminal) skipGap(from, to int64) {
	t.mu.Lock()
	t.offset = max(t.offset, to)
	t.mu.Unlock()
	if t.o.Gap != nil {
		t.o.Gap(from, to)
	}
}
