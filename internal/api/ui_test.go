package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/ui"
)

// uiOwn is the service's own token in tests of the dashboard.
const uiOwn = "service-secret"

// uiWorld is a service with the dashboard. Its tests keep cookies by hand.
type uiWorld struct {
	t        *testing.T
	engine   *engine.Engine
	sessions *ui.Sessions
	refusals *httpguard.RefusalPacer
	at       net.Addr
}

func newUI(t *testing.T, token string) *uiWorld {
	t.Helper()
	e, _ := newEngine(t)
	sessions, err := ui.OpenSessions(filepath.Join(t.TempDir(), "sessions"))
	if err != nil {
		t.Fatal(err)
	}
	refusals := httpguard.NewRefusalPacer()
	at := listen(t, New(Options{Engine: e, Token: token, Sessions: sessions, Refusals: refusals}), "tcp", "127.0.0.1:0")
	return &uiWorld{t: t, engine: e, sessions: sessions, refusals: refusals, at: at}
}

// token creates a token.
func (w *uiWorld) token(r v1.TokenRequest) v1.Token {
	w.t.Helper()
	got, err := w.engine.Callers.CreateToken(w.t.Context(), caller.Local(""), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// do sends a request as the page does, with the given fields in place of the usual ones. A field
// that is "" is left out.
func (w *uiWorld) do(method, path, body string, fields map[string]string) (*http.Response, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, "http://"+w.at.String()+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{"Sec-Fetch-Site": "same-origin"}
	if method != http.MethodGet {
		all["Origin"] = "http://" + w.at.String()
	}
	for name, v := range fields {
		all[name] = v
	}
	for name, v := range all {
		if v != "" {
			r.Header.Set(name, v)
		}
	}
	res, err := new(http.Transport).RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res, string(b)
}

// uiKeys are the two secrets of a session.
type uiKeys struct {
	*http.Cookie
	page string
}

// signIn opens a session and returns its secrets.
func (w *uiWorld) signIn(token string) uiKeys {
	w.t.Helper()
	res, body := w.do("POST", "/ui/session", fmt.Sprintf(`{"token":%q}`, token), nil)
	if res.StatusCode != http.StatusOK || len(res.Cookies()) != 1 {
		w.t.Fatalf("POST /ui/session = %d %s, %d cookies; want 200 and one", res.StatusCode, body, len(res.Cookies()))
	}
	var s uiSession
	if err := json.Unmarshal([]byte(body), &s); err != nil || len(s.Secret) < 43 {
		w.t.Fatalf("POST /ui/session = %s, %v; want a secret of 32 random bytes", body, err)
	}
	return uiKeys{res.Cookies()[0], s.Secret}
}

func (w *uiWorld) status(method, path string, fields map[string]string) int {
	w.t.Helper()
	res, _ := w.do(method, path, "", fields)
	return res.StatusCode
}

// fieldsOf returns the fields of a session's requests.
func fieldsOf(k uiKeys) map[string]string {
	return map[string]string{"Cookie": k.Name + "=" + k.Value, ui.Header: k.page}
}

func with(fields map[string]string, name, v string) map[string]string {
	out := map[string]string{name: v}
	for k, old := range fields {
		if k != name {
			out[k] = old
		}
	}
	return out
}

func TestPageHasStrictPolicyAndNoInlineCode(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	for _, path := range []string{"/ui/", "/ui/app.js", "/ui/app.css", "/ui/icon.svg"} {
		res, body := w.do("GET", path, "", nil)
		policy := res.Header.Get("Content-Security-Policy")
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none';") ||
			strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("GET %s = %d with policy %q, want 200 with a strict one", path, res.StatusCode, policy)
		}
		if got := res.Header.Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("GET %s: X-Content-Type-Options = %q, want nosniff", path, got)
		}
		if path == "/ui/" && (strings.Contains(body, "style=") || strings.Contains(body, "<style") ||
			strings.Contains(body, "//")) {
			t.Errorf("GET /ui/ has an inline style or an address elsewhere: %s", body)
		}
	}
	for path, want := range map[string]int{"/ui": 308, "/ui/no": 404, "/ui/%2e%2e/doc.go": 404} {
		if got := w.status("GET", path, nil); got != want {
			t.Errorf("GET %s = %d, want %d", path, got, want)
		}
	}
}

func TestDashboardIsAbsentWithoutSessions(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	at := listen(t, New(Options{Engine: e}), "tcp", "127.0.0.1:0")
	w := &uiWorld{t: t, engine: e, at: at}
	if got := w.status("GET", "/ui/", nil); got != http.StatusNotFound {
		t.Errorf("GET /ui/ = %d, want 404", got)
	}
}

func TestSignInSetsStrictCookie(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	c := w.signIn(w.token(v1.TokenRequest{Caller: "ann"}).Secret)
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Secure || len(c.Value) < 43 {
		t.Errorf("cookie = %v, want HttpOnly, SameSite=Strict, Path=/ and 32 random bytes", c)
	}
	body := fmt.Sprintf(`{"token":%q}`, uiOwn)
	res, _ := w.do("POST", "/ui/session", body, map[string]string{"X-Forwarded-Proto": "https"})
	if got := res.Header.Get("Set-Cookie"); !strings.HasPrefix(got, "__Host-") || !strings.Contains(got, "Secure") {
		t.Errorf("Set-Cookie over TLS = %q, want a Secure cookie with the prefix __Host-", got)
	}
	for _, token := range []string{"", "x", "orc_", uiOwn + "x", w.token(v1.TokenRequest{Caller: "ann"}).ID} {
		res, text := w.do("POST", "/ui/session", fmt.Sprintf(`{"token":%q}`, token), nil)
		if res.StatusCode != http.StatusUnauthorized && (token != "" || res.StatusCode != http.StatusBadRequest) ||
			len(res.Cookies()) > 0 {
			t.Errorf("sign in with %q = %d %s and %d cookies, want an error and none", token, res.StatusCode, text,
				len(res.Cookies()))
		}
	}
}

func TestSignInBodyIsBounded(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	body := fmt.Sprintf(`{"token":%q}`, uiOwn)
	for size, want := range map[int]int{maxSignIn: http.StatusOK, maxSignIn + 1: http.StatusRequestEntityTooLarge} {
		padded := body + strings.Repeat(" ", size-len(body))
		if res, text := w.do("POST", "/ui/session", padded, nil); res.StatusCode != want {
			t.Errorf("sign in with %d bytes = %d %s, want %d", size, res.StatusCode, text, want)
		}
	}
}

// Signing out is open to anybody, so without a session it is a refusal, which is paced.
func TestSignOutWithoutSessionIsPaced(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	w.refusals.Rate, w.refusals.Burst = 1, 1
	began := time.Now()
	for range 3 {
		if got := w.status("DELETE", "/ui/session", map[string]string{"Cookie": "orchestrator_session=x"}); got != http.StatusUnauthorized {
			t.Errorf("DELETE /ui/session with an unknown cookie = %d, want 401", got)
		}
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("3 refusals took %v, want at least 1s: the rate is one per second", took)
	}
}

// The cookie reaches the servers of all other ports of the host, so alone it must open nothing.
func TestCookieAloneIsRefused(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	keys, other := w.signIn(uiOwn), w.signIn(uiOwn)
	all := append((&Server{}).routes(), (&Server{}).uiRoutes()...)
	for _, rt := range all {
		if rt.open || rt.foreign || rt.method == "" {
			continue
		}
		path := strings.NewReplacer("{", "", "}", "").Replace(rt.path)
		for name, page := range map[string]string{"no": "", "another session's": other.page} {
			if got := w.status(rt.method, path, with(fieldsOf(keys), ui.Header, page)); got != http.StatusUnauthorized {
				t.Errorf("%s %s with the cookie and %s secret = %d, want 401", rt.method, path, name, got)
			}
		}
	}
	if got := w.status("DELETE", "/ui/session", with(fieldsOf(keys), ui.Header, "")); got != http.StatusUnauthorized {
		t.Errorf("sign out with the cookie alone = %d, want 401", got)
	}
	_, body := w.do("GET", "/ui/session", "", fieldsOf(keys))
	if strings.Contains(body, keys.page) || !strings.Contains(body, `"operator":true`) {
		t.Errorf("GET /ui/session = %s, want the operator without the secret", body)
	}
	shake := with(fieldsOf(keys), ui.Header, "")
	shake["Sec-WebSocket-Protocol"] = v1.TerminalProtocol + ", " + ui.SubprotocolPrefix + keys.page
	if got := w.status("GET", "/v1/sandboxes/x/pty", shake); got == http.StatusUnauthorized || got == http.StatusForbidden {
		t.Errorf("terminal with the secret as a subprotocol = %d, want another error", got)
	}
}

func TestSessionActsAsItsCaller(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	ann := fieldsOf(w.signIn(w.token(v1.TokenRequest{Caller: "ann", Trust: 1}).Secret))
	op := fieldsOf(w.signIn(uiOwn))
	for _, c := range []struct {
		path     string
		ann, own int
	}{
		{"/ui/session", 200, 200},
		{"/v1/sandboxes", 200, 200},
		{"/v1/sandboxes?all=true", 403, 200},
		{"/v1/tokens", 403, 200},
		{"/v1/sandboxes/x/ports/80/", 403, 403}, // answers of a sandbox are never for a browser's session
		{"/v1/sandboxes/x/ports/80", 403, 403},
	} {
		if got := w.status("GET", c.path, ann); got != c.ann {
			t.Errorf("GET %s by a caller = %d, want %d", c.path, got, c.ann)
		}
		if got := w.status("GET", c.path, op); got != c.own {
			t.Errorf("GET %s by the operator = %d, want %d", c.path, got, c.own)
		}
	}
	res, body := w.do("GET", "/ui/session", "", ann)
	var s uiSession
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Caller != "ann" || s.Operator || s.Direct {
		t.Errorf("GET /ui/session = %s, %v; want ann, not an operator", body, err)
	}
	if got := res.Header.Get("Content-Security-Policy"); got != ui.DataPolicy {
		t.Errorf("policy of an answer to a session = %q, want %q", got, ui.DataPolicy)
	}
}

func TestSessionRequestFromElsewhereIsRefused(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	own := fieldsOf(w.signIn(uiOwn))
	const path = "/v1/workspaces"
	body := func(i int) string { return fmt.Sprintf(`{"name":"w%d"}`, i) }
	for i, c := range []struct {
		field, value string
		post, get    int
	}{
		{"", "", 201, 200},
		{"Sec-Fetch-Site", "", 201, 200}, // without TLS and not on this host
		{"Sec-Fetch-Site", "none", 403, 200},
		{"Sec-Fetch-Site", "same-site", 403, 403}, // another port of this host
		{"Sec-Fetch-Site", "cross-site", 403, 403},
		{"Origin", "", 403, 200},
		{"Origin", "null", 403, 403},
		{"Origin", "http://127.0.0.1:1", 403, 403},
		{"Origin", "http://evil.example", 403, 403},
		{ui.Header, "", 401, 401},
		{ui.Header, "1", 401, 401},
	} {
		fields := own
		if c.field != "" {
			fields = with(own, c.field, c.value)
		}
		if res, text := w.do("POST", path, body(i), fields); res.StatusCode != c.post {
			t.Errorf("POST with %s %q = %d %s, want %d", c.field, c.value, res.StatusCode, text, c.post)
		}
		if got := w.status("GET", path, fields); got != c.get {
			t.Errorf("GET with %s %q = %d, want %d", c.field, c.value, got, c.get)
		}
	}
	res, _ := w.do("POST", "/ui/session", fmt.Sprintf(`{"token":%q}`, uiOwn), map[string]string{"Origin": "http://evil.example"})
	if res.StatusCode != http.StatusForbidden || len(res.Cookies()) > 0 {
		t.Errorf("sign in from another origin = %d and %d cookies, want 403 and none", res.StatusCode, len(res.Cookies()))
	}
}

// A request with a cookie that opens nothing is never served as the local operator.
func TestUnknownSessionIsRefused(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", uiOwn} {
		w := newUI(t, token)
		c := w.signIn(w.token(v1.TokenRequest{Caller: "ann"}).Secret)
		known := fieldsOf(c)
		c.Value = strings.Repeat("x", len(c.Value))
		if got := w.status("GET", "/v1/pools", fieldsOf(c)); got != http.StatusUnauthorized {
			t.Errorf("own token %q: an unknown session = %d, want 401", token, got)
		}
		if got := w.status("GET", "/ui/", fieldsOf(c)); got != http.StatusOK {
			t.Errorf("own token %q: the page with an unknown session = %d, want 200", token, got)
		}
		if got := w.status("GET", "/ui/session", nil); got != http.StatusUnauthorized {
			t.Errorf("own token %q: /ui/session without a session = %d, want 401", token, got)
		}
		if got := w.status("DELETE", "/ui/session", known); got != http.StatusNoContent {
			t.Errorf("own token %q: sign out = %d, want 204", token, got)
		}
		if got := w.status("GET", "/v1/pools", known); got != http.StatusUnauthorized {
			t.Errorf("own token %q: after signing out = %d, want 401", token, got)
		}
	}
}

func TestRevokedTokenEndsItsSessionsAndStreams(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	tok := w.token(v1.TokenRequest{Caller: "ann"})
	ann, op := fieldsOf(w.signIn(tok.Secret)), fieldsOf(w.signIn(uiOwn))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.at.String()+"/ui/live?topics=overview,events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", ann["Cookie"])
	r.Header.Set(ui.Header, ann[ui.Header])
	res, err := new(http.Transport).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("GET /ui/live = %d, want 200", res.StatusCode)
	}
	if got := w.status("DELETE", "/v1/tokens/"+url.PathEscape(tok.ID), op); got != http.StatusOK {
		t.Fatalf("revoke = %d, want 200", got)
	}
	if _, err := io.Copy(io.Discard, res.Body); ctx.Err() != nil {
		t.Errorf("the stream of a revoked token goes on: %v", err)
	}
	if got := w.status("GET", "/v1/pools", ann); got != http.StatusUnauthorized {
		t.Errorf("session of a revoked token = %d, want 401", got)
	}
	if got := w.sessions.Len(); got != 1 {
		t.Errorf("Len() = %d after a revocation, want 1: the operator's", got)
	}
}

func TestLiveSendsItsTopics(t *testing.T) {
	t.Parallel()
	w := newUI(t, uiOwn)
	op := fieldsOf(w.signIn(uiOwn))
	for _, topics := range []string{"", "nothing", "events,nothing"} {
		if got := w.status("GET", "/ui/live?topics="+topics, op); got != http.StatusBadRequest {
			t.Errorf("GET /ui/live?topics=%s = %d, want 400", topics, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+w.at.String()+"/ui/live?topics=approvals,audit,events,figures,overview",
		http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", op["Cookie"])
	r.Header.Set(ui.Header, op[ui.Header])
	res, err := new(http.Transport).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	w.token(v1.TokenRequest{Caller: "bob"}) // writes an audit record, before the stream is read
	seen, text := map[string]bool{}, ""
	for buf := make([]byte, 4096); !seen["overview"] || !seen["figures"] || !seen["audit"]; {
		n, err := res.Body.Read(buf)
		if err != nil {
			t.Fatalf("read = %v after %q, want overview, figures and audit", err, text)
		}
		text += string(buf[:n])
		for _, topic := range []string{"overview", "figures", "audit"} {
			seen[topic] = strings.Contains(text, "event: "+topic+"\n")
		}
		if !seen["audit"] {
			w.token(v1.TokenRequest{Caller: "bob"}) // the first one may have been before the subscription
		}
	}
	if !strings.HasPrefix(text, "event: listening\n") {
		t.Errorf("stream begins with %.40q, want event: listening", text)
	}
}

func TestCallWindowCountsTheLastMinute(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 500, time.UTC)
	var w callWindow
	for i := range 100 {
		at := now.Add(-time.Duration(i) * time.Second)
		w.add([]v1.AuditRecord{
			{Kind: "open", Time: at}, {Kind: "close", Time: at, Ending: "exited", DurationMS: float64(i + 1)},
		})
	}
	f := w.figures(now)
	if len(f.Each) != 60 || f.Each[59] != 1 || f.Each[0] != 1 {
		t.Errorf("Each = %v, want 60 seconds of one call", f.Each)
	}
	if f.Endings["exited"] != 61 || f.P50 != 31 || f.P99 != 61 { // the running second counts too
		t.Errorf("figures = %v, want 61 calls, p50 31 ms and p99 61 ms", f)
	}
}
