package api

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func serveOne(t *testing.T, stall time.Duration, h handler) *httptest.Server {
	t.Helper()
	s := New(Options{})
	s.stall = stall
	srv := httptest.NewServer(s.wrap(route{handle: h}))
	t.Cleanup(srv.Close)
	return srv
}

// askOnly sends a request and reads nothing of the answer until its handler fails.
func askOnly(t *testing.T, url string, ended <-chan error) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the handler ended with %v, want %v", err, os.ErrDeadlineExceeded)
		}
	case <-time.After(patience):
		t.Fatalf("the handler still writes after %v, want it to fail", patience)
	}
}

// A client without a token is dropped soon, even though others may take longer.
func TestUnauthenticatedClientThatNeverReadsIsDroppedSoon(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	s := New(Options{Token: "secret"})
	s.stall = time.Hour
	handle := func(w http.ResponseWriter, _ *http.Request, _ caller.Principal) error {
		for {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				ended <- err
				return err
			}
		}
	}
	srv := httptest.NewServer(s.wrap(route{open: true, handle: handle}))
	t.Cleanup(srv.Close)
	askOnly(t, srv.URL, ended)
}

// A client that sends a request and never reads does not keep the resources of its answer.
func TestClientThatNeverReadsIsDropped(t *testing.T) {
	t.Parallel()
	pieces := map[string]func(w http.ResponseWriter) error{
		"writes": func(w http.ResponseWriter) error {
			_, err := w.Write(make([]byte, 32<<10))
			return err
		},
		"flushes": func(w http.ResponseWriter) error {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				return err
			}
			return http.NewResponseController(w).Flush()
		},
		"one huge piece": func(w http.ResponseWriter) error {
			_, err := w.Write(make([]byte, 64<<20))
			return err
		},
	}
	for name, piece := range pieces {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			srv := serveOne(t, time.Second, func(w http.ResponseWriter, _ *http.Request, _ caller.Principal) error {
				for {
					if err := piece(w); err != nil {
						ended <- err
						return err
					}
				}
			})
			askOnly(t, srv.URL, ended)
		})
	}
}

// Pauses of the handler do not count, neither in this answer nor in the previous one.
func TestSilentAnswerIsNotDropped(t *testing.T) {
	t.Parallel()
	const stall = 4 * time.Second
	srv := serveOne(t, stall, func(w http.ResponseWriter, r *http.Request, _ caller.Principal) error {
		for _, piece := range []string{"first ", "last"} {
			if _, err := io.WriteString(w, piece); err != nil {
				return err
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return err
			}
			if piece == "last" {
				break
			}
			select {
			case <-time.After(stall * 3 / 2):
			case <-r.Context().Done():
			}
		}
		return nil
	})
	for range 2 { // over one connection
		res, err := srv.Client().Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(b) != "first last" {
			t.Fatalf("answer = %q, %v; want first last, nil", b, err)
		}
	}
}
