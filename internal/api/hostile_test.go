package api

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// A query with an invalid part is refused as a whole.
func TestInvalidQueryIsRefused(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	id := lease(t, srv)
	for _, query := range []string{"path=%zz&recursive=true", "path=a;recursive=true"} {
		problemIs(t, ask(t, srv, "DELETE", "/v1/sandboxes/"+id+"/files?"+query, ""), http.StatusBadRequest,
			"invalid_argument", "query")
	}
}

// A client without a token cannot hold a connection by sending nothing.
func TestRefusedRequestDoesNotHoldConnection(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "POST /v1/run HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized || !res.Close {
		t.Fatalf("status %d, close %v; want 401, true", res.StatusCode, res.Close)
	}
}

// A declared body that the route does not read cannot hold a connection.
func TestUnusedBodyDoesNotHoldConnection(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	for _, c := range []struct {
		head, body string
		status     int
	}{
		{"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", "{", http.StatusBadRequest},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n{\r\n", http.StatusBadRequest},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n", "{}", http.StatusOK},
		{
			"DELETE /v1/shells/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: 1000\r\n\r\n",
			"{", http.StatusBadRequest,
		},
		{
			"POST /nothing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: 1000\r\n\r\n", "{",
			http.StatusBadRequest,
		},
	} {
		t.Run(c.head[:20], func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(patience / 2)); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprint(conn, c.head+c.body); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if bad := c.status != http.StatusOK; res.StatusCode != c.status || res.Close != bad {
				t.Errorf("status %d, close %v; want %d, %v", res.StatusCode, res.Close, c.status, bad)
			}
		})
	}
}

func TestPanicIsAnswered(t *testing.T) {
	var log strings.Builder
	s := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	panics := func(http.ResponseWriter, *http.Request, caller.Principal) error { panic("a nil somewhere") }
	h := s.wrap(route{handle: panics})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "nil") ||
		!strings.Contains(log.String(), "a nil somewhere") {
		t.Fatalf("status %d %s, log %s; want 500 and the panic only in the log", w.Code, w.Body, log.String())
	}
}

func TestResourceExhaustedHasRetryAfter(t *testing.T) {
	if p := problem(fmt.Errorf("full: %w", errdefs.ErrResourceExhausted)); p.Status != http.StatusTooManyRequests ||
		p.RetryAfterMS <= 0 {
		t.Fatalf("problem = %+v, want 429 with a retry delay", p)
	}
}

// The command of a client that disconnects is ended.
func TestClientDisconnectEndsCommand(t *testing.T) {
	t.Parallel()
	for _, accept := range []string{formJSON, formEvents, formRaw, formFrames} {
		t.Run(accept, func(t *testing.T) {
			t.Parallel()
			srv, _ := newServer(t, "")
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/run",
				strings.NewReader(`{"argv":["sleep","600"]}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Accept", accept)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if res, err := srv.Client().Do(req); err == nil {
					<-ctx.Done()
					res.Body.Close()
				}
			}()
			leased := func() int {
				var list v1.List[v1.Sandbox]
				ask(t, srv, "GET", "/v1/sandboxes", "").into(t, &list)
				return len(list.Items)
			}
			for deadline := time.Now().Add(patience); leased() == 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the command leased no sandbox, want one")
				}
			}
			leave()
			<-done
			for deadline := time.Now().Add(patience); leased() != 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d sandboxes are still leased, want 0", leased())
				}
			}
		})
	}
}

// A repeated answer in another form has all output, or reports the loss.
func TestIdempotencyKeyRepeatsOutputInEveryForm(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	const run = `{"argv":["echo","once"]}`
	again := func(key, accept string) asked {
		return ask(t, srv, "POST", "/v1/run", run, "Idempotency-Key", key, "Accept", accept)
	}
	again("k", formJSON)
	if got := again("k", formRaw); got.body != "once\n" {
		t.Errorf("raw answer = %+v, want the output", got)
	}
	if kinds, out := unframe(t, again("k", formFrames).body); kinds != "1E" || out != "once\n" {
		t.Errorf("frames = %s with output %q; want 1E with once", kinds, out)
	}
	if got := again("k", formEvents); !strings.Contains(got.body, `"data":"once\n"`) {
		t.Errorf("events = %+v, want the output among them", got)
	}
	// Streamed output is not kept, and the answer reports that.
	again("s", formRaw)
	var res v1.ExecResult
	again("s", formJSON).into(t, &res)
	if res.Stdout != "" || res.StdoutBytes != 5 || !res.Truncated {
		t.Errorf("repeated result = %+v, want 5 bytes reported as truncated", res)
	}
}
