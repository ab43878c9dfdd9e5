package cli

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// serverFor starts a server and returns a client for it.
func serverFor(t *testing.T, handle func(s *httptest.Server, w http.ResponseWriter, r *http.Request)) *client.Client {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(s, w, r) })
	s.Start()
	t.Cleanup(s.Close)
	cl, err := client.New(client.Options{Address: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func TestDownServerWaitsForEnd(t *testing.T) {
	var asked atomic.Int32
	cl := serverFor(t, func(s *httptest.Server, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		if asked.Add(1) == 3 {
			s.Listener.Close()
		}
		w.Write([]byte("{}"))
	})
	ours, err := DownServer(t.Context(), cl, config.Config{StateDir: t.TempDir()})
	if ours || err != nil || asked.Load() < 3 {
		t.Errorf("DownServer = %t, %v after %d versions; want false, nil after 3 or more", ours, err, asked.Load())
	}
}

// A down after another one that was faster succeeds.
func TestDownServerOfEndingServer(t *testing.T) {
	cl := serverFor(t, func(s *httptest.Server, _ http.ResponseWriter, _ *http.Request) {
		s.Listener.Close()
		panic(http.ErrAbortHandler)
	})
	for _, state := range []string{"that ends", "that has ended"} {
		if _, err := DownServer(t.Context(), cl, config.Config{StateDir: t.TempDir()}); err != nil {
			t.Errorf("DownServer of a server %s = %v, want nil", state, err)
		}
	}
}

func TestDownServerErrors(t *testing.T) {
	refuses := serverFor(t, func(_ *httptest.Server, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	})
	c := config.Config{StateDir: t.TempDir()}
	if _, err := DownServer(t.Context(), refuses, c); !errdefs.IsPermissionDenied(err) {
		t.Errorf("DownServer of a server that refuses = %v, want PermissionDenied", err)
	}
	late := errors.New("late")
	ctx, cancel := context.WithCancelCause(t.Context())
	stays := serverFor(t, func(_ *httptest.Server, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			cancel(late)
		}
		w.Write([]byte("{}"))
	})
	if _, err := DownServer(ctx, stays, c); !errors.Is(err, late) {
		t.Errorf("DownServer of a server that stays = %v, want %v", err, late)
	}
}
