package guestconn

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience limits steps that should be immediate, for busy machines.
const patience = time.Minute

var eventually = testenv.Eventually

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func listen(t *testing.T, path string) *Listener {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "link")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "host.sock")
}

// dialHello connects and sends a greeting, which may be invalid.
func dialHello(t *testing.T, path string, greeting []byte) net.Conn {
	t.Helper()
	c, err := dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = c.Write(greeting) // the host may already have closed the stream, which the read reports
	return c
}

func (l *Listener) count() (greeting, free int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.greeting), len(l.free)
}

func (l *Listener) lastRefusal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		return ""
	}
	return l.refused.Error()
}

// closedByPeer reads until the other side hangs up.
func closedByPeer(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, error %v; want the host to hang up", n, err)
	}
}

func TestOpenTakesParkedStream(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	guest := dialHello(t, path, hello())
	host, err := l.Open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if _, err := host.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(guest, got); err != nil || string(got) != "Oping" {
		t.Fatalf(`the guest read %q, %v; want "Oping"`, got, err)
	}
	if err := host.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := host.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read past the deadline: %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if _, ok := host.(interface{ CloseWrite() error }); !ok {
		t.Fatalf("a local stream is a %T, want one with CloseWrite", host)
	}
}

func TestStreamsWaitForExpect(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	dialHello(t, path, hello())
	eventually(t, "the stream is held", func() bool { _, free := l.count(); return free == 1 })
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("gave up")
	opened := make(chan error, 1)
	go func() { _, err := l.Open(ctx); opened <- err }()
	cancel(cause)
	if err := <-opened; !errors.Is(err, cause) {
		t.Fatalf("open before a peer is expected: %v, want %v", err, cause)
	}
	l.Expect(os.Getpid())
	c, err := l.Open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestOpenWaitsForStream(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	const waiters = 8
	opened := make(chan error, waiters)
	for range waiters {
		go func() {
			c, err := l.Open(soon(t))
			if err == nil {
				err = c.Close()
			}
			opened <- err
		}()
	}
	for range waiters {
		dialHello(t, path, hello())
	}
	for range waiters {
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}
}

func TestOtherProcessIsRefused(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	held := dialHello(t, path, hello())
	eventually(t, "the stream is held", func() bool { _, free := l.count(); return free == 1 })
	l.Expect(1) // this is not process 1
	closedByPeer(t, held)
	closedByPeer(t, dialHello(t, path, hello()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Open(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "expected 1") {
		t.Fatalf("open: %v, want %v and the refusal", err, context.Canceled)
	}
}

func TestInvalidGreetingIsRefused(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	for _, tt := range []struct{ greeting, why string }{
		{"orlink\x00\x02", "version 2"},
		{"GET / HT", "invalid greeting"},
	} {
		closedByPeer(t, dialHello(t, path, []byte(tt.greeting)))
		if got := l.lastRefusal(); !strings.Contains(got, tt.why) {
			t.Errorf("refusal of %q: %q, want %q in it", tt.greeting, got, tt.why)
		}
	}
	if greeting, free := l.count(); greeting+free != 0 {
		t.Errorf("%d greeting and %d parked streams are left, want none", greeting, free)
	}
}

func TestOpenSkipsDeadStreams(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	alive := dialHello(t, path, hello())
	eventually(t, "one is parked", func() bool { _, free := l.count(); return free == 1 })
	_ = dialHello(t, path, hello()).Close()
	talker := dialHello(t, path, append(hello(), "too early"...))
	eventually(t, "three are parked", func() bool { _, free := l.count(); return free == 3 })
	c, err := l.Open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 1)
	if _, err := io.ReadFull(alive, b); err != nil || b[0] != startByte {
		t.Fatalf("the live stream read %q, %v; want its start byte %q", b, err, startByte)
	}
	closedByPeer(t, talker)
}

func TestHostilePeersAreLimitedAndDoNotBlock(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	// Half of them send nothing, half greet and stay.
	var silent, parked []net.Conn
	for i := range MaxParked {
		if i%2 == 0 {
			silent = append(silent, dialHello(t, path, nil))
		} else {
			parked = append(parked, dialHello(t, path, hello()))
		}
	}
	eventually(t, "every place is taken", func() bool {
		greeting, free := l.count()
		return greeting == MaxParked/2 && free == MaxParked/2
	})
	for range 3 * MaxParked {
		c := dialHello(t, path, nil)
		closedByPeer(t, c)
		_ = c.Close()
	}
	if greeting, free := l.count(); greeting+free > MaxParked {
		t.Fatalf("%d greeting and %d parked streams, want at most %d together", greeting, free, MaxParked)
	}
	c, err := l.Open(soon(t))
	if err != nil {
		t.Fatalf("open among the silent: %v", err)
	}
	_ = c.Close()
	// Dead streams are replaced by live ones without an Open in between.
	for _, c := range append(parked, silent...) {
		_ = c.Close()
	}
	eventually(t, "a new one is parked", func() bool {
		fresh := dialHello(t, path, hello())
		_, free := l.count()
		if free == 0 || free > MaxParked {
			_ = fresh.Close()
			return false
		}
		return true
	})
}

func TestCloseKeepsOpenStreams(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	guest := dialHello(t, path, hello())
	inUse, err := l.Open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer inUse.Close()
	silent := dialHello(t, path, nil)
	opened := make(chan error, 1)
	go func() { _, err := l.Open(soon(t)); opened <- err }()
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; !errors.Is(err, ErrClosed) {
		t.Fatalf("open that waits for a stream: %v, want %v", err, ErrClosed)
	}
	if _, err := l.Open(soon(t)); !errors.Is(err, ErrClosed) {
		t.Fatalf("open after close: %v, want %v", err, ErrClosed)
	}
	closedByPeer(t, silent)
	if _, err := guest.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(inUse, make([]byte, 1)); err != nil {
		t.Fatalf("read of an open stream after the listener closed: %v, want no error", err)
	}
}

func TestListenReplacesOnlySocket(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	old := listen(t, path)
	fresh := listen(t, path)
	fresh.Expect(os.Getpid())
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	dialHello(t, path, hello())
	c, err := fresh.Open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := fresh.Close(); err != nil {
		t.Fatal(err)
	}
	// A socket without a listener, as a killed host leaves it.
	listen(t, path)

	file := filepath.Join(filepath.Dir(path), "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file); err == nil {
		t.Fatal("Listen replaced a file by a socket, want an error")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
		t.Fatalf(`the file in the way is %q, %v; want "kept"`, b, err)
	}
}

func TestLongPathsWork(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(socketPath(t))
	for range 4 {
		dir = filepath.Join(dir, strings.Repeat("d", 50))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "host.sock")
	l := listen(t, path)
	l.Expect(os.Getpid())
	dialHello(t, path, hello())
	c, err := l.Open(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("the socket is %v, %v; want mode 0600", st, err)
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add(hello())
	f.Add([]byte("orlink\x00\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := checkHello(b); (err == nil) != (string(b) == string(hello())) {
			t.Fatalf("checkHello(%q) = %v, want an error exactly if it differs from %q", b, err, hello())
		}
	})
}
