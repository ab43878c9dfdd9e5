package guestconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
)

// bridgeDial bounds how long a stream waits for its connection in the guest.
const bridgeDial = 10 * time.Second

// serveMux is the guest's end of a mux over rwc, which it closes. For each stream it calls dial,
// and copies both ways until the host closes the stream. open counts the streams. The connections
// of dial should have CloseWrite. It returns nil when the host hangs up, the cause of ctx when ctx
// ends, and otherwise the transport error.
func serveMux(ctx context.Context, rwc io.ReadWriteCloser, dial func(context.Context) (net.Conn, error),
	open *atomic.Int64) error {
	t := newTransport(rwc)
	config := muxConfig()
	// A reset would drop what the host has not read yet; the host closes its streams in its own
	// time.
	config.StreamCloseTimeout = 0
	sess, err := yamux.Server(t, config)
	if err != nil {
		return errors.Join(fmt.Errorf("start bridge: %w", err), rwc.Close())
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-ctx.Done():
			_ = rwc.Close() // before the session, which would otherwise close each stream cleanly
		case <-sess.CloseChan():
		}
		_ = sess.Close()
	}()
	serveBridge(ctx, sess, dial, open)
	<-over
	return bridgeEnd(ctx, t)
}

// serveBridge joins streams until the session ends, then waits for the joined ones. They end after
// the session: the host would take a clean close for the guest's own end of file.
func serveBridge(ctx context.Context, sess *yamux.Session, dial func(context.Context) (net.Conn, error),
	open *atomic.Int64) {
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
		open.Add(1)
		wg.Go(func() {
			defer func() { <-slots; open.Add(-1) }()
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

const (
	// idle is how long a bridge waits for its host, which sends something every few seconds.
	idle       = 2 * stall
	pipeBuffer = 64 << 10
)

// errIdle means that a bridge's host is gone and its engine has not noticed.
var errIdle = fmt.Errorf("no data of the host for %s", idle)

// Pipe connects the host's connection, on stdin and stdout, to the guest's conn, and closes conn.
// It returns when either ends, and leaves a goroutine that may still read stdin: the process should
// exit then. It returns nil at the end of stdin or conn.
func Pipe(stdin io.Reader, stdout io.Writer, conn net.Conn) error {
	ended := make(chan error, 3)
	timer := time.AfterFunc(idle, func() {
		select {
		case ended <- errIdle:
		default:
		}
	})
	defer timer.Stop()
	// The wrappers hide ReadFrom and WriteTo: not every kernel can splice these files.
	copyAll := func(w io.Writer, r io.Reader) {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, pipeBuffer))
		ended <- err
	}
	go copyAll(conn, readerFunc(func(b []byte) (int, error) {
		n, err := stdin.Read(b)
		timer.Reset(idle)
		return n, err
	}))
	go copyAll(stdout, conn)
	err := <-ended
	return errors.Join(err, conn.Close())
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// oldUsage is how a guest begins its answer to a command that it does not know.
const oldUsage = "guest: usage:"

// bridgeEnded returns the error of a bridge that ended and wrote said to stderr.
func bridgeEnded(said string) error {
	switch {
	case said == "":
		return errors.New("the bridge ended")
	case strings.HasPrefix(said, oldUsage):
		return fmt.Errorf("%w: it is of an earlier build", ErrVersion)
	}
	return fmt.Errorf("the bridge ended and said %q", said)
}
