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

// Bridge is the guest's end of a mux: it serves the host's session on stdin and stdout, and for each stream calls dial
// and copies both ways until either side closes. It returns nil when the host hung up, the cause of ctx when
// that ended, and otherwise what broke. It closes stdin and stdout where they can be closed.
//
// A read of stdin, or a write of stdout, that not even Close interrupts (a terminal, a file in blocking mode) is
// abandoned with its goroutine: the process is expected to end after Bridge returns.
func Bridge(ctx context.Context, stdin io.Reader, stdout io.Writer, dial func(context.Context) (net.Conn, error)) error {
	pipes := newStdio(stdin, stdout)
	t := &transport{rwc: pipes}
	config := muxConfig()
	// A reset throws away what the host has not read yet; it closes its streams in its own time.
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
			_ = pipes.Close() // before the session, which would else close each stream in good order
		case <-sess.CloseChan():
		}
		_ = sess.Close()
		pipes.wg.Wait()
	}()
	serveBridge(ctx, sess, dial)
	select {
	case <-over:
	case <-time.After(time.Second): // in a read or a write that nothing interrupts
	}
	return bridgeEnd(ctx, t)
}

// serveBridge joins streams until the session ends, then waits for those it joined. They end after the session and never
// before it: the host would take streams closed in good order for the guest's own end of file.
func serveBridge(ctx context.Context, sess *yamux.Session, dial func(context.Context) (net.Conn, error)) {
	// Twice what the host opens: it counts a stream as closed a little before we do.
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
			continue // the stream died while it was accepted; the session goes on
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

// join copies between a stream and a connection of the guest. A stream the host closed is closed as a whole; where the
// guest has said its last, the host is told once everything went out, and what the host still writes is the guest's to
// take, or thrown away if it takes no more, so that the host never waits for a window nobody opens.
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
		if _, err := pool.Copy(conn, s); err != nil {
			_, _ = io.Copy(io.Discard, s) // the guest reads no more, but may have answered
		}
		_ = conn.Close()
		_ = s.SetWriteDeadline(past)
	})
	wg.Go(func() {
		_, _ = pool.Copy(s, conn)
		_ = s.Close()
	})
	wg.Wait()
}

// bridgeEnd says why the bridge is over. A host that hangs up is seen by whichever comes first, a read or a write.
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

// stdio makes one transport of two pipes. The session reads from a pipe in memory that can always be closed; stdin, which
// often can not, is read by a goroutine of its own.
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
