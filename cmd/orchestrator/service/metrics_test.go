package service

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
