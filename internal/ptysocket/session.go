package ptysocket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

const (
	// pongTime is how long a client may take to answer a ping.
	pongTime = time.Minute
	// keysTime is how long typed bytes may still take to reach the terminal after the connection
	// ends.
	keysTime = time.Second
	// lastTime bounds the last message, and the closing handshake.
	lastTime = 3 * time.Second
	// maxPiece is the largest output in one message, in bytes.
	maxPiece = 32 << 10
	// maxSignals bounds the queue of signals.
	maxSignals = 16
)

// Reasons for the end of a connection, besides errors and the command's end.
var (
	errDetached   = errors.New("the client detached")
	errClientGone = errors.New("the client went away")
	errRestarts   = errors.New("the service restarts")
)

// protocolViolation reports an invalid message of the client. It ends the connection with a code.
type protocolViolation struct {
	*strictjson.FieldError
	code websocket.StatusCode
}

// Unwrap returns the error for the client.
func (e *protocolViolation) Unwrap() error { return e.FieldError }

func protocolError(code websocket.StatusCode, field, format string, args ...any) error {
	return &protocolViolation{&strictjson.FieldError{Field: field, Message: fmt.Sprintf(format, args...)}, code}
}

// exited reports that the command ended, with its result.
type exited struct{ result v1.ExecResult }

func (exited) Error() string { return "the command ended" }

// Options say how a client is attached to a terminal.
type Options struct {
	Shell    string // id of the terminal
	Offset   int64  // the first byte of output to send
	ReadOnly bool
	// Stall is how long the client may take to accept a message, and Beat the time between pings.
	Stall, Beat time.Duration
	// HandOver ends when the service restarts. The client is then told to attach again.
	HandOver context.Context
	// Describe returns what the client may see of an error.
	Describe func(error) *v1.Problem
}

// Serve upgrades the request to a WebSocket, and connects its client to a terminal until the
// command ends, the client leaves or o.HandOver ends. It does not check the origin. If the upgrade
// fails, Serve has answered the request and returns the error.
func Serve(w http.ResponseWriter, r *http.Request, at *engine.Attachment, o Options) error {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{v1.TerminalProtocol}, InsecureSkipVerify: true,
	})
	if err != nil {
		return err
	}
	defer conn.CloseNow() //nolint:errcheck // most often closed by now
	conn.SetReadLimit(v1.TerminalInput)
	newSession(conn, at, o).run()
	return nil
}

// session is one client that is attached to a terminal. The connection's reader waits only for
// the client, so that pings, resizes and signals are always handled. Output waits for the client;
// the guest buffers it.
type session struct {
	conn       *websocket.Conn
	attachment *engine.Attachment
	opts       Options

	ctx context.Context // ends with a cause when the session must end
	end context.CancelCauseFunc

	// wire is the context of reads and writes. Its end cuts the connection.
	wire context.Context
	cut  context.CancelFunc

	keys    *keyQueue
	acks    chan struct{} // bytes were accepted
	sizes   chan v1.TerminalMessage
	signals chan int
	writing atomic.Int32 // messages that are being written to the client

	typed    chan struct{} // closed when typing has ended
	allTyped bool          // all typed bytes reached the terminal, see settle
	work     sync.WaitGroup
}

func newSession(conn *websocket.Conn, at *engine.Attachment, o Options) *session {
	t := &session{
		conn: conn, attachment: at, opts: o, keys: newKeys(),
		acks: make(chan struct{}, 1), sizes: make(chan v1.TerminalMessage, 1), signals: make(chan int, maxSignals),
		typed: make(chan struct{}),
	}
	t.ctx, t.end = context.WithCancelCause(context.Background())
	t.wire, t.cut = context.WithCancel(context.Background())
	return t
}

// run serves the client. It returns when the connection is closed.
func (t *session) run() {
	stop := context.AfterFunc(t.opts.HandOver, func() { t.end(errRestarts) })
	defer stop()
	cols, rows := t.attachment.Size()
	started := v1.TerminalMessage{
		Type: "started", Shell: t.opts.Shell, Offset: t.opts.Offset, Cols: cols, Rows: rows,
	}
	if t.send(started) != nil {
		t.attachment.Leave()
		t.cut()
		return
	}
	var reader sync.WaitGroup
	reader.Go(t.read)
	defer reader.Wait()
	defer t.cut()
	t.work.Go(t.sendOutput)
	t.work.Go(t.acknowledge)
	t.work.Go(t.carryOutControls)
	t.work.Go(t.ping)
	go func() { // settle waits for it
		defer close(t.typed)
		err := t.attachment.Type(t.keys, func(total int64) {
			t.keys.accepted(total)
			select {
			case t.acks <- struct{}{}:
			default:
			}
		})
		if err != nil && !engine.Ended(err) {
			t.end(err)
		}
	}()
	<-t.ctx.Done()
	t.settle()
	t.finish(context.Cause(t.ctx))
}

// settle waits a limited time for typed bytes to reach the terminal, and then ends everything but
// the connection.
func (t *session) settle() {
	t.keys.end()
	patience := time.NewTimer(keysTime)
	defer patience.Stop()
	if _, over := errors.AsType[exited](context.Cause(t.ctx)); !over {
		select {
		case <-t.typed:
			t.allTyped = true
		case <-patience.C:
		}
	}
	t.attachment.Leave()
	<-t.typed
	// A slow client may still be receiving output.
	late := time.AfterFunc(lastTime, t.cut)
	defer late.Stop()
	t.work.Wait()
}

// finish tells the client why the connection ends, and closes it.
func (t *session) finish(cause error) {
	code := websocket.StatusNormalClosure
	var reason string
	switch e, over := errors.AsType[exited](cause); {
	case over:
		_ = t.last(v1.TerminalMessage{Type: "exit", Result: &e.result}) // fails only if the client is gone
		reason = "the command ended"
	case errors.Is(cause, errDetached):
		reason = "detached"
	case errors.Is(cause, errClientGone):
		return
	case errors.Is(cause, errRestarts):
		_ = t.last(v1.TerminalMessage{Type: "taken", Bytes: t.keys.acceptedTotal(), Settled: t.allTyped})
		code, reason = websocket.StatusServiceRestart, "the service restarts: attach again at the offset"
	default:
		p := t.opts.Describe(cause)
		_ = t.last(v1.TerminalMessage{Type: "error", Problem: p})
		code, reason = websocket.StatusPolicyViolation, p.Code
		if b, ok := errors.AsType[*protocolViolation](cause); ok {
			code = b.code
		} else if p.Status >= 500 {
			code = websocket.StatusInternalError
		}
	}
	_ = t.conn.Close(code, reason) // a client that does not answer is cut
}

// send sends a message. It fails if the client accepts nothing for the stall time.
func (t *session) send(m v1.TerminalMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return t.write(t.wire, websocket.MessageText, b, t.opts.Stall)
}

func (t *session) last(m v1.TerminalMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return t.write(t.wire, websocket.MessageText, b, lastTime)
}

func (t *session) write(ctx context.Context, kind websocket.MessageType, b []byte, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	t.writing.Add(1)
	defer t.writing.Add(-1)
	if err := t.conn.Write(ctx, kind, b); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// sendOutput sends the output until the command ends.
func (t *session) sendOutput() {
	next := t.opts.Offset
	result, err := t.attachment.Follow(next, func(offset int64, data []byte) error {
		if offset != next {
			if err := t.send(v1.TerminalMessage{Type: "gap", From: next, To: offset}); err != nil {
				return err
			}
			next = offset
		}
		for len(data) > 0 {
			if t.ctx.Err() != nil {
				return context.Cause(t.ctx)
			}
			n := min(len(data), maxPiece)
			if err := t.write(t.wire, websocket.MessageBinary, data[:n], t.opts.Stall); err != nil {
				return err
			}
			data, next = data[n:], next+int64(n)
		}
		return nil
	})
	if err == nil {
		err = exited{result}
	}
	t.end(err)
}

// acknowledge reports how many bytes were accepted. It merges reports while the client is slow.
func (t *session) acknowledge() {
	for {
		select {
		case <-t.acks:
		case <-t.ctx.Done():
			return
		}
		if err := t.send(v1.TerminalMessage{Type: "taken", Bytes: t.keys.acceptedTotal()}); err != nil {
			t.end(err)
			return
		}
	}
}

// carryOutControls carries out resizes and signals. It ignores those that arrive after the
// command's end.
func (t *session) carryOutControls() {
	for {
		var err error
		select {
		case m := <-t.sizes:
			err = t.attachment.Resize(m.Cols, m.Rows)
		case n := <-t.signals:
			err = t.attachment.Signal(n)
		case <-t.ctx.Done():
			return
		}
		if err != nil && !engine.Ended(err) {
			t.end(err)
			return
		}
	}
}

// ping detects clients that are gone, and keeps proxies from closing a silent connection. It
// ignores a missing answer while output is being written, whose time is bounded separately.
func (t *session) ping() {
	tick := time.NewTicker(t.opts.Beat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(t.ctx, pongTime)
		err := t.conn.Ping(ctx)
		cancel()
		if err != nil && t.ctx.Err() == nil && t.writing.Load() == 0 {
			t.end(errClientGone)
			return
		}
	}
}

// read receives messages until the connection ends.
func (t *session) read() {
	for {
		kind, r, err := t.conn.Reader(t.wire)
		if err == nil {
			err = t.handleMessage(kind, r)
		}
		if err != nil {
			if _, ours := errors.AsType[*protocolViolation](err); !ours && !errors.Is(err, errDetached) {
				err = errClientGone
			}
			t.end(err)
			// Later messages are dropped; the closing handshake reads them.
			return
		}
	}
}

// handleMessage handles one message. An error other than protocolViolation is an error of the
// connection.
func (t *session) handleMessage(kind websocket.MessageType, r io.Reader) error {
	if kind == websocket.MessageBinary {
		b, err := io.ReadAll(r) // bounded by SetReadLimit
		switch {
		case err != nil:
			return err
		case t.opts.ReadOnly && len(b) > 0:
			return protocolError(websocket.StatusPolicyViolation, "read_only", "is set: typing is not allowed")
		case !t.keys.add(b):
			return protocolError(websocket.StatusPolicyViolation, "message", "exceeds the window of %d bytes",
				v1.TerminalWindow)
		}
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(r, v1.TerminalControl+1))
	if err != nil {
		return err
	}
	if len(b) > v1.TerminalControl {
		return protocolError(websocket.StatusMessageTooBig, "message", "is over %d bytes", v1.TerminalControl)
	}
	var m v1.TerminalMessage
	if err := strictjson.Decode(b, &m); err != nil {
		return protocolError(websocket.StatusInvalidFramePayloadData, "message", "cannot be read: %v", err)
	}
	return t.handleControl(m)
}

// handleControl carries out a control message.
func (t *session) handleControl(m v1.TerminalMessage) error {
	if t.opts.ReadOnly && m.Type != "detach" {
		return protocolError(websocket.StatusPolicyViolation, "read_only", "is set: %q is not allowed", m.Type)
	}
	switch m.Type {
	case "resize":
		select { // only the last size counts
		case <-t.sizes:
		default:
		}
		t.sizes <- m // never blocks: this is the only sender
	case "signal":
		select {
		case t.signals <- m.Signal:
		default:
			return protocolError(websocket.StatusPolicyViolation, "signal", "comes faster than signals can be sent")
		}
	case "detach":
		return errDetached
	default:
		return protocolError(websocket.StatusPolicyViolation, "type", "is %q: clients send resize, signal and detach",
			m.Type)
	}
	return nil
}
