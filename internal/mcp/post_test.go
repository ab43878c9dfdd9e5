package mcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
)

// The body of a client that left is held until its calls have ended.
func TestBodyIsHeldUntilLostCallsEnd(t *testing.T) {
	f := newFake()
	s := New(Options{Engine: f, ForCallers: core.ForCallers, Resume: time.Hour})
	var held atomic.Int32
	served := make(chan struct{}, 8)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held.Add(1)
		s.Serve(w, r, caller.Principal{Caller: "ben"}, func() { held.Add(-1) })
		served <- struct{}{}
	}))
	t.Cleanup(func() {
		closeServer(t, s)
		h.Close()
	})
	id := introduce(t, h.URL, "ben")
	within(t, served, "the first answer")
	request(t, http.MethodPost, h.URL, "ben", id, quick)
	request(t, http.MethodGet, h.URL, "ben", "unknown", "")
	request(t, http.MethodPost, h.URL+"?x=y", "ben", id, quick)
	for range 3 {
		within(t, served, "an answer")
	}
	if n := held.Load(); n != 0 {
		t.Errorf("%d bodies are held after their requests were answered, want none", n)
	}

	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res := begin(ctx, t, http.MethodPost, h.URL, "ben", id, call)
	defer res.Body.Close()
	within(t, f.running, "a running command")
	hangUp()
	within(t, served, "the end of the lost request")
	if n := held.Load(); n != 1 {
		t.Errorf("%d bodies are held while a lost call runs, want 1", n)
	}
	x := s.byID(id)
	x.mu.Lock()
	lost := slices.Clone(x.lost)
	x.mu.Unlock()
	if len(lost) != 1 {
		t.Fatalf("%d lost requests, want 1", len(lost))
	}
	x.giveUp(lost[0])
	within(t, f.killed, "the end of the command")
	eventually(t, "the release of the body", func() bool { return held.Load() == 0 })
}

// A lost request whose calls have ended by themselves takes no room.
func TestLostRequestIsForgottenWhenItsCallsEnd(t *testing.T) {
	f := newFake()
	at, s := serve(t, Options{Engine: f, Resume: time.Hour})
	id := introduce(t, at, "ben")
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res := begin(ctx, t, http.MethodPost, at, "ben", id, strings.Replace(call, "wait for it", "ask", 1))
	defer res.Body.Close()
	approval := within(t, f.running, "a call that waits for an approval")
	hangUp()
	x := s.byID(id)
	lost := func() int {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.lost)
	}
	eventually(t, "the loss of the request", func() bool { return lost() == 1 })
	f.mu.Lock()
	f.answers[approval] <- v1.ApprovalAnswer{Action: "deny"}
	f.mu.Unlock()
	eventually(t, "the end of the request", func() bool { return lost() == 0 })
}

// Neither a client that loses more requests, nor one that resumes another stream, extends the time
// of a lost request.
func TestLostRequestsHaveTheirOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const in = 5 * time.Second
		x := &session{}
		lose := func(stream string) *post {
			p := newPost(t.Context(), func() {})
			p.opened(stream)
			x.addLost(p, in)
			return p
		}
		isLost := func(p *post) bool {
			synctest.Wait()
			return errors.Is(context.Cause(p.ctx), errGone)
		}
		a := lose("a")
		gone := x.resume("b", in) // before the loss of its first connection is noticed
		time.Sleep(in / 2)
		b, c := lose("b"), lose("c")
		x.resume("c", in)()
		time.Sleep(in / 2)
		if !isLost(a) || isLost(b) || isLost(c) {
			t.Errorf("after %v: ended are a %v, b %v, c %v; want only a", in, isLost(a), isLost(b), isLost(c))
		}
		time.Sleep(in / 2)
		if isLost(b) || !isLost(c) {
			t.Errorf("after %v: ended are b %v, c %v; want c", in*3/2, isLost(b), isLost(c))
		}
		time.Sleep(10 * in)
		if isLost(b) {
			t.Error("a request ended while its stream was resumed, want it to run")
		}
		gone()
		time.Sleep(in)
		if !isLost(b) {
			t.Error("a request runs after its client left again, want it ended")
		}
		if len(x.lost) != 0 || len(x.resumed) != 0 {
			t.Errorf("%d lost requests and %d resumed streams are left, want none", len(x.lost), len(x.resumed))
		}
	})
}

// refusals are the arguments of the calls of Options.Refused.
type refusals struct {
	mu sync.Mutex
	n  []int
}

func (r *refusals) add(_ caller.Principal, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n = append(r.n, n)
}

// take returns the refusals since the last call.
func (r *refusals) take() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.n
	r.n = nil
	return n
}

// The refused requests of a batch are delayed together, so that they hold no goroutine each,
// whether the client stays or leaves.
func TestRequestsOverLimitAreDelayedTogether(t *testing.T) {
	f := newFake()
	var r refusals
	at, s := serve(t, Options{Engine: f, Requests: 1, Resume: time.Hour, Refused: r.add})
	id := introduce(t, at, "ben")
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res := begin(ctx, t, http.MethodPost, at, "ben", id, call)
	defer res.Body.Close()
	within(t, f.running, "a running command")
	var batch []string
	for i := range 10 {
		batch = append(batch, strings.Replace(quick, `"id":3`, fmt.Sprintf(`"id":%d`, 100+i), 1))
	}
	body := "[" + strings.Join(batch, ",") + "]"
	request(t, http.MethodPost, at, "ben", id, body, "Mcp-Protocol-Version", "2025-03-26")
	if got := r.take(); !slices.Equal(got, []int{10}) {
		t.Errorf("the refusals of a batch were counted as %v, want [10]", got)
	}
	left := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", strings.NewReader(body))
	left.Header.Set("Content-Type", "application/json")
	left.Header.Set("Accept", "application/json, text/event-stream")
	left.Header.Set("Mcp-Protocol-Version", "2025-03-26")
	left.Header.Set(headerID, id)
	hangUp()
	over := make(chan struct{})
	s.Serve(httptest.NewRecorder(), left, caller.Principal{Caller: "ben"}, func() { close(over) })
	if got := r.take(); !slices.Equal(got, []int{10}) {
		t.Errorf("the refusals of a client that left were counted as %v, want [10]", got)
	}
	within(t, over, "the end of the request")
}

// Every refused request counts as a refusal, not only tool calls.
func TestProtocolErrorsAreRefusals(t *testing.T) {
	var r refusals
	at, _ := serve(t, Options{Engine: newFake(), Refused: r.add})
	id := introduce(t, at, "ben")
	for what, body := range map[string]string{
		"an unknown resource": `{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"x:y"}}`,
		"large parameters": `{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"` +
			strings.Repeat("x", maxParams) + `"}}`,
		"a second greeting with large parameters": strings.Replace(hello, `"x"`, `"`+strings.Repeat("x", maxParams)+`"`, 1),
		"an unknown tool":                         `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"none"}}`,
	} {
		if _, answer := request(t, http.MethodPost, at, "ben", id, body); !strings.Contains(answer, `"error"`) {
			t.Errorf("%s is answered %.200s, want an error", what, answer)
		}
		if got := r.take(); !slices.Equal(got, []int{1}) {
			t.Errorf("%s: refusals %v, want [1]", what, got)
		}
	}
}
