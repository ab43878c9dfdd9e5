package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// maxPortHeader bounds the header of a server's answer, in bytes.
const maxPortHeader = 256 << 10

func (s *Server) portRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/sandboxes/{id}/ports/{port}", direct: true, handle: s.dialPort, summary: "Connect to a server on the sandbox's loopback: with Upgrade: " + v1.PortProtocol + " the connection carries bytes"},
		{path: "/v1/sandboxes/{id}/ports/{port}/{path...}", direct: true, handle: s.proxyPort, takes: bodyStream, summary: "Hand a request on to a server of HTTP on the sandbox's loopback, WebSockets too; every method"},
	}
}

func portOf(r *http.Request) (int, error) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return 0, &strictjson.FieldError{Field: "port", Message: fmt.Sprintf("is %q: from 1 to 65535", r.PathValue("port"))}
	}
	return int(port), nil
}

// proxyPort hands one request on. Each has a connection of its own, so that a
// lease which nobody speaks to is idle. See portheader.go for what does not
// pass.
func (s *Server) proxyPort(w http.ResponseWriter, r *http.Request, principal engine.Principal) error {
	port, err := portOf(r)
	if err != nil {
		return err
	}
	if r.Header.Get("Upgrade") != "" {
		if err := ownOrigin(r); err != nil {
			return err
		}
		leave, ctx := s.enterConnection(r)
		defer leave()
		r = r.WithContext(ctx)
	}
	prefix := fmt.Sprintf("/v1/sandboxes/%s/ports/%d", url.PathEscape(r.PathValue("id")), port)
	var failed error
	p := portProxy(prefix, port, func(ctx context.Context) (net.Conn, error) {
		return s.opts.Engine.Dial(ctx, principal, r.PathValue("id"), port)
	})
	p.ErrorHandler = func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err }
	p.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	p.ServeHTTP(w, r)
	return s.portFailure(failed, port)
}

// portProxy passes one request to the server that dial connects to.
func portProxy(prefix string, port int, dial func(context.Context) (net.Conn, error)) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxPortHeader,
		},
		FlushInterval: -1, // events are to arrive when they are sent
		Rewrite:       func(pr *httputil.ProxyRequest) { outward(pr, prefix, port) },
		ModifyResponse: func(resp *http.Response) error {
			inward(resp.Header, prefix, port)
			dropTrailers(resp)
			return nil
		},
	}
}

// portFailure is what a caller is told of a request that was not answered. What
// a server that is none of HTTP sent is not repeated.
func (s *Server) portFailure(err error, port int) error {
	if err == nil || errors.Is(err, context.Canceled) || errdefs.IsDeadlineExceeded(err) || engine.ForCallers(err) != nil {
		return err
	}
	s.log.Debug("server in a sandbox not understood", "port", port, "error", err)
	return &engine.PortError{Port: port, Message: "what listens there broke off, or did not answer as HTTP does"}
}

// dialPort makes the client's connection one to the server inside.
func (s *Server) dialPort(w http.ResponseWriter, r *http.Request, p engine.Principal) error {
	port, err := portOf(r)
	if err != nil {
		return err
	}
	switch upgrade := r.Header.Get("Upgrade"); {
	case upgrade == "":
		http.Redirect(w, r, r.URL.EscapedPath()+"/", http.StatusTemporaryRedirect)
		return nil
	case !strings.EqualFold(upgrade, v1.PortProtocol) || !r.ProtoAtLeast(1, 1):
		return &strictjson.FieldError{Field: "Upgrade", Message: "must be " + v1.PortProtocol + "; HTTP and WebSockets are served below " + r.URL.EscapedPath() + "/"}
	}
	if err := ownOrigin(r); err != nil {
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
		return nil //nolint:nilerr // nobody is there to be told
	}
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered()) // it has them
	join(outside, inside, early, quietTime)
	return nil
}

// enterConnection is for connections that are no longer net/http's: Serve waits
// for them, and they end when a hand-over begins.
func (s *Server) enterConnection(r *http.Request) (leave func(), ctx context.Context) {
	s.terminals.Add(1)
	ctx, cancel := s.untilStop(r)
	return func() { cancel(); s.terminals.Done() }, ctx
}

// quietTime is how long a server inside may be silent that cannot be told that
// the client has said its last.
const quietTime = 5 * time.Second

// join carries bytes both ways until both have ended, and early before all that
// comes from outside. When one direction ends, the other goes on. Where inside
// cannot be told of the end alone (a mux), what it still says is carried until it
// ends, or is silent for the time quiet.
func join(outside, inside net.Conn, early []byte, quiet time.Duration) {
	end := func() { outside.Close(); inside.Close() }
	var told atomic.Bool // the deadline is set
	var both sync.WaitGroup
	both.Go(func() {
		_, err := inside.Write(early)
		if err == nil {
			_, err = io.Copy(inside, outside)
		}
		if err != nil {
			end()
			return
		}
		if endWriting(inside) {
			return
		}
		told.Store(true)
		if inside.SetReadDeadline(time.Now().Add(quiet)) != nil {
			end()
		}
	})
	both.Go(func() {
		_, err := io.Copy(outside, readerFunc(func(p []byte) (int, error) {
			n, err := inside.Read(p)
			if n > 0 && told.Load() {
				_ = inside.SetReadDeadline(time.Now().Add(quiet)) // closed: the next read says so
			}
			return n, err
		}))
		if err != nil || told.Load() || !endWriting(outside) {
			end()
		}
	})
	both.Wait()
}

// readerFunc is a function that reads.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// endWriting ends one direction, where that can be told alone.
func endWriting(c net.Conn) bool {
	half, ok := c.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}
