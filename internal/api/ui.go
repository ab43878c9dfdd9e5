package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/ui"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// uiVia is the adapter that audit records name for acts in the dashboard.
const uiVia = "ui"

// maxSignIn bounds the body of POST /ui/session, which anybody may send, in bytes.
const maxSignIn = 4 << 10

// uiSignIn is the body of POST /ui/session.
type uiSignIn struct {
	Token string `json:"token"`
}

// uiSession is the answer of /ui/session: who signed in, and what the pages may offer. The service
// decides again on each request.
type uiSession struct {
	Caller   string `json:"caller"`
	Operator bool   `json:"operator"`
	Profile  string `json:"profile,omitempty"`
	Trust    int    `json:"trust"`
	// Direct reports that the caller may run commands and write files without a tool.
	Direct  bool   `json:"direct"`
	Version string `json:"version"`
	// Secret is the page's secret, which each request of the session needs beside the cookie. Only
	// the answer of POST has it.
	Secret string `json:"secret,omitempty"`
}

// uiRoutes are the routes of the dashboard. They are for its pages only, so /openapi.json does not
// describe them.
func (s *Server) uiRoutes() []route {
	return []route{
		{method: "GET", path: "/ui", open: true, session: true, handle: s.uiRedirect},
		{method: "GET", path: "/ui/{path...}", open: true, session: true, handle: s.uiFile},
		{
			method: "POST", path: "/ui/session", open: true, session: true, takes: bodyHeld, limit: maxSignIn,
			handle: s.openSession,
		},
		{method: "GET", path: "/ui/session", session: true, handle: s.ownSession},
		{method: "GET", path: "/ui/live", session: true, stream: true, handle: s.live},
		{method: "DELETE", path: "/ui/session", open: true, session: true, handle: s.closeSession},
	}
}

func (s *Server) uiRedirect(w http.ResponseWriter, r *http.Request, _ caller.Principal) error {
	http.Redirect(w, r, "/ui/", http.StatusPermanentRedirect)
	return nil
}

func (s *Server) uiFile(w http.ResponseWriter, r *http.Request, _ caller.Principal) error {
	return s.pages.Serve(w, r, r.PathValue("path"))
}

// openSession exchanges a token for the cookie and the page's secret of a new session.
func (s *Server) openSession(w http.ResponseWriter, r *http.Request, _ caller.Principal) error {
	if err := ui.CheckRequest(r); err != nil {
		return err
	}
	var req uiSignIn
	if err := decodeBody(r, &req); err != nil {
		return err
	}
	p, credential, err := s.signIn(r, strings.TrimSpace(req.Token))
	if err != nil {
		return err
	}
	if _, err := s.opts.Sessions.End(w, r); err != nil { // the browser's earlier session
		return err
	}
	w.Header().Del("Set-Cookie")
	secret, err := s.opts.Sessions.Open(w, r, credential)
	if err != nil {
		return err
	}
	s.log.Info("opened a session of the dashboard", "caller", p.Caller, "token", p.Token)
	ui.Secure(w.Header(), ui.DataPolicy)
	w.Header().Set("Cache-Control", "no-store")
	return s.replySession(w, p, secret)
}

// ownSession describes the request's session. Access to the service's socket is not one.
func (s *Server) ownSession(w http.ResponseWriter, _ *http.Request, p caller.Principal) error {
	if p.Via != uiVia {
		return errSession
	}
	return s.replySession(w, p, "")
}

func (s *Server) replySession(w http.ResponseWriter, p caller.Principal, secret string) error {
	return reply(w, http.StatusOK, uiSession{
		Caller: p.Caller, Operator: p.Operator, Profile: p.Profile, Trust: p.Trust,
		Direct:  s.opts.Engine.Governed.Direct(p, "use the dashboard") == nil,
		Version: s.opts.Engine.Version(p).Version, Secret: secret,
	})
}

func (s *Server) closeSession(w http.ResponseWriter, r *http.Request, _ caller.Principal) error {
	if err := ui.CheckRequest(r); err != nil {
		return err
	}
	known, err := s.opts.Sessions.End(w, r)
	if !known { // a refusal, so that clients without a session are paced
		return errSession
	}
	return replyDone(w, err)
}

// signIn returns the caller of a token, and the credential that a session holds in its place.
func (s *Server) signIn(r *http.Request, token string) (caller.Principal, ui.Credential, error) {
	switch {
	case token == "":
		return caller.Principal{}, ui.Credential{}, usererror.Invalid("token", "is empty: enter a token of the service")
	case s.token() != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.token())) == 1:
		return caller.Local(""), ui.Credential{Own: digestOf(s.token())}, nil
	case !strings.HasPrefix(token, caller.TokenPrefix):
		return caller.Principal{}, ui.Credential{}, caller.ErrToken
	}
	p, err := s.opts.Engine.Callers.Identify(r.Context(), token)
	return p, ui.Credential{Token: p.Token}, err
}

// errSession is answered to requests whose session has ended.
var errSession = usererror.Errorf(errdefs.ErrUnauthenticated, "the session has ended: sign in again at /ui/")

// identifySession returns the caller of the request's session. given reports whether the request
// has the cookie of a session. A request with a cookie that opens nothing is not served as the
// local operator.
func (s *Server) identifySession(rt route, r *http.Request) (p caller.Principal, given bool, err error) {
	if s.opts.Sessions == nil {
		return p, false, nil
	}
	c, given, ok := s.opts.Sessions.Find(r)
	switch {
	case !given:
		return p, false, nil
	case rt.open: // also for browsers whose session has ended; the handler checks what it must
		return p, true, errUnauthenticated
	case !rt.session:
		return p, true, usererror.Errorf(errdefs.ErrPermissionDenied,
			"this route is not for sessions of the dashboard: send a token in the Authorization header")
	case !ok:
		return p, true, errSession
	}
	if err := ui.CheckRequest(r); err != nil {
		return p, true, err
	}
	switch {
	case c.Token != "":
		if p, err = s.opts.Engine.Callers.Resume(c.Token); err != nil {
			return p, true, s.dropSessions(c)
		}
	case s.token() != "" && c.Own == digestOf(s.token()):
		p = caller.Local("")
	default: // the service's token was changed
		return p, true, s.dropSessions(c)
	}
	p.Via = uiVia
	return p, true, nil
}

// dropSessions ends the sessions of a credential that is not valid any more, and returns the error
// to answer.
func (s *Server) dropSessions(c ui.Credential) error {
	if err := s.opts.Sessions.Drop(c); err != nil {
		s.log.Warn("failed to store the ended sessions of the dashboard", "error", err)
	}
	return errSession
}

func digestOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

const (
	// overviewTime is how often the overview and the figures are sent.
	overviewTime = time.Second
	// manyFigures is the number of sandboxes from which figures are sent less often, because each
	// sandbox costs some reads of the host's files.
	manyFigures = 100
)

// liveEvent is one event of GET /ui/live. Its name is the topic.
type liveEvent struct {
	topic string
	data  any
}

// liveTopic sends events of one topic until ctx ends.
type liveTopic func(ctx context.Context, p caller.Principal, send func(any) error) error

func (s *Server) liveTopics() map[string]liveTopic {
	return map[string]liveTopic{
		"events": func(ctx context.Context, p caller.Principal, send func(any) error) error {
			return s.opts.Engine.Events.Watch(ctx, p, eventhub.Query{After: -1, Follow: true},
				func(e v1.ServiceEvent) error { return send(e) })
		},
		"approvals": func(ctx context.Context, p caller.Principal, send func(any) error) error {
			return s.opts.Engine.Governed.WatchApprovals(ctx, p, func(e v1.ApprovalEvent) error { return send(e) })
		},
		"audit": func(ctx context.Context, p caller.Principal, send func(any) error) error {
			return s.opts.Engine.Governed.WatchAudit(ctx, p, func(list v1.List[v1.AuditRecord]) error { return send(list) })
		},
		"figures":  s.liveFigures,
		"overview": s.liveOverview,
	}
}

// live sends the topics of the query in one stream: a browser opens only six connections to a
// service without TLS. Its first event is "listening": what happens from then on is sent.
func (s *Server) live(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "topics")
	names := slices.Compact(slices.Sorted(strings.SplitSeq(q.text("topics"), ",")))
	known := s.liveTopics()
	for _, name := range names {
		if known[name] == nil {
			q.fail("topics", "must be a list of events, approvals, audit, figures and overview")
		}
	}
	if q.err != nil {
		return q.err
	}
	watch := func(ctx context.Context, sink func(liveEvent) error) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		ended := make(chan error)
		for _, name := range names {
			go func() { // received below
				ended <- recovered(func() error {
					return known[name](ctx, p, func(v any) error { return sink(liveEvent{name, v}) })
				})
			}()
		}
		errs := make([]error, 0, len(names))
		for range names {
			err := <-ended
			cancel(err) // the page connects again
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return follow(s, w, r, watch,
		func(out *sse) error { return out.send("listening", struct{}{}) },
		func(out *sse, e liveEvent) error { return out.send(e.topic, e.data) })
}

// every calls send at once and then every interval that it returns, until ctx ends or it fails.
func every(ctx context.Context, send func() (time.Duration, error)) error {
	for {
		pause, err := send()
		if err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Server) liveFigures(ctx context.Context, p caller.Principal, send func(any) error) error {
	return every(ctx, func() (time.Duration, error) {
		list, err := s.opts.Engine.Figures(ctx, p)
		if err != nil {
			return 0, err
		}
		return overviewTime * time.Duration(1+len(list)/manyFigures), send(v1.List[v1.Figures]{Items: list})
	})
}

// overviewWindow is the time that the figures of calls are about.
const overviewWindow = time.Minute

// maxCounted bounds the calls of a window. Above it, latencies are those of the latest calls.
const maxCounted = 20_000

// overview is what /ui shows on its first page. Callers see their own sandboxes and calls.
type overview struct {
	At    time.Time `json:"at"`
	Pools []v1.Pool `json:"pools"`
	// Sandboxes counts living sandboxes by state.
	Sandboxes map[string]int `json:"sandboxes"`
	Calls     callFigures    `json:"calls"`
	// Problems are sentences about what is wrong now.
	Problems []string `json:"problems"`
}

// callFigures are about the tool calls that ended within the last minute, with times in
// milliseconds.
type callFigures struct {
	// Each has the number of calls that ended in each second, oldest first; the last is the last
	// whole second.
	Each    []int          `json:"each"`
	Endings map[string]int `json:"endings"`
	P50     float64        `json:"p50_ms"`
	P95     float64        `json:"p95_ms"`
	P99     float64        `json:"p99_ms"`
}

// endedCall is a call in the window.
type endedCall struct {
	at     time.Time
	ending string
	took   float64 // milliseconds
}

// callWindow collects the calls of the last minute.
type callWindow struct {
	mu    sync.Mutex
	calls []endedCall // oldest first
}

// add adds the calls that the records close.
func (w *callWindow) add(records []v1.AuditRecord) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range records {
		if r.Kind == "close" {
			w.calls = append(w.calls, endedCall{r.Time, r.Ending, r.DurationMS})
		}
	}
	if n := len(w.calls) - maxCounted; n > 0 {
		w.calls = slices.Delete(w.calls, 0, n)
	}
}

// figures returns the figures of the minute before now.
func (w *callWindow) figures(now time.Time) callFigures {
	w.mu.Lock()
	defer w.mu.Unlock()
	end := now.Truncate(time.Second)
	begin := end.Add(-overviewWindow)
	w.calls = slices.DeleteFunc(w.calls, func(c endedCall) bool { return c.at.Before(begin) })
	f := callFigures{Each: make([]int, int(overviewWindow/time.Second)), Endings: map[string]int{}}
	times := make([]float64, 0, len(w.calls))
	for _, c := range w.calls {
		f.Endings[c.ending]++
		times = append(times, c.took)
		if c.at.Before(end) {
			f.Each[int(c.at.Sub(begin)/time.Second)]++
		}
	}
	slices.Sort(times)
	f.P50, f.P95, f.P99 = quantile(times, 50), quantile(times, 95), quantile(times, 99)
	return f
}

// quantile returns the percentile of sorted values by nearest rank, or 0 without values.
func quantile(sorted []float64, percent int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}

// liveOverview sends the overview every second.
func (s *Server) liveOverview(ctx context.Context, p caller.Principal, send func(any) error) error {
	var calls callWindow
	if list, err := s.opts.Engine.Governed.Audit(ctx, p, governed.AuditFilter{
		Since: time.Now().Add(-overviewWindow), Limit: maxCounted, Newest: true,
	}); err == nil {
		calls.add(list.Items)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() { // waited for below
		defer close(watched)
		cancel(recovered(func() error {
			return s.opts.Engine.Governed.WatchAudit(ctx, p, func(list v1.List[v1.AuditRecord]) error {
				calls.add(list.Items)
				return nil
			})
		}))
	}()
	defer func() { cancel(nil); <-watched }()
	return every(ctx, func() (time.Duration, error) {
		o, err := s.overview(ctx, p, &calls)
		if err != nil {
			return 0, err
		}
		return overviewTime, send(o)
	})
}

func (s *Server) overview(ctx context.Context, p caller.Principal, calls *callWindow) (overview, error) {
	o := overview{At: time.Now().UTC(), Sandboxes: map[string]int{}, Calls: calls.figures(time.Now()), Problems: []string{}}
	o.Pools = s.opts.Engine.Pools(ctx, p)
	list := s.opts.Engine.AllSandboxes
	if !p.Operator {
		list = func(ctx context.Context, p caller.Principal) ([]v1.Sandbox, error) {
			return s.opts.Engine.Sandboxes(ctx, p, false)
		}
	}
	all, err := list(ctx, p)
	if err != nil {
		return o, err
	}
	for _, one := range all {
		o.Sandboxes[one.State]++
	}
	ready, err := s.opts.Engine.Ready(ctx, p)
	if err != nil && len(ready) == 0 {
		o.Problems = append(o.Problems, "The service cannot serve calls: "+problem(err).Detail)
	}
	for _, t := range ready {
		if t.State != "ready" {
			o.Problems = append(o.Problems, fmt.Sprintf("Template %s is %s: %s", t.Name, t.State, t.Error))
		}
	}
	for _, t := range s.opts.Engine.Templates.List(ctx, p) {
		if t.State == "ready" && t.Error != "" {
			o.Problems = append(o.Problems, "Template "+t.Name+" uses its earlier version: "+t.Error)
		}
	}
	for _, pool := range o.Pools {
		if pool.Waiting > 0 {
			o.Problems = append(o.Problems, fmt.Sprintf("Pool %s is empty: %d calls wait", pool.Template, pool.Waiting))
		}
	}
	return o, nil
}
