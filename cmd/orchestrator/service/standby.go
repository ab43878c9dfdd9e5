package service

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	// standbyTime bounds a request to a standby.
	standbyTime = 5 * time.Second
	// standbyEndTime bounds the end of requests under way when the standby becomes active.
	standbyEndTime = time.Second
)

// standby answers requests while this process waits to become the active one: /healthz with 200 and
// all others with 503 and the reason. It serves from the first call of wait.
type standby struct {
	s      *service
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	serves sync.WaitGroup
	// heir waits for inheritFrom, which ends with inherit.
	heir       sync.WaitGroup
	inherit    context.Context
	endInherit context.CancelFunc

	mu       sync.Mutex
	reason   string       // guarded by mu, as is all below
	server   *http.Server // nil: not serving
	listener net.Listener // nil: not listening
	inherits bool
}

func newStandby(s *service) *standby {
	b := &standby{s: s}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.inherit, b.endInherit = context.WithCancel(b.ctx)
	return b
}

// wait records why this process waits, and logs each reason once. Only the first call listens:
// later, the address may be that of an active process which has not opened it yet.
func (b *standby) wait(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil || reason == b.reason {
		return
	}
	first := b.reason == ""
	b.reason = reason
	b.s.log.Info("waiting as a standby", "reason", reason)
	if !first {
		return
	}
	l, err := listen(b.ctx, b.s.config)
	if err != nil {
		b.s.log.Warn("standby cannot answer probes: it will listen when it is active", "error", err)
		return
	}
	b.listener = l
	b.server = &http.Server{
		Handler: b, ReadTimeout: standbyTime, WriteTimeout: standbyTime,
		ErrorLog: slog.NewLogLogger(b.s.log.Handler(), slog.LevelDebug),
	}
	b.server.SetKeepAlivesEnabled(false)
	server := b.server
	var served net.Listener = keptListener{l}
	if c := b.s.tlsConfig(); c != nil {
		served = tls.NewListener(served, c)
	}
	b.serves.Go(func() { // waited for by stop
		if err := server.Serve(served); !errors.Is(err, http.ErrServerClosed) {
			b.s.log.Warn("standby stopped answering probes", "error", err)
		}
	})
}

// ServeHTTP implements http.Handler.
func (b *standby) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" {
		fmt.Fprintln(w, "ok")
		return
	}
	b.mu.Lock()
	reason := b.reason
	b.mu.Unlock()
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(v1.Problem{
		Type: "about:blank", Status: http.StatusServiceUnavailable, Title: http.StatusText(http.StatusServiceUnavailable),
		Code: "unavailable", Detail: "this process is a standby: " + reason, RetryAfterMS: inheritInterval.Milliseconds(),
	})
}

// inheritFrom takes the Lease from a holder on this machine as soon as it has ended, until
// endInheriting.
func (b *standby) inheritFrom(dir string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inherit.Err() != nil || b.inherits {
		return
	}
	b.inherits = true
	b.heir.Go(func() { // waited for by endInheriting
		for pause(b.inherit, inheritInterval) == nil {
			if err := b.s.inherit(b.inherit, dir); err != nil && b.inherit.Err() == nil {
				b.s.log.Warn("failed to check whether the active process has ended; will retry", "error", err)
			}
		}
	})
}

// endInheriting waits until inheritFrom does not take the lock of the state directory any more.
func (b *standby) endInheriting() {
	b.mu.Lock()
	b.endInherit()
	b.mu.Unlock()
	b.heir.Wait()
}

// stop ends the requests under way and returns the listener, which stays open, or nil if there is
// none. Connections on which a client is silent are cut.
func (b *standby) stop() (net.Listener, error) {
	b.mu.Lock()
	b.cancel()
	server, l := b.server, b.listener
	b.listener = nil
	b.mu.Unlock()
	b.heir.Wait()
	if server == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), standbyEndTime)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
	b.serves.Wait()
	if l == nil {
		return nil, nil
	}
	return l, keptListener{l}.setDeadline(time.Time{})
}

// close ends the standby with its listener, unless stop has returned that.
func (b *standby) close() error {
	l, err := b.stop()
	if l != nil {
		err = errors.Join(err, ignoreClosed(l.Close()))
	}
	return err
}

// keptListener is a listener whose Close only makes Accept return.
type keptListener struct{ net.Listener }

// Close implements net.Listener.
func (l keptListener) Close() error { return l.setDeadline(time.Unix(1, 0)) }

func (l keptListener) setDeadline(t time.Time) error {
	d, ok := l.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return fmt.Errorf("listener %T has no deadlines", l.Listener)
	}
	return d.SetDeadline(t)
}
