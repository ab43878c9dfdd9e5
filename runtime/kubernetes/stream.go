package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// newStream returns what connects to a guest with one exec of "guest bridge", whose stdio carries
// all requests. When it breaks, another exec continues it. If that fails, the requests on it are
// lost, and the next one gets a new stream. life ends with the sandbox.
func newStream(life context.Context, d *Driver, pod string, epoch int64) *guestconn.Redialer {
	return guestconn.NewRedialer(guestconn.RedialOptions{
		Dial: func(ctx context.Context) (*guestconn.Mux, error) { return d.dialGuest(ctx, life, pod, epoch) },
		// A missing container is not final: the watch reports how it ended.
		Final:     errdefs.IsFailedPrecondition,
		Redialled: func() { d.log.Warn("stream to a sandbox was lost and dialled again", "pod", pod) },
	})
}

// dialGuest makes a mux whose execs are replaced when they break. It returns when the guest has
// answered through it: an exec that fails is noticed late, and a request must not be lost on it.
func (d *Driver) dialGuest(ctx, life context.Context, pod string, epoch int64) (*guestconn.Mux, error) {
	m, err := guestconn.DialMux(ctx, life, guestconn.Dialer{
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			executor, err := d.executor(pod)
			if err != nil {
				return nil, err
			}
			return newPipes(ctx, executor), nil
		},
		Epoch: epoch,
		Resumed: func(cause error) {
			d.log.Warn("stream to a sandbox broke and was resumed", "pod", pod, "error", cause)
		},
	})
	if err == nil {
		if _, err = guest.New(fencedOpener{m, epoch}).Ping(ctx); err == nil {
			return m, nil
		}
		d.checkGuest(err)
		_ = m.Close()
	}
	switch {
	case errors.Is(err, guestconn.ErrFenced):
		err = d.superseded(err)
	case errors.Is(err, guestconn.ErrVersion):
		err = fmt.Errorf("%w: %v", errdefs.ErrFailedPrecondition, err)
	}
	return nil, fmt.Errorf("kubernetes: exec in pod %s: %w", pod, err)
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
		if !away(err) && !d.spdy.Swap(true) {
			d.log.Warn("server refused WebSockets; using SPDY", "error", err)
		}
		return true
	})
}

// away reports whether an upgrade failed because the server, or the kubelet behind it, did not
// work, or the kubelet did not know the pod yet. This says nothing about the protocol.
func away(err error) bool {
	if upgrade, ok := errors.AsType[*httpstream.UpgradeFailureError](err); ok {
		err = upgrade.Cause
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if ok && status.ErrStatus.Code == 0 {
		return true // it gave no reason
	}
	for _, code := range []int{
		http.StatusNotFound, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout,
	} {
		if ok && status.ErrStatus.Code == int32(code) || strings.Contains(err.Error(), fmt.Sprintf("(%d ", code)) {
			return true
		}
	}
	return false
}

// forbidden reports whether an upgrade failed for a reason that another protocol does not change.
func forbidden(err error) bool {
	text := err.Error()
	return strings.Contains(text, "forbidden") || strings.Contains(text, "not found") ||
		strings.Contains(text, "Unauthorized")
}

// closeTime bounds the wait for the end of an exec. An exec over SPDY whose server accepts the
// connection and does not answer ends only when the connection does.
const closeTime = 5 * time.Second

// pipes is the stdio of an exec as one transport. Close ends the exec and waits for it.
type pipes struct {
	*io.PipeReader // what the bridge writes
	in             *io.PipeWriter
	cancel         context.CancelFunc
	ended          chan struct{}
}

// handshakeContext has a deadline that nothing but the handshake of a WebSocket obeys. That
// handshake ignores a cancellation.
type handshakeContext struct {
	context.Context
	deadline time.Time
}

func withHandshake(ctx context.Context, deadline time.Time) context.Context {
	return handshakeContext{ctx, deadline}
}

// Deadline implements context.Context.
func (c handshakeContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

func newPipes(ctx context.Context, executor remotecommand.Executor) *pipes {
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &pipes{PipeReader: out, in: in, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		var stderr guestconn.Stderr
		err := executor.StreamWithContext(withHandshake(ctx, deadline), remotecommand.StreamOptions{
			Stdin: stdin, Stdout: stdout, Stderr: &stderr,
		})
		err = classify(stderr.Reason(err))
		_ = stdout.CloseWithError(err)
		_ = stdin.CloseWithError(err)
	}()
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

// Close ends the exec and waits up to closeTime for its goroutine.
func (p *pipes) Close() error {
	p.cancel()
	err := errors.Join(p.in.Close(), p.PipeReader.Close())
	select {
	case <-p.ended:
	case <-time.After(closeTime):
	}
	return err
}
