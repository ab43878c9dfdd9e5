package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// A request counts until its handler returns, also when its connection is closed.
func TestRequestCountsAfterConnectionCloses(t *testing.T) {
	l := newConnLimiter(connBounds{total: 8, anonymous: 2, callers: 4, requests: 2, streams: 2},
		slog.New(slog.DiscardHandler))
	r := httptest.NewRequest(http.MethodGet, "/v1/pools", nil)
	ann := caller.Principal{Caller: "ann"}
	first, err := l.begin(r, ann, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.begin(r, ann, false); err != nil {
		t.Fatal(err)
	}
	if _, err := l.begin(r, ann, false); err == nil || !strings.Contains(err.Error(), "callers.max_requests") {
		t.Errorf("begin() of a third request = %v, want its bound", err)
	}
	first()
	if _, err := l.begin(r, ann, false); err != nil {
		t.Errorf("begin() after the end of one = %v, want nil", err)
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

// If no descriptor is left for a new connection, a caller's connection is closed.
func TestAcceptWithoutDescriptorsClosesCallerConnection(t *testing.T) {
	t.Parallel()
	l := newConnLimiter(boundsOf(1024, 0, 0), slog.New(slog.DiscardHandler))
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	full := &fullListener{Listener: inner}
	full.failed.Store(true)
	ll := limitedListener{full, l}
	defer ll.Close()
	theirs := dialed(t, inner.Addr().String())
	c, err := ll.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/pools", nil)
	if _, err := l.begin(r.WithContext(l.context(r.Context(), c)), caller.Principal{Caller: "ann"}, false); err != nil {
		t.Fatal(err)
	}
	full.failed.Store(false)
	dialed(t, inner.Addr().String())
	if _, err := ll.Accept(); !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("Accept() = %v, want %v", err, syscall.EMFILE)
	}
	theirs.closed(t, "the caller")
	if n := l.size(); n != 0 {
		t.Errorf("size() = %d, want 0", n)
	}
}

func TestBoundsOf(t *testing.T) {
	for _, c := range []struct {
		files, requests, streams int
		want                     connBounds
	}{
		{0, 0, 0, connBounds{total: 8, anonymous: 1, maxAnonymous: 8, callers: 6, requests: 3, streams: 1}},
		{1024, 512, 256, connBounds{total: 256, anonymous: 32, maxAnonymous: 256, callers: 192, requests: 96, streams: 48}},
		{1024, 10, 500, connBounds{total: 256, anonymous: 32, maxAnonymous: 256, callers: 192, requests: 10, streams: 48}},
		{
			1 << 20, 512, 256, connBounds{total: 1 << 18, anonymous: 1 << 15, maxAnonymous: 1024, callers: 3 << 16, requests: 512,
				streams: 256},
		},
		{
			1 << 20, 0, 0, connBounds{total: 1 << 18, anonymous: 1 << 15, maxAnonymous: 1024, callers: 3 << 16, requests: 3 << 15,
				streams: 3 << 14},
		},
	} {
		if got := boundsOf(c.files, c.requests, c.streams); got != c.want {
			t.Errorf("boundsOf(%d, %d, %d) = %+v, want %+v", c.files, c.requests, c.streams, got, c.want)
		}
	}
}

func TestIsStream(t *testing.T) {
	for _, c := range []struct {
		method, target string
		header         []string
		want           bool
	}{
		{"GET", "/v1/events", nil, false},
		{"GET", "/v1/events?follow=true", nil, true},
		{"GET", "/v1/events?after=1&follow=%74rue", nil, true},
		{"GET", "/v1/shells/x/output?follow=false", nil, false},
		{"GET", "/v1/sandboxes/x/pty", []string{"Upgrade", "websocket"}, true},
		{"GET", "/v1/sandboxes/x/ports/80", []string{"Upgrade", "tcp"}, true},
		{"POST", "/v1/run", []string{"Accept", formFrames}, true},
		{"POST", "/v1/run", []string{headerExec, "e30"}, true},
		{"POST", "/v1/run", []string{"Accept", formJSON}, false},
		{"POST", "/v1/tools/x/call", []string{"Accept", formJSON + ", " + formEvents}, true},
		{"POST", "/mcp", []string{"Accept", formJSON + ", " + formEvents}, false},
		{"GET", "/mcp", []string{"Accept", formEvents}, true},
		{"GET", "/mcp", []string{"Accept", "*/*"}, true},
		{"POST", "/v1/run", []string{"Accept", strings.ToUpper(formFrames)}, true},
	} {
		r := httptest.NewRequestWithContext(context.Background(), c.method, c.target, nil)
		for i := 0; i+1 < len(c.header); i += 2 {
			r.Header.Add(c.header[i], c.header[i+1])
		}
		if got := isStream(r); got != c.want {
			t.Errorf("isStream(%s %s %v) = %v, want %v", c.method, c.target, c.header, got, c.want)
		}
	}
}

// A tool call that is refused before its body is read is recorded, like one that its handler
// refuses.
func TestCallOverRequestLimitIsRecorded(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e, ShellCaller: "old"})
	s.conns.bounds = connBounds{total: 8, anonymous: 4, callers: 4}
	srv := httptest.NewServer(s.Handler())
	t.Cleanup(srv.Close)
	ann := tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	problemIs(t, ask(t, srv, "POST", "/v1/tools/system.bash/call", `{"input":{"command":"ls"}}`, ann...),
		http.StatusTooManyRequests, "resource_exhausted", "")
	problemIs(t, ask(t, srv, "POST", "/shell", `{"command":"ls"}`, "Content-Type", formJSON),
		http.StatusTooManyRequests, "resource_exhausted", "")
	for _, c := range []struct{ caller, action, via string }{{"ann", "system.bash", "http"},
		{"old", "run_shell", "shell"}} {
		list := records(t, srv, "caller="+c.caller)
		if len(list) != 1 || list[0].Action != c.action || list[0].Ending != "failed" || list[0].Via != c.via ||
			!strings.Contains(list[0].Error, "callers.max_requests") {
			t.Errorf("recorded of %s: %+v", c.caller, list)
		}
	}
}
