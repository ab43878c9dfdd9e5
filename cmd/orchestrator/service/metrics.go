package service

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/net/netutil"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/metrics"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
)

// traceFlushTime bounds the export of the last spans when the service ends.
const traceFlushTime = 3 * time.Second

// openGovernance makes the metrics, and opens the parts of tool calls, which they count.
func (s *service) openGovernance(ctx context.Context, dir string, opts *engine.Options) (err error) {
	s.metrics = metrics.New(metrics.Options{
		Version: opts.Version, Build: opts.Build, Runtime: s.driver.Name(), Callers: s.config.Metrics.Callers, Log: s.log,
	})
	opts.Metrics = s.metrics
	if s.governed, err = standalone.OpenGovernance(ctx, s.config, dir, s.store, s.metrics, s.log); err != nil {
		return err
	}
	s.onClose(s.governed.Close)
	opts.Governance = s.governed.Config
	return nil
}

// openTracer makes the tracer, if one is configured.
func (s *service) openTracer(ctx context.Context, opts *engine.Options) error {
	t := s.config.Tracing
	if t.Endpoint == "" {
		return nil
	}
	var err error
	s.tracer, err = tracing.Open(ctx, tracing.Options{Version: opts.Version, Runtime: s.driver.Name(), Ratio: t.Ratio},
		t.Protocol, t.Endpoint, s.log)
	if err != nil {
		return err
	}
	opts.Tracer = s.tracer
	s.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlushTime)
		defer cancel()
		if err := s.tracer.Close(ctx); err != nil {
			s.log.Warn("failed to export the last traces", "error", err)
		}
		return nil
	})
	return nil
}

// metricsServer serves metrics on a listener of their own. A nil *metricsServer does nothing.
type metricsServer struct {
	listener net.Listener
	token    string // "": none is needed
}

// listenMetrics opens the listener of metrics.listen. It returns nil if none is configured. On an
// address other than loopback it uses secure, which is nil without TLS.
func listenMetrics(ctx context.Context, c config.Config, secure *tls.Config) (*metricsServer, error) {
	m := c.Metrics
	if m.Listen == "" {
		return nil, nil
	}
	bad := func(why string) error {
		return cli.Refuse(errdefs.ErrInvalidArgument, "metrics.listen is %s: %s", m.Listen, why)
	}
	host, _, err := net.SplitHostPort(m.Listen)
	remote := err != nil || !isLoopback(host)
	switch {
	case remote && m.TokenFile == "":
		return nil, bad("it is not a loopback address: set metrics.token_file")
	case remote && secure == nil && !c.AllowRemote:
		return nil, bad("it is not a loopback address: set tls.cert_file and tls.key_file, or allow_remote to send " +
			"the token unencrypted")
	}
	s := &metricsServer{}
	if m.TokenFile != "" {
		if s.token, err = cli.ReadToken(m.TokenFile); err != nil {
			return nil, err
		}
	}
	if s.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", m.Listen); err != nil {
		return nil, listenError(m.Listen, err)
	}
	s.listener = netutil.LimitListener(s.listener, maxScrapers)
	if remote && secure != nil {
		s.listener = tls.NewListener(s.listener, secure)
	}
	return s, nil
}

// isLoopback reports whether only this host can connect to the address.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Limits of the connections of scrapers, which send small requests.
const (
	scrapeHeaderTime = 5 * time.Second
	scrapeTime       = 30 * time.Second
	maxScrapeHeader  = 16 << 10
	maxScrapers      = 32 // connections at a time, also of clients without a token
)

// serve answers GET /metrics until ctx ends.
func (s *metricsServer) serve(ctx context.Context, scraped http.Handler, log *slog.Logger) {
	if s == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.authorized(scraped))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: scrapeHeaderTime, ReadTimeout: scrapeHeaderTime, WriteTimeout: scrapeTime,
		MaxHeaderBytes: maxScrapeHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		log.Error("failed to serve metrics", "error", err)
	}
}

// authorized requires the token, if there is one.
func (s *metricsServer) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, want := r.Header.Get("Authorization"), "Bearer "+s.token
		if s.token != "" && subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token of metrics.token_file is required: send Authorization: Bearer TOKEN",
				http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *metricsServer) close() error {
	if s == nil {
		return nil
	}
	return ignoreClosed(s.listener.Close())
}
