package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers with handle and returns a client for it.
func serve(t *testing.T, handle http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	c, err := New(Options{Address: s.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func answer(t *testing.T, w http.ResponseWriter, v any) {
	t.Helper()
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		t.Error(err)
	}
}

// cut ends the connection in the middle of the answer.
func cut() { panic(http.ErrAbortHandler) }

func TestAddresses(t *testing.T) {
	for _, good := range []string{
		"", "unix:/run/x.sock", "localhost:7070", "127.0.0.1:1", "[::1]:7070", "http://h:1", "https://h", "https://h:8443/",
	} {
		if _, err := New(Options{Address: good}); err != nil {
			t.Errorf("New with the address %q = %v, want no error", good, err)
		}
	}
	for _, bad := range []string{"unix:", "nowhere", "ftp://h:1", "http://h", "http://u:p@h:1", "http://h:1/v1", "http://h:1?x=1", ":"} {
		if _, err := New(Options{Address: bad}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("New with the address %q = %v, want InvalidArgument", bad, err)
		}
	}
	if _, err := New(Options{Token: "a\nb"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("New with a token of two lines = %v, want InvalidArgument", err)
	}
}

func TestRequestsCarryTokenKeyAndEscapedNames(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for name, want := range map[string]string{"Authorization": "Bearer secret", "Idempotency-Key": "k1", "Accept": "application/json"} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		if got, want := r.URL.EscapedPath(), "/v1/sandboxes/a%2Fb%3Fc/exec"; got != want {
			t.Errorf("path is %q, want %q", got, want)
		}
		answer(t, w, v1.ExecResult{Ending: "exited"})
	})
	if _, err := c.Exec(t.Context(), "a/b?c", v1.Exec{Argv: []string{"true"}}, IdempotencyKey("k1")); err != nil {
		t.Fatal(err)
	}
}

func TestProblemsHaveTheirClass(t *testing.T) {
	for code, is := range map[string]func(error) bool{
		"invalid_argument": errdefs.IsInvalidArgument, "not_found": errdefs.IsNotFound,
		"already_exists": errdefs.IsAlreadyExists, "failed_precondition": errdefs.IsFailedPrecondition,
		"resource_exhausted": errdefs.IsResourceExhausted, "permission_denied": errdefs.IsPermissionDenied,
		"unauthenticated": errdefs.IsUnauthorized, "unavailable": errdefs.IsUnavailable,
		"deadline_exceeded": errdefs.IsDeadlineExceeded, "not_implemented": errdefs.IsNotImplemented,
		"internal": errdefs.IsInternal,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusTeapot)
			answer(t, w, v1.Problem{Status: http.StatusTeapot, Code: code, Detail: "it is so", Field: "argv", RetryAfterMS: 7})
		})
		_, err := c.Sandbox(t.Context(), "x")
		p, ok := errors.AsType[*v1.Problem](err)
		if !ok || p.Field != "argv" || p.RetryAfterMS != 7 || err.Error() != "it is so" {
			t.Errorf("%s: error = %#v, want a Problem with the detail, field argv and 7 ms", code, err)
		}
		if !is(err) {
			t.Errorf("%s: error = %v, want the class of its code", code, err)
		}
	}
}

func TestNonOrchestratorAnswerIsProblem(t *testing.T) {
	for status, want := range map[int]error{
		404: errdefs.ErrNotFound, 502: errdefs.ErrUnavailable, 500: errdefs.ErrInternal, 301: errdefs.ErrInternal,
		401: errdefs.ErrUnauthenticated,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://192.0.2.1/")
			w.WriteHeader(status)
			io.WriteString(w, "<html>\x1b[2J"+strings.Repeat("x", 1<<20))
		})
		if _, err := c.Pools(t.Context()); !errors.Is(err, want) || strings.Contains(err.Error(), "html") {
			t.Errorf("status %d: error = %v, want the class %v and no HTML", status, err, want)
		}
	}
}

func TestNoServer(t *testing.T) {
	for _, address := range []string{"unix:" + filepath.Join(t.TempDir(), "none.sock"), freeAddress(t)} {
		c, err := New(Options{Address: address})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Exec(t.Context(), "x", v1.Exec{})
		if e, ok := errors.AsType[*NoServerError](err); !ok || e.Address != address {
			t.Errorf("%s: Exec = %v, want a NoServerError with the address", address, err)
		}
		if !errors.Is(err, ErrNoServer) || errors.Is(err, ErrLost) || !errdefs.IsUnavailable(err) {
			t.Errorf("%s: Exec = %v, want ErrNoServer with the class Unavailable, not ErrLost", address, err)
		}
	}
}

// freeAddress returns an address without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestCutAnswerIsLost(t *testing.T) {
	for name, handle := range map[string]http.HandlerFunc{
		"before the header": func(http.ResponseWriter, *http.Request) { cut() },
		"in the body": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"ending":"exited","exit_code":0`)
			w.(http.Flusher).Flush()
			cut()
		},
		"not JSON": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "OK") },
	} {
		c := serve(t, handle)
		if r, err := c.Exec(t.Context(), "x", v1.Exec{}); !errors.Is(err, ErrLost) || r.Ending != "" {
			t.Errorf("%s: Exec = %+v, %v; want ErrLost without an ending", name, r, err)
		}
	}
}

func TestEndedContextReturnsCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(reason)
		<-r.Context().Done()
	})
	if _, err := c.Sandboxes(ctx, true); !errors.Is(err, reason) {
		t.Fatalf("Sandboxes = %v, want %v", err, reason)
	}
}

func TestManyCallsShareConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	counting := &countingListener{Listener: l}
	s := &httptest.Server{
		Listener: counting,
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			answer(t, w, v1.ExecResult{Ending: "exited"})
		})},
	}
	s.Start()
	t.Cleanup(s.Close)
	c, err := New(Options{Address: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	const callers, calls = 50, 10
	var work sync.WaitGroup
	for range callers {
		work.Go(func() {
			for range calls {
				if _, err := c.Exec(t.Context(), "x", v1.Exec{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if n := counting.n.Load(); n > callers*calls/2 {
		t.Fatalf("%d connections for %d calls, want at most %d", n, callers*calls, callers*calls/2)
	}
}

type countingListener struct {
	net.Listener
	n atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

func TestFilesStreamAndReportCut(t *testing.T) {
	content := strings.Repeat("0123456789", 100_000)
	var got string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case r.Method == http.MethodPut:
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			got = string(b)
			answer(t, w, v1.File{Path: q.Get("path"), Mode: q.Get("mode")})
		case q.Get("path") == "cut":
			io.WriteString(w, content)
			w.(http.Flusher).Flush()
			cut()
		default:
			io.WriteString(w, content)
		}
	})
	files := c.Workspaces.Files("w")
	f, err := files.Write(t.Context(), "a b", strings.NewReader(content), WriteOptions{Mode: "0600"})
	if err != nil || f.Path != "a b" || f.Mode != "0600" || got != content {
		t.Fatalf("Write = %+v, %v, server got %d bytes; want \"a b\", mode 0600, %d bytes", f, err, len(got), len(content))
	}
	for path, lost := range map[string]bool{"whole": false, "cut": true} {
		r, err := files.Read(t.Context(), path, Range{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		r.Close()
		if errors.Is(err, ErrLost) != lost || string(b) != content {
			t.Errorf("Read(%s) = %d bytes, %v; want %d bytes, ErrLost: %v", path, len(b), err, len(content), lost)
		}
	}
}
