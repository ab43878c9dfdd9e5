package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
)

// A batch counts as many requests as it has messages.
func TestRequestsPerCallerAreBounded(t *testing.T) {
	f := newFake()
	at, s := serve(t, Options{Engine: f, Requests: 2, Resume: time.Millisecond})
	id, other := introduce(t, at, "ben"), introduce(t, at, "eve")
	batch := make([]string, 0, 10)
	for i := range 10 {
		batch = append(batch, strings.Replace(call, `"id":2`, fmt.Sprintf(`"id":%d`, 100+i), 1))
	}
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res := begin(ctx, t, http.MethodPost, at, "ben", id, "["+strings.Join(batch, ",")+"]", "Mcp-Protocol-Version",
		"2025-03-26")
	defer res.Body.Close()
	for range 2 {
		within(t, f.running, "a running command")
	}
	var refused []string
	eventually(t, "the refusal of the others", func() bool {
		refused = append(refused, f.hasRefused()...)
		return len(refused) >= 8
	})
	if len(refused) != 8 || !strings.HasPrefix(refused[0], "ben mcp system_bash") ||
		!strings.Contains(refused[0], "callers.max_requests") {
		t.Errorf("recorded %d refusals, want 8: %q", len(refused), refused)
	}
	_, body := request(t, http.MethodPost, at, "ben", id, quick)
	wantPart(t, "one more request", body, "2 of 2 requests at once")
	_, body = request(t, http.MethodPost, at, "eve", other, quick)
	wantPart(t, "a request of another caller", body, "quick")
	hangUp()
	for range 2 {
		within(t, f.killed, "the end of a command")
	}
	eventually(t, "the end of the requests", func() bool {
		s.requests.mu.Lock()
		defer s.requests.mu.Unlock()
		return len(s.requests.n) == 0
	})
	_, body = request(t, http.MethodPost, at, "ben", id, quick)
	wantPart(t, "a request after their end", body, "quick")
}

// The requests of a client that leaves repeatedly are bounded.
func TestLostRequestsPerSessionAreBounded(t *testing.T) {
	x := &session{}
	posts := make([]*post, 0, maxLost+3)
	for range maxLost + 3 {
		p := newPost(t.Context(), func() {})
		posts = append(posts, p)
		x.addLost(p, time.Hour)
	}
	defer func() {
		for _, p := range x.lost {
			p.timer.Stop()
		}
	}()
	for i, p := range posts {
		if ended := errors.Is(context.Cause(p.ctx), errGone); ended != (i < 3) {
			t.Errorf("request %d of %d ended: %t, want %t", i, len(posts), ended, i < 3)
		}
	}
	if len(x.lost) != maxLost {
		t.Errorf("%d lost requests are kept, want %d", len(x.lost), maxLost)
	}
}

// Callers that together hold all sessions exclude neither other callers nor operators.
func TestSessionsAreSharedFairly(t *testing.T) {
	f := newFake()
	at, s := serve(t, Options{Engine: f})
	held := func() map[string]int {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := map[string]int{}
		for _, x := range s.sessions {
			n[x.caller]++
		}
		return n
	}
	busy := introduce(t, at, "a")
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res := begin(ctx, t, http.MethodPost, at, "a", busy, call)
	defer res.Body.Close()
	within(t, f.running, "a running command")
	resting := introduce(t, at, "a")
	for who, n := range map[string]int{"a": 254, "b": 255, "c": 255, "d": 255, "e": 3} {
		for range n {
			introduce(t, at, who)
		}
	}
	introduce(t, at, "ben")
	introduce(t, at, "root")
	got := held()
	if got["ben"] != 1 || got["root"] != 1 || got["a"] != 255 || got["b"] != 255 || got["e"] != 3 {
		t.Errorf("sessions by caller = %v, want 1 of ben and root, 255 of a and b, 3 of e", got)
	}
	if s.byID(busy) == nil || s.byID(resting) != nil {
		t.Errorf("the busy session exists: %t, the longest idle one: %t; want only the busy one",
			s.byID(busy) != nil, s.byID(resting) != nil)
	}
	hangUp()
	within(t, f.killed, "the end of the command")
}

// Subscriptions to many URIs use no memory.
func TestSubscriptionsUseOneURI(t *testing.T) {
	s := New(Options{Engine: newFake(), ForCallers: core.ForCallers})
	var got []string
	h := s.receive(func(_ context.Context, _ string, req mcp.Request) (mcp.Result, error) {
		switch p := req.GetParams().(type) {
		case *mcp.SubscribeParams:
			got = append(got, p.URI)
		case *mcp.UnsubscribeParams:
			got = append(got, p.URI)
		}
		return nil, nil
	})
	for i := range 3 {
		uri := fmt.Sprintf("orchestrator://calls/%d/stdout", i)
		if _, err := h(t.Context(), "resources/subscribe",
			&mcp.SubscribeRequest{Session: &mcp.ServerSession{}, Params: &mcp.SubscribeParams{URI: uri}}); err != nil {
			t.Fatal(err)
		}
		if _, err := h(t.Context(), "resources/unsubscribe", &mcp.UnsubscribeRequest{Session: &mcp.ServerSession{},
			Params: &mcp.UnsubscribeParams{URI: uri}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, uri := range got {
		if uri != subscribed {
			t.Errorf("the library is asked for %q, want %q", uri, subscribed)
		}
	}
	if len(got) != 6 {
		t.Errorf("the library was asked %d times, want 6", len(got))
	}
}

// of returns the context of a caller's request.
func of(t *testing.T, name string) context.Context {
	t.Helper()
	return context.WithValue(t.Context(), accessContext{}, Access{Principal: caller.Principal{Caller: name}})
}

func replay(t *testing.T, e *eventStore, session, stream string, index int) (string, error) {
	t.Helper()
	var out []string
	for b, err := range e.After(t.Context(), session, stream, index) {
		if err != nil {
			return "", err
		}
		out = append(out, string(b))
	}
	return strings.Join(out, " "), nil
}

func TestEventStoreReplaysStreams(t *testing.T) {
	e := newEventStore(1 << 20)
	ctx := of(t, "ann")
	for _, stream := range []string{"", "s"} {
		if err := errors.Join(e.Open(ctx, "x", stream), e.Append(ctx, "x", stream, []byte("0"+stream)),
			e.Append(ctx, "x", stream, []byte("1"+stream))); err != nil {
			t.Fatal(err)
		}
	}
	for index, want := range map[int]string{-1: "0s 1s", 0: "1s", 1: "", 7: ""} {
		if got, err := replay(t, e, "x", "s", index); err != nil || got != want {
			t.Errorf("After(%d) = %q, %v, want %q", index, got, err, want)
		}
	}
	if _, err := replay(t, e, "x", "t", -1); err == nil {
		t.Error("After() of an unknown stream succeeded, want an error")
	}
	if err := e.SessionClosed(ctx, "x"); err != nil || e.bytes != 0 || len(e.sessions) != 0 {
		t.Errorf("SessionClosed: %v, then %d bytes of %d sessions; want none", err, e.bytes, len(e.sessions))
	}
}

// A caller with many sessions and streams loses its own events, not those of others, and the store
// stays within its limit.
func TestEventStoreIsBoundedAndFair(t *testing.T) {
	const most = 64 << 10
	e := newEventStore(most)
	ann := of(t, "ann")
	if err := errors.Join(e.Open(ann, "a", ""), e.Open(ann, "a", "s"),
		e.Append(ann, "a", "s", make([]byte, 20<<10))); err != nil {
		t.Fatal(err)
	}
	hog := of(t, "hog")
	for i := range 2000 {
		session := fmt.Sprintf("h%d", i%8) // each smaller than ann's
		if i < 8 {
			if err := e.Open(hog, session, ""); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(e.Open(hog, session, fmt.Sprint(i)),
			e.Append(hog, session, fmt.Sprint(i), make([]byte, i%100))); err != nil {
			t.Fatal(err)
		}
		if e.bytes > most {
			t.Fatalf("%d bytes after %d streams, want at most %d", e.bytes, i, most)
		}
	}
	if got, err := replay(t, e, "a", "s", -1); err != nil || len(got) != 20<<10 {
		t.Errorf("%d bytes of another caller are left, %v; want %d", len(got), err, 20<<10)
	}
	if _, err := replay(t, e, "h0", "0", -1); !errors.Is(err, mcp.ErrEventsPurged) {
		t.Errorf("After() of what was dropped = %v, want %v", err, mcp.ErrEventsPurged)
	}
	if _, err := replay(t, e, "h0", "", -1); err != nil {
		t.Errorf("After() of the session's own stream = %v, want no error", err)
	}
	if err := e.Append(hog, "h0", "0", []byte("late")); err != nil || e.sessions["h0"].streams["0"] != nil {
		t.Errorf("Append to a dropped stream: %v, stream %v; want neither", err, e.sessions["h0"].streams["0"])
	}
	// A single stream that is too large loses its first events.
	if err := errors.Join(e.SessionClosed(ann, "a"), e.Open(ann, "b", "")); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := e.Append(ann, "b", "", append([]byte(fmt.Sprint(i)), make([]byte, 10<<10)...)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := replay(t, e, "b", "", -1); !errors.Is(err, mcp.ErrEventsPurged) {
		t.Errorf("After(-1) = %v, want %v", err, mcp.ErrEventsPurged)
	}
	if got, err := replay(t, e, "b", "", 8); err != nil || !strings.HasPrefix(got, "9") || e.bytes > most {
		t.Errorf("After(8) = %.1q, %v, with %d bytes kept; want event 9 and at most %d bytes", got, err, e.bytes, most)
	}
}
