package api

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// FuzzAdmission sends requests through the handler. Bodies never hold more than the budget, the
// budget is returned, and every error is a problem.
func FuzzAdmission(f *testing.F) {
	e, _ := newEngine(f)
	s := New(Options{Engine: e, Token: "secret", ShellCaller: "old",
		Bodies: 256 << 10, CallerBodies: 128 << 10, MCP: reading{func(int) {}}})
	const op = "Authorization: Bearer secret\r\n"
	for _, seed := range [][3]string{
		{"POST /v1/run", op + "Content-Length: 21", `{"argv":["echo","a"]}`},
		{"POST /v1/run", op + "Transfer-Encoding: chunked", "5\r\n{\"arg\r\n10\r\nv\":[\"echo\",\"a\"]}\r\n0\r\n\r\n"},
		{"POST /v1/run", op + "Transfer-Encoding: chunked", "zz\r\n"},
		{"POST /v1/run", op + "Content-Length: 33554432", "{"},
		{"POST /v1/run", op + "Content-Length: 200000", `{"stdin":"` + strings.Repeat("x", 200_000)},
		{"POST /v1/tools/system.run/call", op + "Content-Length: 33", `{"input":{"argv":["echo","a"]}} `},
		{"POST /v1/tools/x/call", op + "Content-Type: text/plain\r\nContent-Length: 2", `{}`},
		{"POST /v1/sandboxes", "Authorization: Bearer orc_x\r\nContent-Length: 2", `{}`},
		{"PUT /v1/workspaces/w/files?path=a", op + "Content-Length: 3", "abc"},
		{"DELETE /v1/workspaces/w?x=1", op + "Content-Length: 3", "abc"},
		{"POST /mcp", op + "Content-Length: 12", `{"a":[1,2,3]`},
		{"POST /shell", "Content-Type: application/json\r\nContent-Length: 16", `{"command":"ls"}`},
		{"POST /v1/policy/check", op + "Transfer-Encoding: chunked\r\nExpect: 100-continue", "3\r\n[1,\r\n0\r\n\r\n"},
		{"BREW //pot/../x", op + "Content-Length: 1", ""},
	} {
		f.Add(seed[0], seed[1], []byte(seed[2]))
	}
	f.Fuzz(func(t *testing.T, line, header string, body []byte) {
		raw := line + " HTTP/1.1\r\nHost: x\r\n" + header + "\r\n\r\n" + string(body)
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err != nil || r.Method == http.MethodGet || r.Header.Get("Upgrade") != "" || r.RequestURI == "*" {
			return // net/http answers it, or it has no body
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r.RemoteAddr = "127.0.0.1:1"
		w := httptest.NewRecorder()
		serveUncut(s.mux, w, r.WithContext(ctx))
		n, peak, callers := s.bodies.Held()
		if n != 0 || callers != 0 {
			t.Fatalf("%q: %d bytes of %d callers are held, want 0", raw, n, callers)
		}
		if peak > s.bodies.Bounds().Total {
			t.Fatalf("%q: %d bytes were held, want at most %d", raw, peak, s.bodies.Bounds().Total)
		}
		if p, ok := v1.Decode(w.Body.Bytes()); w.Code >= 400 && (!ok || p.Status != w.Code || p.Code == "" ||
			w.Code == 500 || w.Header().Get("Content-Type") != "application/problem+json") {
			t.Fatalf("%q: status %d with body %s, want a matching problem", raw, w.Code, w.Body)
		}
	})
}

// serveUncut serves a request and recovers from an aborted answer, as net/http does.
func serveUncut(h http.Handler, w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
		}
	}()
	h.ServeHTTP(w, r)
}
