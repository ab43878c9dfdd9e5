package api

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

// A panic on the goroutine of an event stream ends the stream with an error event, not the process.
func TestPanicInEventStreamIsReported(t *testing.T) {
	for _, path := range []string{"/v1/events?follow=true", "/v1/approvals/events"} {
		var log strings.Builder
		s := New(Options{Engine: &engine.Engine{}, // without services: their methods panic
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		w := httptest.NewRecorder()
		s.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		got := w.Body.String()
		if !strings.Contains(got, "event: problem\n") || !strings.Contains(got, `"code":"internal"`) ||
			strings.Contains(got, "nil pointer") {
			t.Errorf("GET %s = %q, want a general problem event", path, got)
		}
		if !strings.Contains(log.String(), "nil pointer") {
			t.Errorf("GET %s: log = %q, want the panic", path, log.String())
		}
	}
}
