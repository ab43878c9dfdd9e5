package httpguard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// A request counts until its handler returns, also when its connection is closed.
func TestRequestCountsAfterConnectionCloses(t *testing.T) {
	l := NewConnLimiter(ConnBounds{Total: 8, Anonymous: 2, Callers: 4, Requests: 2, Streams: 2},
		slog.New(slog.DiscardHandler))
	r := httptest.NewRequest(http.MethodGet, "/v1/pools", nil)
	ann := caller.Principal{Caller: "ann"}
	first, err := l.Begin(r, ann, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(r, ann, false); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(r, ann, false); err == nil || !strings.Contains(err.Error(), "callers.max_requests") {
		t.Errorf("Begin() of a third request = %v, want its bound", err)
	}
	first()
	if _, err := l.Begin(r, ann, false); err != nil {
		t.Errorf("Begin() after the end of one = %v, want nil", err)
	}
}

// fullListener returns EMFILE for the first connection.
type fullListener struct {
	net.Listener
	failed atomic.Bool
}

func (l *fullListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.failed.CompareAndSwap(false, true) {
		c.Close()
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return c, err
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// If no descriptor is left for a new connection, a caller's connection is closed.
func TestAcceptWithoutDescriptorsClosesCallerConnection(t *testing.T) {
	t.Parallel()
	l := NewConnLimiter(boundsOf(1024, 0, 0), slog.New(slog.DiscardHandler))
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	full := &fullListener{Listener: inner}
	full.failed.Store(true)
	ll := limitedListener{full, l}
	defer ll.Close()
	theirs := dial(t, inner)
	c, err := ll.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/pools", nil)
	if _, err := l.Begin(r.WithContext(l.context(r.Context(), c)), caller.Principal{Caller: "ann"}, false); err != nil {
		t.Fatal(err)
	}
	full.failed.Store(false)
	dial(t, inner)
	if _, err := ll.Accept(); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("Accept() = %v, want %v", err, syscall.EMFILE)
	}
	if _, err := io.Copy(io.Discard, theirs); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the caller's connection is open, want it closed")
	}
	if n, _ := l.Len(); n != 0 {
		t.Errorf("Len() = %d, want 0", n)
	}
}

func TestBoundsOf(t *testing.T) {
	for _, c := range []struct {
		files, requests, streams int
		want                     ConnBounds
	}{
		{0, 0, 0, ConnBounds{Total: 8, Anonymous: 1, MaxAnonymous: 8, Callers: 6, Requests: 3, Streams: 1}},
		{1024, 512, 256, ConnBounds{Total: 256, Anonymous: 32, MaxAnonymous: 256, Callers: 192, Requests: 96, Streams: 48}},
		{1024, 10, 500, ConnBounds{Total: 256, Anonymous: 32, MaxAnonymous: 256, Callers: 192, Requests: 10, Streams: 48}},
		{
			1 << 20, 512, 256, ConnBounds{Total: 1 << 18, Anonymous: 1 << 15, MaxAnonymous: 1024, Callers: 3 << 16,
				Requests: 512, Streams: 256},
		},
		{
			1 << 20, 0, 0, ConnBounds{Total: 1 << 18, Anonymous: 1 << 15, MaxAnonymous: 1024, Callers: 3 << 16,
				Requests: 3 << 15, Streams: 3 << 14},
		},
	} {
		if got := boundsOf(c.files, c.requests, c.streams); got != c.want {
			t.Errorf("boundsOf(%d, %d, %d) = %+v, want %+v", c.files, c.requests, c.streams, got, c.want)
		}
	}
}

// begins counts a request of a caller on a new connection.
func begins(t *testing.T, l *ConnLimiter, p caller.Principal) (*limitedConn, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	c := &limitedConn{Conn: ours, l: l}
	l.mu.Lock()
	l.attach(c, l.anonymous)
	l.mu.Unlock()
	r := httptest.NewRequest(http.MethodGet, "/v1/pools", nil)
	_, err := l.Begin(r.WithContext(l.context(r.Context(), c)), p, false)
	return c, err
}

// Few connections over a limit get an answer. The others must be closed without one.
func TestConnectionsOverLimitAreBounded(t *testing.T) {
	l := NewConnLimiter(ConnBounds{Total: 64, Anonymous: 16, Callers: 32, Requests: 1, Streams: 1},
		slog.New(slog.DiscardHandler))
	over := func(who string) (c *limitedConn, drop bool) {
		t.Helper()
		c, err := begins(t, l, caller.Principal{Caller: who})
		e, ok := errors.AsType[*ConnectionError](err)
		if !ok {
			t.Fatalf("Begin() of a connection over the limit of %s = %v, want a *ConnectionError", who, err)
		}
		return c, e.Drop
	}
	for _, who := range []string{"ann", "ben", "eve"} {
		if _, err := begins(t, l, caller.Principal{Caller: who}); err != nil {
			t.Fatal(err)
		}
	}
	var last *limitedConn
	for i := range maxOver {
		c, drop := over("ann")
		if drop {
			t.Errorf("connection %d over the limit is dropped, want an answer", i)
		}
		last = c
	}
	dropped, drop := over("ann")
	if !drop {
		t.Errorf("connection %d over the limit gets an answer, want it dropped", maxOver)
	}
	dropped.Close()
	last.Close()
	if _, drop := over("ann"); drop {
		t.Error("a connection over the limit is dropped after another was closed, want an answer")
	}
	for i := range maxOver {
		if _, drop := over("ben"); drop {
			t.Errorf("connection %d of another caller is dropped, want an answer", i)
		}
	}
	if _, drop := over("eve"); !drop {
		t.Error("a connection beyond half of the anonymous share gets an answer, want it dropped")
	}
}

// logLen is a log handler that uses the ConnLimiter.
type logLen struct {
	slog.Handler
	l    **ConnLimiter
	open chan int
}

func (h logLen) Enabled(context.Context, slog.Level) bool { return true }

func (h logLen) Handle(context.Context, slog.Record) error {
	n, _ := (*h.l).Len()
	h.open <- n
	return nil
}

// An eviction is logged without the lock: a slow log must not delay other connections.
func TestEvictionIsLoggedWithoutTheLock(t *testing.T) {
	var l *ConnLimiter
	open := make(chan int, 1)
	l = NewConnLimiter(ConnBounds{Total: 8, Anonymous: 2, Callers: 4, Requests: 1, Streams: 1},
		slog.New(logLen{slog.DiscardHandler, &l, open}))
	ann := caller.Principal{Caller: "ann"}
	c, err := begins(t, l, ann)
	if err != nil {
		t.Fatal(err)
	}
	l.state(c, http.StateIdle)
	go func() { _, _ = begins(t, l, ann) }() // evicts the first one
	select {
	case n := <-open:
		if n != 1 {
			t.Errorf("%d connections are open after the eviction, want 1", n)
		}
	case <-time.After(time.Minute):
		t.Error("the eviction was not logged within a minute, want it logged")
	}
}
