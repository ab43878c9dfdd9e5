package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// unreadWriter is a ResponseWriter whose client reads nothing until read is closed.
type unreadWriter struct {
	http.ResponseWriter
	began, read chan struct{}
}

func (w unreadWriter) Write(p []byte) (int, error) {
	close(w.began)
	<-w.read
	return w.ResponseWriter.Write(p)
}

func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	w := unreadWriter{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/version", nil))
	}()
	<-w.began
	if held, _, _ := s.answers.Held(); held == 0 {
		t.Error("an unread answer is charged 0 bytes, want more")
	}
	close(w.read)
	<-done
	if held, _, _ := s.answers.Held(); held != 0 {
		t.Errorf("%d bytes are charged after the answer was read, want 0", held)
	}
}

func TestUnreadAnswersRefuseRequests(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	srv := serveHTTP(t, s)
	auth := bearerOf(t, srv, `{"caller":"ann","trust":3}`)
	ann := caller.Principal{Caller: "ann"}
	full := s.answers.Bounds().Caller + 1
	if err := s.answers.Charge(ann, 0, full); err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"GET /v1/version", "POST /v1/sandboxes"} {
		method, path, _ := strings.Cut(request, " ")
		got := ask(t, srv, method, path, "", auth...)
		if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
			t.Errorf("%s over the budget = %+v, want status 429 with Retry-After", request, got)
		}
	}
	if got := ask(t, srv, "GET", "/v1/version", ""); got.status != http.StatusOK {
		t.Errorf("request of another caller = %+v, want status 200", got)
	}
	s.answers.Release(ann, full)
	if got := ask(t, srv, "GET", "/v1/version", "", auth...); got.status != http.StatusOK {
		t.Errorf("request within the budget = %+v, want status 200", got)
	}
}
