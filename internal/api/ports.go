package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/portproxy"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

func (s *Server) portRoutes() []route {
	return []route{
		{
			method: "GET", path: "/v1/sandboxes/{id}/ports/{port}", direct: true, foreign: true, handle: s.dialPort,
			summary: "Connect to a server on the sandbox's loopback: with Upgrade: " + v1.PortProtocol +
				" the connection carries bytes",
			upgrade: true,
		},
		{
			path: "/v1/sandboxes/{id}/ports/{port}/{path...}", direct: true, foreign: true, handle: s.proxyPort,
			takes: bodyStream, methods: allMethods(),
			summary: "Forward a request of any method, WebSockets too, to an HTTP server on the sandbox's loopback",
			also:    []answerForm{{"*/*", nil}},
		},
	}
}

func portFrom(r *http.Request) (int, error) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return 0, &strictjson.FieldError{Field: "port",
			Message: fmt.Sprintf("is %q and must be from 1 to 65535", r.PathValue("port"))}
	}
	return int(port), nil
}

// proxyPort forwards one request to a server in a sandbox. Each request has its own connection, so
// that a lease without requests counts as idle. Package portproxy says which fields are not
// forwarded.
func (s *Server) proxyPort(w http.ResponseWriter, r *http.Request, principal caller.Principal) error {
	port, err := portFrom(r)
	if err != nil {
		return err
	}
	if r.Header.Get("Upgrade") != "" {
		if err := s.checkOrigin(r); err != nil {
			return err
		}
		leave, ctx := s.enterConnection(r)
		defer leave()
		r = r.WithContext(ctx)
	}
	prefix := fmt.Sprintf("/v1/sandboxes/%s/ports/%d", url.PathEscape(r.PathValue("id")), port)
	var failed error
	p := portproxy.New(prefix, port, func(ctx context.Context) (net.Conn, error) {
		return s.opts.Engine.Dial(ctx, principal, r.PathValue("id"), port)
	})
	p.ErrorHandler = func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err }
	p.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	p.ServeHTTP(w, r)
	return s.portFailure(failed, port)
}

// portFailure returns the error for a request that the server in the sandbox did not answer. It
// does not repeat data of a server that does not speak HTTP.
func (s *Server) portFailure(err error, port int) error {
	if err == nil || errors.Is(err, context.Canceled) || errdefs.IsDeadlineExceeded(err) ||
		core.ForCallers(err) != nil {
		return err
	}
	s.log.Debug("invalid answer from a server in a sandbox", "port", port, "error", err)
	return &core.PortError{Port: port, Message: "the server closed the connection or sent an invalid HTTP answer"}
}

// dialPort connects the client's connection to the server in the sandbox.
func (s *Server) dialPort(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	port, err := portFrom(r)
	if err != nil {
		return err
	}
	switch upgrade := r.Header.Get("Upgrade"); {
	case upgrade == "":
		http.Redirect(w, r, r.URL.EscapedPath()+"/", http.StatusTemporaryRedirect)
		return nil
	case !strings.EqualFold(upgrade, v1.PortProtocol) || !r.ProtoAtLeast(1, 1):
		return &strictjson.FieldError{Field: "Upgrade",
			Message: "must be " + v1.PortProtocol + "; HTTP and WebSockets are served below " + r.URL.EscapedPath() +
				"/"}
	}
	if err := s.checkOrigin(r); err != nil {
		return err
	}
	leave, ctx := s.enterConnection(r)
	defer leave()
	inside, err := s.opts.Engine.Dial(ctx, p, r.PathValue("id"), port)
	if err != nil {
		return err
	}
	defer inside.Close()
	outside, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("take the connection over: %w: %w", err, errdefs.ErrNotImplemented)
	}
	defer outside.Close()
	defer context.AfterFunc(ctx, func() { inside.Close(); outside.Close() })()
	hello := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + v1.PortProtocol + "\r\n\r\n"
	if _, err := io.WriteString(outside, hello); err != nil {
		return nil // nobody is there to be told
	}
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // cannot fail: the bytes are buffered
	portproxy.Join(outside, inside, early)
	return nil
}

// enterConnection registers a hijacked connection: Serve waits for it, and its context ends when a
// hand-over begins.
func (s *Server) enterConnection(r *http.Request) (leave func(), ctx context.Context) {
	s.terminals.Add(1)
	ctx, cancel := s.untilStop(r)
	return func() { cancel(); s.terminals.Done() }, ctx
}
