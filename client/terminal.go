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

// TerminalOptions configure an attachment to a terminal. The zero value is valid.
type TerminalOptions struct {
	// Offset is the first byte of output to read; zero is the oldest that is kept. Only
	// AttachTerminal uses it.
	Offset int64
	// ReadOnly refuses Write, Resize and Signal with class FailedPrecondition. Only AttachTerminal
	// uses it.
	ReadOnly bool
	// Gap is called if the output from offset `from` up to but excluding `to` is no longer kept.
	Gap func(from, to int64)
	// Away is called when the connection is cut, and Back when it is restored. Neither may call
	// methods of the Terminal.
	Away func(err error)
	Back func()
}

// Terminal is an attachment to a command that runs on a pseudo-terminal. The command lives in its
// sandbox and survives the end of the connection and of the server. If the connection is cut, the
// Terminal reconnects and continues the output where it stopped. Only an error that the server
// returns ends the attachment early.
//
// Input arrives in order and at most once. Input that was in transit when a connection broke may be
// lost, because the client cannot know whether it arrived. A server that restarts in an orderly way
// loses no input.
//
// Callers must call Read until it fails, even if they only want to Wait: unread output blocks
// everything except Write. The methods are safe for concurrent use. Close detaches.
type Terminal struct {
	client  *Client
	sandbox string
	shell   string
	o       TerminalOptions

	ctx       context.Context // ends with the attachment
	cancel    context.CancelCauseFunc
	outReader *io.PipeReader
	outWriter *io.PipeWriter

	writeMu sync.Mutex // held while sending one message of input

	mu      sync.Mutex
	changed sync.Cond // signals changes of line, pending and closed
	line    *ptyConn  // nil while disconnected
	pending []byte    // sent but not acknowledged
	offset  int64
	size    v1.TerminalMessage // the last size requested
	closed  bool

	done   chan struct{} // closed after result and err are set
	result v1.ExecResult
	err    error
}

// OpenTerminal starts a command on a terminal in a leased sandbox and attaches to it until ctx
// ends. Only operators and callers who may run commands without tools can use it.
func (c *Client) OpenTerminal(
	ctx context.Context,
	sandbox string,
	r v1.TerminalRequest,
	o TerminalOptions,
	opts ...Option,
) (*Terminal, error) {
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

// AttachTerminal attaches to a background command that has a terminal (v1.Shell.TTY), until ctx
// ends.
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
	t.outReader, t.outWriter = io.Pipe()
	line, started, err := c.connectPTY(t.ctx, k)
	if err != nil {
		t.cancel(nil)
		return nil, err
	}
	t.shell, t.offset = started.Shell, started.Offset
	if o.Offset > 0 {
		t.offset = o.Offset // the server reports missing output as a gap
	}
	t.line = line
	go t.serveConns(line) // ends with the attachment; Close and Wait wait for it
	return t, nil
}

// Shell returns the id of the command, for AttachTerminal and the methods on shells.
func (t *Terminal) Shell() string { return t.shell }

// Offset returns the offset after the last byte of output that Read returned.
func (t *Terminal) Offset() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offset
}

// Read reads the terminal's output. It returns io.EOF after the command has ended and all its
// output was read. Any other error is why the attachment ended.
func (t *Terminal) Read(p []byte) (int, error) { return t.outReader.Read(p) }

// Write sends input. It blocks while disconnected, and while too much input is not yet taken by the
// command. An error means that the attachment has ended.
func (t *Terminal) Write(p []byte) (int, error) {
	if t.o.ReadOnly {
		return 0, errReadOnly
	}
	t.writeMu.Lock()
	defer t.writeMu.Unlock()
	for sent := 0; sent < len(p); {
		piece := p[sent:min(len(p), sent+v1.TerminalInput)]
		line, err := t.reserveInput(piece)
		if err != nil {
			return sent, err
		}
		line.send(piece) // a failed piece stays in pending
		sent += len(piece)
	}
	return len(p), nil
}

var errReadOnly = fmt.Errorf("attached to look only: %w", errdefs.ErrFailedPrecondition)

// reserveInput waits until piece fits into the input window of a connection, and adds it to
// pending.
func (t *Terminal) reserveInput(piece []byte) (*ptyConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for !t.closed && (t.line == nil || len(t.pending)+len(piece) > v1.TerminalWindow) {
		t.changed.Wait()
	}
	if t.closed {
		return nil, fmt.Errorf("the terminal is closed: %w", io.ErrClosedPipe)
	}
	t.pending = append(t.pending, piece...)
	return t.line, nil
}

// Resize sets the terminal's size in characters. If several clients are attached, the last call
// wins. While disconnected, the size is sent with the next connection.
func (t *Terminal) Resize(cols, rows int) error {
	if t.o.ReadOnly {
		return errReadOnly
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.size = v1.TerminalMessage{Type: "resize", Cols: cols, Rows: rows}
	if t.line != nil {
		t.line.queueResize(t.size)
	}
	return nil
}

// Signal sends a signal, 1 to 64, to every process of the command. To press Ctrl-C, write the byte
// 3 instead.
func (t *Terminal) Signal(ctx context.Context, signal int) error {
	if t.o.ReadOnly {
		return errReadOnly
	}
	return t.client.SignalShell(ctx, t.shell, signal)
}

// Wait waits until the command ends and returns its result. An error is why the attachment ended
// earlier: the context's cause, an error of the server, or io.ErrClosedPipe after Close.
func (t *Terminal) Wait() (v1.ExecResult, error) {
	<-t.done
	return t.result, t.err
}

// Close detaches without ending the command. It returns when the attachment's goroutines have
// ended, and may be called more than once.
func (t *Terminal) Close() error {
	t.mu.Lock()
	t.closed = true
	line := t.line
	t.changed.Broadcast()
	t.mu.Unlock()
	t.outReader.CloseWithError(io.ErrClosedPipe)
	if line != nil {
		line.closeGracefully()
	}
	t.cancel(io.ErrClosedPipe)
	<-t.done
	return nil
}
