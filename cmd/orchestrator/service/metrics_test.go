package service

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func TestListenMetricsRefusesOpenAddresses(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("x", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS13}
	for name, c := range map[string]struct {
		listen, token string
		remote        bool
		secure        *tls.Config
		refused       string // part of the error, or ""
	}{
		"loopback":                       {listen: "127.0.0.1:0"},
		"localhost":                      {listen: "localhost:0"},
		"any, without a token":           {listen: ":0", remote: true, refused: "metrics.token_file"},
		"any, with a token, unencrypted": {listen: "0.0.0.0:0", token: token, refused: "tls.cert_file"},
		"any, allowed":                   {listen: "0.0.0.0:0", token: token, remote: true},
		"any, with TLS":                  {listen: "0.0.0.0:0", token: token, secure: secure},
	} {
		cfg := config.Default()
		cfg.AllowRemote, cfg.Metrics.Listen, cfg.Metrics.TokenFile = c.remote, c.listen, c.token
		s, err := listenMetrics(t.Context(), cfg, c.secure)
		if c.refused != "" {
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%s: listenMetrics(%s) = %v, want an error with %s", name, c.listen, err, c.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: listenMetrics(%s) = %v, want no error", name, c.listen, err)
			continue
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

// Clients that connect and send nothing hold a bounded number of connections, each for a bounded
// time.
func TestScrapersAreBounded(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Metrics.Listen = "127.0.0.1:0"
	s, err := listenMetrics(t.Context(), cfg, nil)
	if err != nil {
		t.Fatalf("listenMetrics() = %v, want no error", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var served sync.WaitGroup
	defer served.Wait()
	defer stop()
	served.Go(func() {
		s.serve(ctx, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), slog.New(slog.DiscardHandler))
	})
	began := time.Now()
	for range maxScrapers {
		conn, err := net.Dial("tcp", s.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	res, err := http.Get("http://" + s.listener.Addr().String() + "/metrics")
	if err != nil {
		t.Fatalf("GET /metrics = %v, want an answer when the silent clients are dropped", err)
	}
	res.Body.Close()
	if took := time.Since(began); took < scrapeHeaderTime/2 {
		t.Errorf("GET /metrics beside %d silent clients was answered after %v, want it to wait for their end", maxScrapers, took)
	}
}
