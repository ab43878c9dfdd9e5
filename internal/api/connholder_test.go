package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

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
	s.conns = httpguard.NewConnLimiter(httpguard.ConnBounds{Total: 8, Anonymous: 4, Callers: 4}, s.log)
	srv := httptest.NewServer(s.mux)
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
			t.Errorf("records of %s = %+v, want one failed %s via %q", c.caller, list, c.action, c.via)
		}
	}
}
