package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// stream connects to a guest with one exec of "guest bridge", whose stdio carries all requests.
// When it breaks, another exec continues it. If that fails, the requests on it are lost, and the
// next one gets a new stream.
type stream struct {
	d     *Driver
	pod   string
	life  context.Context // ends with the sandbox
	epoch int64

	turn  chan struct{} // held while dialling; guards all below
	mux   *guestconn.Mux
	over  bool
	quiet bool // this process cut it: there is nothing to report
}

func newStream(life context.Context, d *Driver, pod string, epoch int64) *stream {
	return &stream{d: d, pod: pod, life: life, epoch: epoch, turn: make(chan struct{}, 1)}
}

// The pauses between two attempts to dial. A stream that lasted shorter than steady does not reset
// them.
const (
	firstDial = 50 * time.Millisecond
	lastDial  = 2 * time.Second
	steady    = 10 * time.Second
)

// open opens a stream to the guest. It retries until ctx ends.
func (b *stream) open(ctx context.Context) (net.Conn, error) {
	for pause := firstDial; ; pause = min(2*pause, lastDial) {
		m, err := b.dialled(ctx)
		if err == nil {
			var conn net.Conn
			if conn, err = m.Open(ctx); err == nil {
				return conn, nil
			}
		}
		if over(err) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// keep dials again whenever the stream breaks, until ctx ends: a guest without a host ends after
// its orphan timeout.
func (b *stream) keep(ctx context.Context) {
	for pause := firstDial; ; pause = min(2*pause, lastDial) {
		began := time.Now()
		m, err := b.dialled(ctx)
		if err == nil {
			select {
			case <-m.Done():
			case <-ctx.Done():
				return
			}
			if time.Since(began) >= steady { // a guest must not make the host dial in a loop
				pause = firstDial
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// cut ends all requests and reports whether there was a stream. The next request dials again.
func (b *stream) cut(ctx context.Context) bool {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-b.turn }()
	if b.mux == nil {
		return false
	}
	b.quiet = true
	_ = b.mux.Close()
	b.mux = nil
	return true
}

// dialled returns the live mux, or a new one.
func (b *stream) dialled(ctx context.Context) (*guestconn.Mux, error) {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-b.turn }()
	if b.over {
		return nil, errReleased
	}
	if b.mux != nil {
		select {
		case <-b.mux.Done():
			_ = b.mux.Close()
		default:
			return b.mux, nil
		}
	}
	m, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	if b.mux != nil && !b.quiet {
		b.d.log.Warn("stream to a sandbox was lost and dialled again", "pod", b.pod)
	}
	b.mux = m
	return m, nil
}

// dial makes a mux whose execs are replaced when they break. It returns when the guest has answered
// through it: an exec that fails is noticed late, and a request must not be lost on it.
func (b *stream) dial(ctx context.Context) (*guestconn.Mux, error) {
	m, err := guestconn.DialMux(ctx, b.life, guestconn.Dialer{
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			executor, err := b.d.executor(b.pod)
			if err != nil {
				return nil, err
			}
			return newPipes(ctx, executor), nil
		},
		Epoch: b.epoch,
		Resumed: func(cause error) {
			b.d.log.Warn("stream to a sandbox broke and was resumed", "pod", b.pod, "error", cause)
		},
	})
	if err == nil {
		if _, err = guest.New(fencedOpener{m, b.epoch}).Ping(ctx); err == nil {
			return m, nil
		}
		b.d.checkGuest(err)
		_ = m.Close()
	}
	switch {
	case errors.Is(err, guestconn.ErrFenced):
		err = b.d.superseded(err)
	case errors.Is(err, guestconn.ErrVersion):
		err = fmt.Errorf("%w: %v", errdefs.ErrFailedPrecondition, err)
	}
	return nil, fmt.Errorf("kubernetes: exec in pod %s: %w", b.pod, err)
}

// close ends every stream and waits for the goroutines.
func (b *stream) close() {
	b.turn <- struct{}{}
	defer func() { <-b.turn }()
	b.over = true
	if b.mux != nil {
		_ = b.mux.Close()
	}
}

// executor returns what runs an exec of the bridge: WebSockets, and SPDY where that is configured
// or WebSockets were refused.
func (d *Driver) executor(pod string) (remotecommand.Executor, error) {
	to := d.api.execURL(pod, wire.BridgeCommand())
	spdy, err := remotecommand.NewSPDYExecutor(d.config, "POST", to)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: stream: %w", err)
	}
	if d.Stream() == StreamSPDY {
		return spdy, nil
	}
	socket, err := remotecommand.NewWebSocketExecutor(d.config, "GET", to.String())
	if err != nil {
		return nil, fmt.Errorf("kubernetes: stream: %w", err)
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		if !httpstream.IsUpgradeFailure(err) && !httpstream.IsHTTPSProxyError(err) || forbidden(err) {
			return false
		}
		if !d.spdy.Swap(true) {
			d.log.Warn("server refused WebSockets; using SPDY", "error", err)
		}
		return true
	})
}

// forbidden reports whether an upgrade failed for a reason that another protocol does not change.
func forbidden(err error) bool {
	text := err.Error()
	return strings.Contains(text, "forbidden") || strings.Contains(text, "not found") ||
		strings.Contains(text, "Unauthorized")
}

// pipes is the stdio of an exec as one transport. Close ends the exec and waits for it.
type pipes struct {
	*io.PipeReader // what the bridge writes
	in             *io.PipeWriter
	cancel         context.CancelFunc
	wg             sync.WaitGroup
}

// maxComplaint is how much of a bridge's stderr is kept for the error, in bytes.
const maxComplaint = 1 << 10

func newPipes(ctx context.Context, executor remotecommand.Executor) *pipes {
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &pipes{PipeReader: out, in: in, cancel: cancel}
	p.wg.Go(func() {
		var said complaint
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: &said})
		if text := said.text(); text != "" || err == nil { // nil for some connections that were cut
			err = guestconn.BridgeEnded(text)
		}
		err = classify(err)
		_ = stdout.CloseWithError(err)
		_ = stdin.CloseWithError(err)
	})
	return p
}

// classify makes an error of an exec one of this package's classes.
func classify(err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "forbidden"):
		return fmt.Errorf("%w: %w", errdefs.ErrFailedPrecondition, err)
	case strings.Contains(text, "not found"):
		return fmt.Errorf("%w: %w", errdefs.ErrNotFound, err)
	}
	return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
}

func (p *pipes) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close ends the exec and waits for its goroutine.
func (p *pipes) Close() error {
	p.cancel()
	err := errors.Join(p.in.Close(), p.PipeReader.Close())
	p.wg.Wait()
	return err
}

// complaint keeps the beginning of what is written to it. The library may still write when a
// cancelled exec has returned.
type complaint struct {
	mu   sync.Mutex
	said []byte
}

func (c *complaint) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, b[:min(len(b), maxComplaint-len(c.said))]...)
	return len(b), nil
}

func (c *complaint) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.said)
}
