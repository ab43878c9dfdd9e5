package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Answer is a complete HTTP answer.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// maxAnswer is the largest body that a test reads, in bytes.
const maxAnswer = 64 << 20

// ask sends a request without the client library. header is name, value, …. All requests have the
// same id, so that equal requests have equal answers.
func (s *Server) ask(ctx context.Context, method, path string, body io.Reader, header ...string) (Answer, error) {
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", s.socket)
		}}
	req, err := http.NewRequestWithContext(ctx, method, "http://orchestrator"+path, body)
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("X-Request-Id", "test")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return Answer{resp.StatusCode, resp.Header, b}, err
}

// Ask sends a request without the client library. header is name, value, ….
func (s *Server) Ask(tb testing.TB, method, path, body string, header ...string) Answer {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Long)
	defer cancel()
	a, err := s.ask(ctx, method, path, strings.NewReader(body), header...)
	if err != nil {
		tb.Fatalf("request %s %s: %v", method, path, err)
	}
	return a
}

// Into decodes a JSON answer.
func (a Answer) Into(tb testing.TB, v any) {
	tb.Helper()
	if err := json.Unmarshal(a.Body, v); err != nil {
		tb.Fatalf("decode the answer: %v in status %d, %.500s", err, a.Status, a.Body)
	}
}

// Problem checks that an answer is the expected RFC 9457 problem with a one-line text.
func (a Answer) Problem(tb testing.TB, status int, code, field string) v1.Problem {
	tb.Helper()
	p, ok := v1.Decode(a.Body)
	if !ok {
		tb.Fatalf("status %d, %.500s; want a problem", a.Status, a.Body)
	}
	if a.Status != status || p.Status != status || p.Code != code || p.Field != field || p.Detail == "" ||
		strings.Contains(p.Detail, "\n") {
		tb.Errorf("got %d %.500s; want %d %s about %q", a.Status, a.Body, status, code, field)
	}
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		tb.Errorf("Content-Type of the problem is %q, want application/problem+json", got)
	}
	return *p
}

// limited keeps the last bytes written to it, for messages.
type limited struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write never fails.
func (l *limited) Write(p []byte) (int, error) {
	const keep = 8 << 20
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len() < keep {
		l.buf.Write(p)
	}
	return len(p), nil
}

func (l *limited) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
