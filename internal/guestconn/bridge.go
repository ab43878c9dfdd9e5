package guestconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
)

// bridgeDial bounds how long a stream waits for the guest's own socket.
const bridgeDial = 10 * time.Second

// Bridge is the guest's end of a mux. It serves the host's session on stdin and stdout. For each
// stream it calls dial, and copies both ways until the host closes the stream. The connections of
// dial should have CloseWrite. It returns nil when the host hangs up, the cause of ctx when ctx
// ends, and otherwise the transport error. It closes stdin and stdout if they can be closed.
//
// A read or write that not even Close interrupts (a terminal, a file in blocking mode) is abandoned
// with its goroutine: the process should exit after Bridge returns.
func Bridge(ctx context.Context, stdin io.Reader, stdout io.Writer,
	dial func(context.Context) (net.Conn, error)) error {
	pipes := newStdio(stdin, stdout)
	t := &transport{rwc: pipes}
	config := muxConfig()
	// A reset would drop what the host has not read yet; the host closes its streams in its own
	// time.
	config.StreamCloseTimeout = 0
	sess, err := yamux.Server(t, config)
	if err != nil {
		return errors.Join(fmt.Errorf("start bridge: %w", err), pipes.Close())
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-ctx.Done():
			_ = pipes.Close() // before the session, which would otherwise close each stream cleanly
		case <-sess.CloseChan():
		}
		_ = sess.Close()
		pipes.wg.Wait()
	}()
	serveBridge(ctx, sess, dial)
	select {
	case <-over:
	case <-time.After(time.Second): // blocked in an uninterruptible read or write
	}
	return bridgeEnd(ctx, t)
}

// serveBridge joins streams until the session ends, then waits for the joined ones. They end after
// the session: the host would take a clean close for the guest's own end of file.
func serveBridge(ctx context.Context, sess *yamux.Session, dial func(context.Context) (net.Conn, error)) {
	// Twice the host's limit: the host counts a stream as closed slightly earlier.
	slots := make(chan struct{}, 2*(maxMuxed+MaxCarried))
	pool := new(relay.Pool)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	for {
		s, err := sess.AcceptStream()
		if err != nil {
			if sess.IsClosed() {
				return
			}
			continue // the stream died during accept; the session continues
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = s.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			join(ctx, s, func(ctx context.Context) (net.Conn, error) {
				conn, err := dial(ctx)
				if err == nil {
					relay.Bound(conn, len(slots))
				}
				return conn, err
			}, pool)
		})
	}
}

// join copies between a stream and a connection of the guest, until the host closes the stream.
// Each side may end its direction and continue to read. If the guest has finished writing, the
// stream is closed after all its data was sent. What the host still writes goes to the guest, or is
// dropped if the guest no longer reads, so that the host never waits for a window update.
func join(ctx context.Context, s *yamux.Stream, dial func(context.Context) (net.Conn, error), pool *relay.Pool) {
	past := time.Unix(1, 0)
	defer func() { _ = s.Close() }()
	dialCtx, cancel := context.WithTimeout(ctx, bridgeDial)
	conn, err := dial(dialCtx)
	cancel()
	if err != nil {
		return // the host sees the stream end without an answer
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close(); _ = s.SetDeadline(past) })
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := pool.Copy(conn, &deframer{r: s})
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite() // fails if the guest has hung up; its answer may still be unread
		}
		_, _ = io.Copy(io.Discard, s)
		_ = conn.Close()
		_ = s.SetWriteDeadline(past)
	})
	wg.Go(func() {
		_, _ = pool.Copy(s, conn)
		_ = s.Close()
	})
	wg.Wait()
}

// bridgeEnd returns why the bridge ended. A host that hangs up is noticed by a read or a write,
// whichever comes first.
func bridgeEnd(ctx context.Context, t *transport) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch cause := t.cause(); {
	case errors.Is(cause, io.EOF), errors.Is(cause, syscall.EPIPE), errors.Is(cause, io.ErrClosedPipe):
		return nil
	case cause != nil:
		return fmt.Errorf("bridge: %w: %w", ErrLost, cause)
	}
	return fmt.Errorf("bridge: %w", ErrLost)
}

// stdio makes one transport of two pipes. The session reads from an in-memory pipe that can always
// be closed. A goroutine reads stdin, which often cannot be closed.
type stdio struct {
	*io.PipeReader
	out    io.Writer
	closer func() error
	wg     sync.WaitGroup
}

func newStdio(stdin io.Reader, stdout io.Writer) *stdio {
	pr, pw := io.Pipe()
	s := &stdio{PipeReader: pr, out: stdout}
	s.closer = sync.OnceValue(func() error {
		err := pr.Close()
		for _, end := range []any{stdin, stdout} {
			if c, ok := end.(io.Closer); ok {
				err = errors.Join(err, c.Close())
			}
		}
		return err
	})
	s.wg.Go(func() {
		_, err := io.Copy(pw, stdin)
		_ = pw.CloseWithError(err) // nil means io.EOF to the reader
	})
	return s
}

func (s *stdio) Write(b []byte) (int, error) { return s.out.Write(b) }
func (s *stdio) Close() error                { return s.closer() }
