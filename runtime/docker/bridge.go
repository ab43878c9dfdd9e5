package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// bridge connects to a sandbox of which only the engine's API can be reached: one exec of "guest
// bridge" whose stdio carries all streams. The first stream dials it. An exec that breaks is
// replaced by another one, and the streams continue. If that fails, they are lost and the next one
// dials.
type bridge struct {
	d         *Driver
	container string
	life      context.Context // ends with the sandbox

	turn chan struct{} // held while dialling; guards mux and over
	mux  *guestconn.Mux
	over bool
}

func newBridge(life context.Context, d *Driver, container string) *bridge {
	return &bridge{d: d, container: container, life: life, turn: make(chan struct{}, 1)}
}

// The pauses between two attempts to dial. An exec costs the engine tens of milliseconds, and so
// does the first pause.
const (
	firstDial = 50 * time.Millisecond
	lastDial  = 2 * time.Second
)

// open opens a stream. It retries until ctx ends. All callers share one mux.
func (b *bridge) open(ctx context.Context) (net.Conn, error) {
	for pause := firstDial; ; pause = min(2*pause, lastDial) {
		conn, err := b.try(ctx)
		if err == nil {
			return conn, nil
		}
		if final(err) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func (b *bridge) try(ctx context.Context) (net.Conn, error) {
	m, err := b.dialled(ctx)
	if err != nil {
		return nil, err
	}
	return m.Open(ctx)
}

// dialled returns the live mux, or a new one.
func (b *bridge) dialled(ctx context.Context) (*guestconn.Mux, error) {
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
			b.mux = nil
		default:
			return b.mux, nil
		}
	}
	m, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	b.mux = m
	return m, nil
}

// final reports whether an error is final for the streams of a sandbox.
func final(err error) bool {
	return errors.Is(err, errReleased) || errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err)
}

// dial makes a mux whose execs are replaced when they break.
func (b *bridge) dial(ctx context.Context) (*guestconn.Mux, error) {
	m, err := guestconn.DialMux(ctx, b.life, guestconn.Dialer{
		Dial: b.dialExec,
		// A container that does not run does not run again.
		Final: func(err error) bool { return final(err) || errdefs.IsConflict(err) },
		Resumed: func(cause error) {
			b.d.log.Warn("stream to a sandbox broke and was resumed", "container", b.container, "error", cause)
		},
	})
	switch {
	case errors.Is(err, guestconn.ErrVersion):
		return nil, fmt.Errorf("docker: bridge: %w: %v", errdefs.ErrFailedPrecondition, err)
	case err != nil:
		return nil, fmt.Errorf("docker: bridge: %w", err)
	}
	return m, nil
}

func (b *bridge) dialExec(ctx context.Context) (io.ReadWriteCloser, error) {
	exec, err := b.d.api.ExecCreate(ctx, b.container, client.ExecCreateOptions{
		User: "0:0", WorkingDir: "/", AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Cmd: wire.BridgeCommand(),
	})
	if err != nil {
		return nil, b.d.failed(ctx, "make a bridge", err)
	}
	got, err := b.d.api.ExecAttach(ctx, exec.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, b.d.failed(ctx, "start a bridge", err)
	}
	return newPipes(got.HijackedResponse), nil
}

// close ends every stream and waits for the goroutines of the bridge.
func (b *bridge) close() {
	b.turn <- struct{}{}
	defer func() { <-b.turn }()
	b.over = true
	if b.mux != nil {
		_ = b.mux.Close()
	}
}

// pipes is the stdio of an exec as one transport. The engine sends stdout and stderr over one
// connection; a goroutine separates them, and Close waits for it.
type pipes struct {
	*io.PipeReader
	conn   net.Conn
	wg     sync.WaitGroup
	closer func() error
}

// maxComplaint is how much of a bridge's stderr is kept for the error, in bytes.
const maxComplaint = 1 << 10

func newPipes(h client.HijackedResponse) *pipes {
	r, w := io.Pipe()
	p := &pipes{PipeReader: r, conn: h.Conn}
	p.closer = sync.OnceValue(func() error {
		err := errors.Join(p.conn.Close(), r.Close())
		p.wg.Wait()
		return err
	})
	p.wg.Go(func() {
		var said complaint
		_, err := stdcopy.StdCopy(w, &said, h.Reader)
		if len(said) > 0 || err == nil {
			err = guestconn.BridgeEnded(string(said))
		}
		_ = w.CloseWithError(err)
	})
	return p
}

func (p *pipes) Write(b []byte) (int, error) { return p.conn.Write(b) }
func (p *pipes) Close() error                { return p.closer() }

// complaint keeps the beginning of what is written to it.
type complaint []byte

func (c *complaint) Write(b []byte) (int, error) {
	*c = append(*c, b[:min(len(b), maxComplaint-len(*c))]...)
	return len(b), nil
}
