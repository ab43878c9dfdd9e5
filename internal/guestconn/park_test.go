package guestconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// guest runs Park until the test ends and counts how often it saw a host.
type guest struct {
	seen   atomic.Int64
	cancel context.CancelCauseFunc
	done   chan error
}

func park(t *testing.T, path string, n int, serve func(net.Conn)) *guest {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	g := &guest{cancel: cancel, done: make(chan error, 1)}
	go func() {
		g.done <- Park(ctx, path, n, func(c net.Conn) bool { serve(c); return false }, func() { g.seen.Add(1) })
	}()
	t.Cleanup(func() { cancel(nil); g.wait() })
	return g
}

func (g *guest) wait() error {
	err := <-g.done
	g.done <- err
	return err
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// opener is the host's end of either transport.
type opener interface {
	Open(context.Context) (net.Conn, error)
}

// roundTrip opens a stream to an echo server and sends size bytes through it.
func roundTrip(ctx context.Context, o opener, size int) error {
	c, err := o.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return exchange(c, size)
}

func exchange(c net.Conn, size int) error {
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)
	wrote := make(chan error, 1)
	go func() { _, err := c.Write(want); wrote <- err }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("read back: %w", errors.Join(err, c.Close(), <-wrote))
	}
	if err := <-wrote; err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("what came back is not what was sent")
	}
	return nil
}

// manyRoundTrips runs n round trips concurrently.
func manyRoundTrips(t *testing.T, o opener, n, size int) {
	t.Helper()
	ctx := soon(t)
	done := make(chan error, n)
	for range n {
		go func() { done <- roundTrip(ctx, o, size) }()
	}
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestParkServesManyStreams(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	g := park(t, path, 4, echo)
	for range 50 {
		must(t, roundTrip(soon(t), l, 1))
	}
	manyRoundTrips(t, l, 20, 1<<20)
	eventually(t, "four streams are parked again", func() bool { _, free := l.count(); return free == 4 })
	if g.seen.Load() < 70 {
		t.Errorf("the host was seen %d times in 70 uses, want at least 70", g.seen.Load())
	}
}

func TestParkReconnectsToNewHost(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	g := park(t, path, 4, echo)
	for range 3 {
		l := listen(t, path)
		l.Expect(os.Getpid())
		must(t, roundTrip(soon(t), l, 1))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	// No host is present now. The counter must not change for longer than one interval.
	last, since := g.seen.Load(), time.Now()
	eventually(t, "the host is not seen any more", func() bool {
		if now := g.seen.Load(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 2*presenceEvery
	})
}

func TestParkSeesIdleHost(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	g := park(t, path, 1, echo)
	eventually(t, "the stream is parked", func() bool { _, free := l.count(); return free == 1 })
	before := g.seen.Load()
	eventually(t, "the host is seen again without a use", func() bool { return g.seen.Load() >= before+2 })
}

func TestParkStopsAtLimitAndContinues(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	g := park(t, path, 4, echo)
	open := make([]net.Conn, 0, MaxServed)
	for range MaxServed {
		c, err := l.Open(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	must(t, exchange(open[0], 1))
	if _, free := l.count(); free != 0 {
		t.Fatalf("%d streams are parked at the limit, want 0", free)
	}
	before := g.seen.Load()
	eventually(t, "the host is seen although nothing is parked", func() bool { return g.seen.Load() > before })
	_ = open[0].Close()
	must(t, roundTrip(soon(t), l, 1))
}

func TestParkEndsWithContext(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	var serving atomic.Int64
	g := park(t, path, 4, func(c net.Conn) {
		serving.Add(1)
		defer serving.Add(-1)
		echo(c)
	})
	c, err := l.Open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must(t, exchange(c, 1))
	cause := errors.New("sandbox ends")
	g.cancel(cause)
	if err := g.wait(); !errors.Is(err, cause) {
		t.Fatalf("Park = %v, want %v", err, cause)
	}
	if n := serving.Load(); n != 0 {
		t.Fatalf("%d streams are still served, want 0", n)
	}
	closedByPeer(t, c)
}

func TestParkRefusesInvalidCount(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, MaxServed + 1} {
		if err := Park(t.Context(), "unused", n, nil, func() {}); err == nil {
			t.Errorf("Park of %d streams = nil, want an error", n)
		}
	}
}
