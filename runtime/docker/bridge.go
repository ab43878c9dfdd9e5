package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// newBridge returns what connects to a sandbox of which only the engine's API can be reached: one
// exec of "guest bridge" whose stdio carries all streams. The first stream dials it. An exec that
// breaks is replaced by another one, and the streams continue. If that fails, they are lost and the
// next one dials. life ends with the sandbox.
func newBridge(life context.Context, d *Driver, container string) *guestconn.Redialer {
	return guestconn.NewRedialer(guestconn.RedialOptions{
		Dial:  func(ctx context.Context) (*guestconn.Mux, error) { return d.dialBridge(ctx, life, container) },
		Final: final,
		Redialled: func() {
			d.log.Warn("stream to a sandbox was lost and dialled again", "container", container)
		},
	})
}

// final reports whether an error is final for the streams of a sandbox.
func final(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err)
}

// dialBridge makes a mux whose execs are replaced when they break.
func (d *Driver) dialBridge(ctx, life context.Context, container string) (*guestconn.Mux, error) {
	m, err := guestconn.DialMux(ctx, life, guestconn.Dialer{
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) { return d.dialExec(ctx, container) },
		// A container that does not run does not run again.
		Final: func(err error) bool { return final(err) || errdefs.IsConflict(err) },
		Resumed: func(cause error) {
			d.log.Warn("stream to a sandbox broke and was resumed", "container", container, "error", cause)
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

func (d *Driver) dialExec(ctx context.Context, container string) (io.ReadWriteCloser, error) {
	exec, err := d.api.ExecCreate(ctx, container, client.ExecCreateOptions{
		User: "0:0", WorkingDir: "/", AttachStdin: true, AttachStdout: true, AttachStderr: true,
		Cmd: wire.BridgeCommand(),
	})
	if err != nil {
		return nil, d.failed(ctx, "make a bridge", err)
	}
	got, err := d.api.ExecAttach(ctx, exec.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, d.failed(ctx, "start a bridge", err)
	}
	return newPipes(got.HijackedResponse), nil
}

// pipes is the stdio of an exec as one transport. The engine sends stdout and stderr over one
// connection; a goroutine separates them, and Close waits for it.
type pipes struct {
	*io.PipeReader
	conn   net.Conn
	wg     sync.WaitGroup
	closer func() error
}

func newPipes(h client.HijackedResponse) *pipes {
	r, w := io.Pipe()
	p := &pipes{PipeReader: r, conn: h.Conn}
	p.closer = sync.OnceValue(func() error {
		err := errors.Join(p.conn.Close(), r.Close())
		p.wg.Wait()
		return err
	})
	p.wg.Go(func() {
		var stderr guestconn.Stderr
		_, err := stdcopy.StdCopy(w, &stderr, h.Reader)
		_ = w.CloseWithError(stderr.Reason(err))
	})
	return p
}

func (p *pipes) Write(b []byte) (int, error) { return p.conn.Write(b) }
func (p *pipes) Close() error                { return p.closer() }
