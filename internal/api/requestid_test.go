package api

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestRequestIDIsInAnswersAndLog(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	var log bytes.Buffer
	s := New(Options{Engine: e, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	for _, c := range []struct{ given, want string }{
		{"proxy-1.2_3", "^proxy-1.2_3$"}, {"", "^r-[a-z0-9]{16}$"}, {"with space", "^r-"}, {strings.Repeat("x", 65), "^r-"},
	} {
		log.Reset()
		r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes/nobody", nil)
		if c.given != "" {
			r.Header.Set(headerRequest, c.given)
		}
		w := httptest.NewRecorder()
		s.mux.ServeHTTP(w, r)
		id := w.Header().Get(headerRequest)
		p, ok := v1.Decode(w.Body.Bytes())
		if !regexp.MustCompile(c.want).MatchString(id) || !ok || p.RequestID != id {
			t.Errorf("request with id %q: header %q, problem %+v; want both %s", c.given, id, p, c.want)
		}
		if !strings.Contains(log.String(), "request="+id) {
			t.Errorf("log of request %s = %s, want the id in it", id, log.String())
		}
	}
}
