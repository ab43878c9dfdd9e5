package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// serveLimited serves with the given bounds.
func serveLimited(t *testing.T, e *engine.Engine, b httpguard.ConnBounds) (address string, s *Server) {
	t.Helper()
	s = New(Options{Engine: e})
	if e == nil { // requests without a token are then not the operator's
		s.opts.Token = "secret"
	}
	s.conns = httpguard.NewConnLimiter(b, s.log)
	t.Cleanup(func() { // runs after the server has ended
		for began := time.Now(); open(s) > 0; time.Sleep(time.Millisecond) {
			if time.Since(began) > patience {
				t.Fatalf("%d open connections after the end, want 0", open(s))
			}
		}
		if _, callers := s.conns.Len(); callers != 0 {
			t.Errorf("%d callers are counted after the end, want 0", callers)
		}
	})
	return listen(t, s, "tcp", "127.0.0.1:0").String(), s
}

// open returns the number of open connections.
func open(s *Server) int {
	conns, _ := s.conns.Len()
	return conns
}

// rests waits until no connection of a caller serves a request.
func rests(t *testing.T, s *Server, caller string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		_, busy, _, _ := s.conns.Held(caller)
		if busy == 0 {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%d connections of %s are in a request, want 0", busy, caller)
		}
	}
}

// peer is a client's connection.
type peer struct {
	net.Conn
	in *bufio.Reader
}

func dialed(t *testing.T, address string) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &peer{conn, bufio.NewReader(conn)}
}

// get sends a request and reads the head of the answer, and the body unless it is an event stream.
func (p *peer) get(path string, header ...string) (*http.Response, error) {
	head := "GET " + path + " HTTP/1.1\r\nHost: x\r\n"
	for i := 0; i+1 < len(header); i += 2 {
		head += header[i] + ": " + header[i+1] + "\r\n"
	}
	if _, err := io.WriteString(p, head+"\r\n"); err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(p.in, nil)
	if err != nil || res.Header.Get("Content-Type") == formEvents {
		return res, err
	}
	b, err := io.ReadAll(res.Body)
	res.Body = io.NopCloser(strings.NewReader(string(b)))
	return res, err
}

// answers sends a request over a new connection, checks the status and leaves the connection open.
func answers(t *testing.T, address, path string, status int, header ...string) *peer {
	t.Helper()
	p := dialed(t, address)
	res, err := p.get(path, header...)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	if res.StatusCode != status {
		t.Fatalf("GET %s: status %d, want %d", path, res.StatusCode, status)
	}
	return p
}

// closed checks that the service closes the connection.
func (p *peer) closed(t *testing.T, who string) {
	t.Helper()
	if _, err := io.Copy(io.Discard, p.in); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection of %s is open, want it closed", who)
	}
}

func tokenOf(t *testing.T, e *engine.Engine, r v1.TokenRequest) []string {
	t.Helper()
	tok, err := e.Callers.CreateToken(t.Context(), caller.Local(""), r)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"Authorization", "Bearer " + tok.Secret}
}

// Anonymous idle connections are bounded, and new requests are still answered.
func TestAnonymousConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const most, all = 8, 40
	address, _ := serveLimited(
		t,
		nil,
		httpguard.ConnBounds{Total: 2 * all, Anonymous: 1, MaxAnonymous: most, Requests: 1, Streams: 1},
	)
	var closed atomic.Int32
	for range all {
		p := answers(t, address, "/healthz", http.StatusOK)
		go func() { // ends with the connection
			if _, err := p.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) &&
				!errors.Is(err, net.ErrClosed) {
				closed.Add(1)
			}
		}()
	}
	for began := time.Now(); closed.Load() < all-most; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > idleTime/4 {
			t.Fatalf("%d of %d connections were closed, want at least %d", closed.Load(), all, all-most)
		}
	}
	answers(t, address, "/healthz", http.StatusOK)
}

// A connection with a partial request is evicted like an idle one.
func TestPartialRequestsAreEvicted(t *testing.T) {
	t.Parallel()
	address, _ := serveLimited(t, nil, httpguard.ConnBounds{Total: 4, Anonymous: 4, Requests: 1, Streams: 1})
	for range 20 {
		p := dialed(t, address)
		if _, err := io.WriteString(p, "G"); err != nil {
			t.Fatal(err)
		}
	}
	answers(t, address, "/healthz", http.StatusOK)
}

// A caller that reaches its bounds gets 429. Other callers and operators are served.
func TestCallerLimitsLeaveOthersServed(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	hog, ann := tokenOf(t, e, v1.TokenRequest{Caller: "hog"}), tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 6, Streams: 4})
	const follow = "/v1/events?follow=true"
	refused := 0
	for range 40 {
		p := dialed(t, address)
		res, err := p.get(follow, hog...)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode == http.StatusOK {
			continue
		}
		var problem v1.Problem
		if err := json.NewDecoder(res.Body).Decode(&problem); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusTooManyRequests || problem.Code != "resource_exhausted" ||
			res.Header.Get("Retry-After") != "1" || !res.Close ||
			!strings.Contains(problem.Detail, "callers.max_streams") || !strings.Contains(problem.Detail, "4 of 4") {
			t.Errorf("a stream too many: status %d, header %v, %+v; want 429 and Retry-After for callers.max_streams, 4 of 4",
				res.StatusCode, res.Header, problem)
		}
		p.closed(t, "a refused request")
		refused++
	}
	if refused != 36 {
		t.Errorf("%d of 40 streams were refused, want 36", refused)
	}
	answers(t, address, "/v1/pools", http.StatusOK, hog...) // streams do not use up its requests
	answers(t, address, "/v1/pools", http.StatusOK, ann...)
	answers(t, address, follow, http.StatusOK, ann...)
	answers(t, address, "/v1/tokens", http.StatusOK)
	if conns, _, _, streams := s.conns.Held("hog"); conns > 6 || streams != 4 {
		t.Errorf("the caller has %d connections and %d streams, want at most 6, and 4", conns, streams)
	}
}

func TestEventStreamsCountForAnyAccept(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 6, Streams: 2})
	ann := append(tokenOf(t, e, v1.TokenRequest{Caller: "ann"}), "Accept", "*/*")
	for _, path := range []string{"/v1/approvals/events", "/v1/events?follow=true"} {
		defer answers(t, address, path, http.StatusOK, ann...).Close()
	}
	if _, _, _, streams := s.conns.Held("ann"); streams != 2 {
		t.Errorf("%d streams are counted, want 2", streams)
	}
	answers(t, address, "/v1/approvals/events", http.StatusTooManyRequests, ann...)
}

// A stream that ends frees its place for the next one.
func TestEndedStreamFreesItsPlace(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	ann := tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 2, Streams: 1})
	for range 5 {
		p := answers(t, address, "/v1/events?follow=true", http.StatusOK, ann...)
		answers(t, address, "/v1/events?follow=true", http.StatusTooManyRequests, ann...)
		p.Close()
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			if _, _, requests, _ := s.conns.Held("ann"); requests == 0 {
				break
			}
			if time.Since(began) > patience {
				t.Fatal("the request is still counted, want 0")
			}
		}
	}
}

// When callers use all their connections, a new caller evicts the newest connection of the caller
// with the most connections.
func TestNewCallerEvictsLargestHolder(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 6, Streams: 6})
	streams := map[string][]*peer{}
	header := map[string][]string{}
	for who, n := range map[string]int{"ann": 2, "hog": 6} {
		header[who] = tokenOf(t, e, v1.TokenRequest{Caller: who})
		for range n {
			streams[who] = append(streams[who],
				answers(t, address, "/v1/events?follow=true", http.StatusOK, header[who]...))
		}
	}
	bob := tokenOf(t, e, v1.TokenRequest{Caller: "bob"})
	answers(t, address, "/v1/pools", http.StatusOK, bob...) // its connection stays idle
	streams["hog"][5].closed(t, "hog")
	answers(t, address, "/v1/events?follow=true", http.StatusOK, bob...)
	streams["hog"][4].closed(t, "hog")
	if conns, _, _, _ := s.conns.Held("ann"); conns != 2 {
		t.Errorf("another caller has %d connections, want 2", conns)
	}
	// The caller with the most connections gets no more.
	for range 2 {
		answers(t, address, "/v1/events?follow=true", http.StatusTooManyRequests, header["hog"]...)
	}
}

// A new caller does not evict callers that hold no more than it.
func TestEqualCallersDoNotEvictEachOther(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 8, Callers: 2, Requests: 2, Streams: 2})
	for _, who := range []string{"ann", "bob"} {
		answers(t, address, "/v1/events?follow=true", http.StatusOK, tokenOf(t, e, v1.TokenRequest{Caller: who})...)
	}
	answers(t, address, "/v1/pools", http.StatusTooManyRequests, tokenOf(t, e, v1.TokenRequest{Caller: "cat"})...)
	for _, who := range []string{"ann", "bob"} {
		if conns, _, _, _ := s.conns.Held(who); conns != 1 {
			t.Errorf("%s has %d connections, want 1", who, conns)
		}
	}
}

// Operators evict callers' connections. No one evicts theirs.
func TestOperatorsAreNotEvicted(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 10, Anonymous: 2, Callers: 6, Requests: 3, Streams: 3})
	operators, callers := make([]*peer, 0, 8), make([]*peer, 0, 6)
	op := tokenOf(t, e, v1.TokenRequest{Caller: "boss", Operator: true})
	for i := range 2 {
		header := tokenOf(t, e, v1.TokenRequest{Caller: fmt.Sprintf("c%d", i)})
		for range 3 {
			callers = append(callers, answers(t, address, "/v1/events?follow=true", http.StatusOK, header...))
		}
	}
	for range 4 { // two more than their own share
		operators = append(operators, answers(t, address, "/v1/events?follow=true", http.StatusOK),
			answers(t, address, "/v1/events?follow=true", http.StatusOK, op...))
	}
	for _, p := range callers {
		p.closed(t, "a caller")
	}
	ann := tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	answers(t, address, "/v1/pools", http.StatusTooManyRequests, ann...)
	for _, p := range operators {
		if err := p.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, p.in); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reading an operator's stream: %v, want %v", err, os.ErrDeadlineExceeded)
		}
	}
	answers(t, address, "/v1/tokens", http.StatusTooManyRequests) // operators hold all connections
	operators[0].Close()
	for began := time.Now(); open(s) > 7; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("%d open connections after one was closed, want at most 7", open(s))
		}
	}
	answers(t, address, "/v1/tokens", http.StatusOK)
}

// Idle connections of a caller have the same bound as its requests. The one that is idle longest is
// closed.
func TestIdleConnectionsPerCallerAreBounded(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	ann := tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 100, Anonymous: 10, Callers: 80, Requests: 5, Streams: 5})
	all := make([]*peer, 0, 20)
	for range 20 {
		all = append(all, answers(t, address, "/v1/pools", http.StatusOK, ann...))
		rests(t, s, "ann")
	}
	for _, p := range all[:15] {
		p.closed(t, "ann")
	}
	if conns, _, requests, _ := s.conns.Held("ann"); conns != 5 || requests != 0 {
		t.Errorf("%d connections and %d requests are counted, want 5 and 0", conns, requests)
	}
}

// A hijacked connection counts until it is closed.
func TestHijackedConnectionCounts(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	s.conns = httpguard.NewConnLimiter(
		httpguard.ConnBounds{Total: 8, Anonymous: 2, Callers: 4, Requests: 4, Streams: 2}, s.log)
	leave := make(chan struct{})
	hijack := func(w http.ResponseWriter, _ *http.Request, _ caller.Principal) error {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return err
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		<-leave
		if half, ok := c.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
			t.Error("one direction cannot be closed, want CloseWrite to succeed")
		}
		return c.Close()
	}
	s.mux.Handle("/hijack", s.wrap(route{handle: hijack}))
	address := listen(t, s, "tcp", "127.0.0.1:0").String()
	p := dialed(t, address)
	if res, err := p.get("/hijack", "Upgrade", "x"); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("get = %v, %v; want status 101", res, err)
	}
	if n := open(s); n != 1 {
		t.Errorf("%d open connections while it is open, want 1", n)
	}
	close(leave)
	p.closed(t, "the client")
	for began := time.Now(); open(s) > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("%d open connections after the end, want 0", open(s))
		}
	}
}
