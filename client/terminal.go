package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// TerminalOptions are how one is attached to a terminal. All of it may be left
// out.
type TerminalOptions struct {
	// Offset is the first byte of the output that is wanted; zero is the oldest
	// that is kept. It is for AttachTerminal.
	Offset int64
	// ReadOnly only looks: Write, Resize and Signal are refused. It is for
	// AttachTerminal.
	ReadOnly bool
	// Gap is called where output is no longer kept: the bytes `from` to before
	// `to` are missing.
	Gap func(from, to int64)
	// Away is called when the connection was cut, and Back when it is there
	// again. Neither may call the Terminal.
	Away func(err error)
	Back func()
}

// Terminal is a command on a pseudo terminal, and this program attached to it.
// It lives in its sandbox: neither the end of a connection nor of the server
// ends it. A connection that is cut is made again, and the output goes on where
// it stopped; only what the server refuses ends an attachment early.
//
// What is typed gets there once and in order. Only what was on its way when a
// connection broke, which is not known, is not sent again; a server that
// restarts in good order loses none.
//
// Read has to be called until it fails, also by who only waits: output that
// nobody takes holds up everything but Write. The methods may be called
// concurrently. Close detaches.
type Terminal struct {
	client  *Client
	sandbox string
	shell   string
	o       TerminalOptions

	ctx    context.Context // of the attachment
	cancel context.CancelCauseFunc
	out    *io.PipeReader
	show   *io.PipeWriter

	typing sync.Mutex // held over a message of input

	mu      sync.Mutex
	changed sync.Cond // line, taken or over
	line    *ptyLine  // nil while there is no connection
	pending []byte    // sent, and not told as taken
	offset  int64
	size    v1.TerminalMessage // the last one asked for
	over    bool

	done   chan struct{} // closed after result and err are set
	result v1.ExecResult
	err    error
}

// OpenTerminal starts a command on a terminal in a leased sandbox and attaches
// to it, for as long as ctx lasts. Operators may, and callers who may run
// commands without tools.
func (c *Client) OpenTerminal(ctx context.Context, sandbox string, r v1.TerminalRequest, o TerminalOptions, opts ...Option) (*Terminal, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	if len(b) > maxHeader {
		return nil, fmt.Errorf("the request is %d bytes long: at most %d: %w", len(b), maxHeader, errdefs.ErrInvalidArgument)
	}
	k := ptyCall(sandbox).with(opts)
	k.header.Set("Orchestrator-Exec", base64.URLEncoding.EncodeToString(b))
	o.Offset, o.ReadOnly = 0, false
	return c.terminal(ctx, sandbox, k, o)
}

// AttachTerminal attaches to a shell that has a terminal (v1.Shell.TTY), for as
// long as ctx lasts.
func (c *Client) AttachTerminal(ctx context.Context, shell string, o TerminalOptions) (*Terminal, error) {
	sh, err := c.Shell(ctx, shell)
	if err != nil {
		return nil, err
	}
	k := ptyCall(sh.SandboxID).set("shell", shell).number("offset", o.Offset).flag("read_only", o.ReadOnly)
	return c.terminal(ctx, sh.SandboxID, k, o)
}

func ptyCall(sandbox string) *call { return newCall(http.MethodGet, "sandboxes", sandbox, "pty") }

func (c *Client) terminal(ctx context.Context, sandbox string, k *call, o TerminalOptions) (*Terminal, error) {
	t := &Terminal{client: c, sandbox: sandbox, o: o, done: make(chan struct{})}
	t.changed.L = &t.mu
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.out, t.show = io.Pipe()
	line, started, err := c.connectPTY(t.ctx, k)
	if err != nil {
		t.cancel(nil)
		return nil, err
	}
	t.shell, t.offset = started.Shell, started.Offset
	if o.Offset > 0 {
		t.offset = o.Offset // what is missing of it is told as a gap
	}
	t.line = line
	go t.run(line) // ends with the attachment; Close and Wait wait for it
	return t, nil
}

// Shell is the id, for AttachTerminal and for the methods on shells.
func (t *Terminal) Shell() string { return t.shell }

// Offset is where the output stands that Read has given.
func (t *Terminal) Offset() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offset
}

// Read gives what the terminal puts out. After the command's end, and all that
// it wrote, it is io.EOF; any other error is why the attachment ended.
func (t *Terminal) Read(p []byte) (int, error) { return t.out.Read(p) }

// Write types. It waits while there is no connection, and while much of what
// was typed is not taken by the command; an error says that the attachment has
// ended.
func (t *Terminal) Write(p []byte) (int, error) {
	if t.o.ReadOnly {
		return 0, errReadOnly
	}
	t.typing.Lock()
	defer t.typing.Unlock()
	for sent := 0; sent < len(p); {
		piece := p[sent:min(len(p), sent+v1.TerminalInput)]
		line, err := t.room(piece)
		if err != nil {
			return sent, err
		}
		line.send(piece) // if that fails, it is in pending
		sent += len(piece)
	}
	return len(p), nil
}

var errReadOnly = fmt.Errorf("attached to look only: %w", errdefs.ErrFailedPrecondition)

// room waits for a connection that takes a piece, and counts it as sent.
func (t *Terminal) room(piece []byte) (*ptyLine, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.over && (t.line == nil || len(t.pending)+len(piece) > v1.TerminalWindow) {
		t.changed.Wait()
	}
	if t.over {
		return nil, fmt.Errorf("the terminal is closed: %w", io.ErrClosedPipe)
	}
	t.pending = append(t.pending, piece...)
	return t.line, nil
}

// Resize sets the terminal's size. Of several who are attached, the last one's
// counts. What is asked for while there is no connection is sent with the next.
func (t *Terminal) Resize(cols, rows int) error {
	if t.o.ReadOnly {
		return errReadOnly
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.size = v1.TerminalMessage{Type: "resize", Cols: cols, Rows: rows}
	if t.line != nil {
		t.line.steer(t.size)
	}
	return nil
}

// Signal sends a signal, 1 to 64, to every process of the command. What Ctrl-C
// does is to write the byte 3.
func (t *Terminal) Signal(ctx context.Context, signal int) error {
	if t.o.ReadOnly {
		return errReadOnly
	}
	return t.client.SignalShell(ctx, t.shell, signal)
}

// Wait waits for the command's end and tells it. An error is why the attachment
// ended before: the context's cause, a refusal, or io.ErrClosedPipe after Close.
func (t *Terminal) Wait() (v1.ExecResult, error) {
	<-t.done
	return t.result, t.err
}

// Close detaches: the command runs on. Idempotent; it returns when everything
// of the attachment has ended.
func (t *Terminal) Close() error {
	t.mu.Lock()
	t.over = true
	line := t.line
	t.changed.Broadcast()
	t.mu.Unlock()
	t.out.CloseWithError(io.ErrClosedPipe) //nolint:errcheck // it never fails
	if line != nil {
		line.hangUp()
	}
	t.cancel(io.ErrClosedPipe)
	<-t.done
	return nil
}
