package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// Keys and headers that pass our data through the library.
const (
	accessKey   = "access"
	headerID    = "Mcp-Session-Id"
	headerEvent = "Last-Event-ID"
)

type accessContext struct{}

// holder identifies who may use a session: tokens of one caller with the same rights. A token with
// other rights could answer questions to the session's user.
func holder(c caller.Principal) string {
	return fmt.Sprintf("%s profile=%s trust=%d operator=%t", c.Caller, c.Profile, c.Trust, c.Operator)
}

// newHTTP returns the library's handler. It binds a session to the holder that started it. The
// token was checked before and is not passed to the library.
func (s *Server) newHTTP() http.Handler {
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.sdk }, &mcp.StreamableHTTPOptions{
		EventStore: s.events, SessionTimeout: s.opts.SessionIdle, MaxRequestBodyBytes: maxMessage,
		Logger:                     s.log,
		DisableLocalhostProtection: true, // serve checks the host
	})
	verify := func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		a, ok := r.Context().Value(accessContext{}).(Access)
		if !ok {
			return nil, errors.New("request without a caller")
		}
		return &auth.TokenInfo{UserID: holder(a.Principal), Extra: map[string]any{accessKey: a}}, nil
	}
	return auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h)
}

// Serve answers one request of the streamable HTTP transport for call's caller. The query may say
// where tools run: workspace, read_only, template, job and, for operators, profile. Every tool call
// in the request is recorded.
//
// Serve calls over once, when the request's last call has ended. The calls of a client that left
// may hold the request's body until then, after Serve has returned.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, p caller.Principal, over func()) {
	w = &problemWriter{ResponseWriter: w}
	if r.Method != http.MethodPost {
		defer over()
		s.serve(w, r, p, nil)
		return
	}
	of := newPost(r.Context(), over)
	defer of.leave()
	of.in = &intake{ReadCloser: r.Body}
	out := &outcome{ResponseWriter: w}
	r.Body = of.in
	s.serve(out, r, p, of)
	if n := of.refusals(); n > 0 {
		s.opts.Refused(p, n)
	}
	if out.status < http.StatusBadRequest && r.Context().Err() != nil {
		return // the client left; calls may still reach their tools
	}
	_ = s.recordMissed(w, r, of.in, p, out.cause()) // the request was answered
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, p caller.Principal, of *post) {
	// Browsers send the page's Origin, and for a rebound name its Host.
	if err := cmp.Or(s.opts.Hosts.CheckHost(r), s.opts.Hosts.CheckOrigin(r)); err != nil {
		http.Error(w, withoutClass(err.Error()), http.StatusForbidden)
		return
	}
	a, err := placement(r.URL)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.Principal = p
	a.Principal.Key = "" // an idempotency key belongs to one call
	x := s.byID(r.Header.Get(headerID))
	if x != nil && x.holder != holder(p) { // the same answer as for a missing session
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	switch r.Method {
	case http.MethodPost:
		m, err := checkMessages(r)
		of.in.calls, of.in.counted = m.calls, m.read
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.post = of
		of.expect(m.requests)
		defer of.end(s.results, p)
		defer s.leave(r, x, of)
	case http.MethodGet:
		// Requests that only wait end at once when a hand-over begins.
		defer context.AfterFunc(s.stopping, cancel)()
		stream, over := s.resumed(r)
		if over {
			w.Header().Set("Allow", "GET, POST, DELETE")
			http.Error(w, "every request of the stream was answered", http.StatusMethodNotAllowed)
			return
		}
		if x != nil && stream != "" {
			defer x.resume(stream, s.opts.Resume)()
		}
	case http.MethodDelete:
		if x != nil {
			x.cancel(errEnded)
		}
	}
	r = r.Clone(context.WithValue(ctx, accessContext{}, a))
	r.Header.Set("Authorization", "Bearer checked") // the library requires a token; the real one is not passed on
	s.http.ServeHTTP(eventWriter{w}, r)
	if out, ok := w.(*outcome); ok && out.status > http.StatusOK {
		of.expect(0) // the library passes on no request
	}
}

// resumed returns the stream that a GET resumes, or "", and whether the client has all of it. A
// client that gets an empty stream asks again: the official TypeScript client does so after every
// error and every cancelled request. 405 is the only other answer that the protocol has.
func (s *Server) resumed(r *http.Request) (stream string, over bool) {
	// An event's id is STREAM_INDEX. The session's own stream has no name.
	stream, index, _ := strings.Cut(r.Header.Get(headerEvent), "_")
	n, err := strconv.Atoi(index)
	return stream, err == nil && stream != "" && s.events.ended(r.Header.Get(headerID), stream, n)
}

// leave handles the end of a request. If the client left before the whole answer, it may resume for
// a limited time.
func (s *Server) leave(r *http.Request, x *session, p *post) {
	switch {
	case r.Context().Err() == nil:
		p.cancel(context.Canceled) // everything was answered, or the session has ended
	case x == nil || s.stopping.Err() != nil:
		p.cancel(errGone)
	default:
		x.addLost(p, s.opts.Resume)
	}
}

// placement returns where tools run, from a URL's query.
func placement(at *url.URL) (a Access, err error) {
	if strings.Count(at.RawQuery, "&") >= maxParameters {
		return a, fmt.Errorf("the query has over %d parameters", maxParameters)
	}
	for k, v := range at.Query() {
		if len(v) > 1 {
			return a, fmt.Errorf("%s is given %d times", quote(k, maxName), len(v))
		}
		switch k {
		case "profile":
			a.Profile = v[0]
		case "workspace":
			a.Workspace = v[0]
		case "template":
			a.Template = v[0]
		case "job":
			a.Job = v[0]
		case "read_only":
			if a.ReadOnly, err = strconv.ParseBool(v[0]); err != nil {
				return a, fmt.Errorf("read_only is %s: use true or false", quote(v[0], maxName))
			}
		default:
			return a, fmt.Errorf("unknown query parameter %s: use profile, workspace, read_only, template or job",
				quote(k, maxName))
		}
	}
	return a, nil
}
