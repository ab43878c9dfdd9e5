package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// waits returns how long n calls of Wait take one after the other.
func waits(p *RefusalPacer, principal caller.Principal, n int) time.Duration {
	began := time.Now()
	for range n {
		p.Wait(principal, 1)
	}
	return time.Since(began)
}

func TestRefusalPacerDelaysOnlyCallerOverRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		mallory, bob := caller.Principal{Caller: "mallory"}, caller.Principal{Caller: "bob"}
		if got := waits(p, mallory, refusalBurst); got != 0 {
			t.Errorf("%d refusals took %v, want no delay", refusalBurst, got)
		}
		if got, want := waits(p, mallory, 2*refusalRate), 2*time.Second; got.Round(time.Millisecond) != want {
			t.Errorf("%d refusals over the burst took %v, want %v", 2*refusalRate, got, want)
		}
		if got := waits(p, bob, refusalBurst); got != 0 {
			t.Errorf("refusals of another caller took %v, want no delay", got)
		}
		operator := caller.Principal{Caller: "mallory", Operator: true}
		if got := waits(p, operator, 10*refusalBurst); got != 0 {
			t.Errorf("refusals of an operator took %v, want no delay", got)
		}
	})
}

func TestRefusalPacerBoundsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		longest := make(chan time.Duration)
		const clients = 20 * refusalBurst
		for range clients {
			go func() { longest <- waits(p, caller.Principal{}, 1) }()
		}
		var got time.Duration
		for range clients {
			got = max(got, <-longest)
		}
		if got != maxRefusalDelay {
			t.Errorf("the longest delay was %v, want %v", got, maxRefusalDelay)
		}
		began := time.Now()
		p.Wait(caller.Principal{}, 100*refusalBurst)
		if got := time.Since(began); got > maxRefusalDelay {
			t.Errorf("many refusals at once were delayed %v, want at most %v", got, maxRefusalDelay)
		}
	})
}

func TestRefusalPacerChargesEveryRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		mallory := caller.Principal{Caller: "mallory"}
		const n = 10 * refusalBurst
		p.Wait(mallory, n)
		p.Wait(mallory, 1)
		if got, want := waits(p, mallory, 1), maxRefusalDelay; got != want {
			t.Errorf("after %d refusals at once, the third answer waits %v, want %v", n, got, want)
		}
	})
}

func TestAnonymousWaitersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		const most, clients = 3, refusalBurst + 10
		waited := make(chan bool)
		for range clients {
			go func() { waited <- p.waitAmong(caller.Principal{}, 1, most) }()
		}
		got := 0
		for range clients {
			if <-waited {
				got++
			}
		}
		if want := refusalBurst + most; got != want {
			t.Errorf("%d of %d requests without a caller were answered, want %d", got, clients, want)
		}
		if !p.waitAmong(caller.Principal{}, 1, most) {
			t.Error("no request may wait after the others left")
		}
	})
}

func TestRefusalPacerForgetsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		for i := range 3 * maxPacedCallers {
			p.Wait(caller.Principal{Caller: fmt.Sprint("caller", i)}, 1)
			time.Sleep(time.Second / refusalRate) // the caller's refusals are forgiven
		}
		if got := len(p.callers); got > maxPacedCallers {
			t.Errorf("%d callers are remembered, want at most %d", got, maxPacedCallers)
		}
	})
}

func TestRefusedRequestsArePaced(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	hog, ann := tokenOf(t, e, v1.TokenRequest{Caller: "hog"}), tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	address, s := serveLimited(t, e, connBounds{total: 16, anonymous: 4, callers: 8, requests: 6, streams: 4})
	s.opts.Refusals.rate, s.opts.Refusals.burst = 4, 1
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
	if got := refused("/v1/sandboxes", http.StatusOK, 10, hog...); got > maxRefusalDelay/2 {
		t.Errorf("10 requests that succeed took %v, want no delay", got)
	}
	if got := refused("/v1/sandboxes/none", http.StatusNotFound, 1, ann...); got > maxRefusalDelay/2 {
		t.Errorf("a refusal of another caller took %v, want no delay", got)
	}
}

func TestExpiredTokenLosesItsConnections(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	address, s := serveLimited(t, e, connBounds{total: 16, anonymous: 4, callers: 8, requests: 6, streams: 4})
	brief := tokenOf(t, e, v1.TokenRequest{Caller: "ann", TTLMS: 2000})
	long := tokenOf(t, e, v1.TokenRequest{Caller: "ann", TTLMS: 3_600_000})
	const follow = "/v1/events?follow=true"
	stream, idle := answers(
		t,
		address,
		follow,
		http.StatusOK,
		brief...), answers(
		t,
		address,
		"/v1/pools",
		http.StatusOK,
		brief...)
	changed := answers(t, address, "/v1/pools", http.StatusOK, brief...)
	if _, err := changed.get(follow, long...); err != nil {
		t.Fatal(err)
	}
	stream.closed(t, "the stream of the expired token")
	idle.closed(t, "an idle connection of the expired token")
	eventually(t, "the end of the other connections", func() bool {
		conns, _, streams := s.conns.count("ann")
		return conns == 1 && streams == 1
	})
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
	s.conns.mu.Lock() // the request waits for it after it was identified
	go func() {
		defer close(done)
		s.Handler().ServeHTTP(w, r)
	}()
	eventually(t, "the use of the token", func() bool {
		list, err := e.Callers.Tokens(t.Context(), caller.Local(""))
		return err == nil && len(list) == 1 && list[0].LastUseAt != nil
	})
	if _, err := e.Callers.RevokeToken(t.Context(), caller.Local(""), tok.ID); err != nil {
		t.Error(err)
	}
	s.conns.mu.Unlock()
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
	address, s := serveLimited(t, e, connBounds{total: 16, anonymous: 4, callers: 8, requests: 6, streams: 4})
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
	if conns, _, streams := s.conns.count("ann"); conns != 1 || streams > 2 {
		t.Errorf("the caller has %d connections and %d streams, want 1 connection of its other token", conns, streams)
	}
}
