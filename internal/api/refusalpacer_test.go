package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// longestDelay is the longest delay of a refusal.
const longestDelay = 5 * time.Second

func TestRefusedRequestsArePaced(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	hog, ann := tokenOf(t, e, v1.TokenRequest{Caller: "hog"}), tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 6, Streams: 4})
	s.opts.Refusals.Rate, s.opts.Refusals.Burst = 4, 1
	refused := func(path string, status, n int, header ...string) time.Duration {
		began := time.Now()
		for range n {
			answers(t, address, path, status, header...).Close()
		}
		return time.Since(began)
	}
	for _, c := range []struct {
		path   string
		status int
		header []string
	}{
		{"/v1/sandboxes/none", http.StatusNotFound, hog},
		{"/v1/sandboxes", http.StatusUnauthorized, []string{"Authorization", "Basic x"}},
	} {
		if got, want := refused(c.path, c.status, 3, c.header...), time.Second/2; got < want {
			t.Errorf("GET %s: 3 refusals took %v, want at least %v", c.path, got, want)
		}
	}
	if got := refused("/v1/sandboxes", http.StatusOK, 10, hog...); got > longestDelay/2 {
		t.Errorf("10 requests that succeed took %v, want no delay", got)
	}
	if got := refused("/v1/sandboxes/none", http.StatusNotFound, 1, ann...); got > longestDelay/2 {
		t.Errorf("a refusal of another caller took %v, want no delay", got)
	}
}

func TestExpiredTokenLosesItsConnections(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 6, Streams: 4})
	brief := tokenOf(t, e, v1.TokenRequest{Caller: "ann", TTLMS: 2000})
	long := tokenOf(t, e, v1.TokenRequest{Caller: "ann", TTLMS: 3_600_000})
	const follow = "/v1/events?follow=true"
	stream := answers(t, address, follow, http.StatusOK, brief...)
	idle := answers(t, address, "/v1/pools", http.StatusOK, brief...)
	changed := answers(t, address, "/v1/pools", http.StatusOK, brief...)
	if _, err := changed.get(follow, long...); err != nil {
		t.Fatal(err)
	}
	stream.closed(t, "the stream of the expired token")
	idle.closed(t, "an idle connection of the expired token")
	eventually(t, "the end of the other connections", func() bool {
		conns, _, _, streams := s.conns.Held("ann")
		return conns == 1 && streams == 1
	})
}

// beginContext is the context of a request that is not counted before begin is closed.
type beginContext struct {
	context.Context
	begin <-chan struct{}
}

func (c beginContext) Value(key any) any {
	if strings.HasPrefix(fmt.Sprintf("%T", key), "httpguard.") {
		<-c.begin
	}
	return c.Context.Value(key)
}

func TestTokenRevokedWhileRequestBeginsIsRefused(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	tok, err := e.Callers.CreateToken(t.Context(), caller.Local(""), v1.TokenRequest{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Engine: e})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/pools", nil)
	r.Header.Set("Authorization", "Bearer "+tok.Secret)
	w, done := httptest.NewRecorder(), make(chan struct{})
	begin := make(chan struct{}) // the request waits for it after it was identified
	r = r.WithContext(beginContext{r.Context(), begin})
	go func() {
		defer close(done)
		s.mux.ServeHTTP(w, r)
	}()
	eventually(t, "the use of the token", func() bool {
		list, err := e.Callers.Tokens(t.Context(), caller.Local(""))
		return err == nil && len(list) == 1 && list[0].LastUseAt != nil
	})
	if _, err := e.Callers.RevokeToken(t.Context(), caller.Local(""), tok.ID); err != nil {
		t.Error(err)
	}
	close(begin)
	<-done
	if w.Code != http.StatusUnauthorized {
		t.Errorf("status = %d, want 401", w.Code)
	}
}

func TestRevokedTokenLosesItsConnections(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	tok, err := e.Callers.CreateToken(t.Context(), caller.Local(""), v1.TokenRequest{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	other := tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 6, Streams: 4})
	const follow = "/v1/events?follow=true"
	stream := answers(t, address, follow, http.StatusOK, "Authorization", "Bearer "+tok.Secret)
	idle := answers(t, address, "/v1/sandboxes", http.StatusOK, "Authorization", "Bearer "+tok.Secret)
	answers(t, address, follow, http.StatusOK, other...)
	res, err := http.NewRequestWithContext(t.Context(), http.MethodDelete,
		"http://"+address+"/v1/tokens/"+tok.ID, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(res)
	if err != nil {
		t.Fatal(err)
	}
	got.Body.Close()
	if got.StatusCode != http.StatusOK {
		t.Fatalf("DELETE of the token: status %d, want 200", got.StatusCode)
	}
	stream.closed(t, "a stream of the revoked token")
	idle.closed(t, "an idle connection of the revoked token")
	if conns, _, _, streams := s.conns.Held("ann"); conns != 1 || streams > 2 {
		t.Errorf("the caller has %d connections and %d streams, want 1 connection of its other token", conns, streams)
	}
}
