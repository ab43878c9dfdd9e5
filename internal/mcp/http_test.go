package mcp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// serve returns a server's URL. The bearer token is the caller, "root" is an operator, and the text
// after a slash is the profile.
func serve(t *testing.T, o Options) (string, *Server) {
	t.Helper()
	o.ForCallers = core.ForCallers
	s := New(o)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, profile, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "/")
		s.Serve(w, r, caller.Principal{Caller: name, Profile: profile, Operator: name == "root"}, func() {})
	}))
	t.Cleanup(func() {
		closeServer(t, s)
		h.Close()
	})
	return h.URL, s
}

// bearer is a RoundTripper that adds a token.
type bearer string

func (a bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(a))
	return http.DefaultTransport.RoundTrip(r)
}

func dial(t *testing.T, at, caller string) *mcp.ClientSession {
	t.Helper()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: at, HTTPClient: &http.Client{Transport: bearer(caller)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return cs
}

func TestHTTPCallsUseCallerAndPlacement(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f})
	cs := dial(t, at+"/mcp?workspace=notes&read_only=true&template=big", "ben")
	if r, err := cs.CallTool(t.Context(), bash("echo hello")); err != nil || textOf(t, r) != "hello" {
		t.Fatalf("CallTool = %v, %v; want hello", r, err)
	}
	if f.by[0].Caller != "ben" || f.by[0].Operator || f.by[0].Via != "mcp" {
		t.Errorf("called by %+v, want ben via mcp, not an operator", f.by[0])
	}
	if c := f.calls[0]; c.Workspace != "notes" || !c.ReadOnly || c.Template != "big" {
		t.Errorf("call = %+v, want workspace notes, read only, and template big", c)
	}
	cs.Close() // sends DELETE
	eventually(t, "the end of the session", func() bool { return len(f.hasEnded()) == 1 })
}

func TestHTTPSessionEndCancelsCalls(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f})
	cs := dial(t, at, "ben")
	go func() { _, _ = cs.CallTool(context.Background(), bash("wait for it")) }()
	within(t, f.running, "a running command")
	res, body := request(t, http.MethodDelete, at, "ben", cs.ID(), "")
	if res.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE of the session: status %d %s, want %d", res.StatusCode, body, http.StatusNoContent)
	}
	within(t, f.killed, "the end of the command")
}

// request sends one MCP request and reads the whole answer.
func request(t *testing.T, method, at, caller, session, body string, header ...string) (*http.Response, string) {
	t.Helper()
	res := begin(t.Context(), t, method, at, caller, session, body, header...)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := v1.Decode(b); ok {
		return res, p.Detail
	}
	return res, string(b)
}

func begin(
	ctx context.Context, t *testing.T, method, at, caller, session, body string, header ...string,
) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+caller)
	r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	if session != "" {
		r.Header.Set(headerID, session)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

const (
	hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` +
		`"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	call = `{"jsonrpc":"2.0","id":2,"method":"tools/call",` +
		`"params":{"name":"system_bash","arguments":{"command":"wait for it"}}}`
	quick = `{"jsonrpc":"2.0","id":3,"method":"tools/call",` +
		`"params":{"name":"system_bash","arguments":{"command":"echo quick"}}}`
)

// introduce opens a session by hand.
func introduce(t *testing.T, at, caller string) string {
	t.Helper()
	res, body := request(t, http.MethodPost, at, caller, "", hello)
	id := res.Header.Get(headerID)
	if res.StatusCode != http.StatusOK || id == "" {
		t.Fatalf("initialize: status %d %s, session %q; want 200 and a session", res.StatusCode, body, id)
	}
	return id
}

func TestSessionRefusesOtherHolders(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f})
	id := introduce(t, at, "ben")
	for _, other := range []string{"eve", "ben/readonly"} { // also another token of ben
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			res, body := request(t, method, at, other, id, quick)
			if res.StatusCode != http.StatusNotFound {
				t.Fatalf("%s of ben's session by %s: status %d %s, want 404", method, other, res.StatusCode, body)
			}
		}
	}
	if res, body := request(t, http.MethodPost, at, "ben", id, quick); res.StatusCode != http.StatusOK ||
		!strings.Contains(body, "quick") {
		t.Errorf("request of the owner: status %d %s, want 200 with quick", res.StatusCode, body)
	}
	if res, _ := request(t, http.MethodPost, at, "ben", "no-such", quick); res.StatusCode != http.StatusNotFound {
		t.Errorf("request in an unknown session: status %d, want 404", res.StatusCode)
	}
}

func TestSessionHolderHasTheSameRights(t *testing.T) {
	ben := caller.Principal{Caller: "ben", Token: "a", Profile: "default", Trust: 2}
	for name, c := range map[string]struct {
		change func(*caller.Principal)
		same   bool
	}{
		"token":    {func(c *caller.Principal) { c.Token = "b" }, true},
		"caller":   {func(c *caller.Principal) { c.Caller = "eve" }, false},
		"profile":  {func(c *caller.Principal) { c.Profile = "readonly" }, false},
		"trust":    {func(c *caller.Principal) { c.Trust = 0 }, false},
		"operator": {func(c *caller.Principal) { c.Operator = true }, false},
	} {
		other := ben
		c.change(&other)
		if got := holder(other) == holder(ben); got != c.same {
			t.Errorf("another %s: the same holder is %t, want %t", name, got, c.same)
		}
	}
}

func TestLostStreamEndsItsCall(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f, Resume: time.Millisecond})
	id := introduce(t, at, "ben")
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res := begin(ctx, t, http.MethodPost, at, "ben", id, call)
	defer res.Body.Close()
	within(t, f.running, "a running command")
	hangUp()
	if err := within(t, f.killed, "the end of the command"); !errors.Is(err, errGone) {
		t.Errorf("the command ended because of %v, want %v", err, errGone)
	}
}

func TestResumedStreamKeepsItsCall(t *testing.T) {
	f := newFake()
	at, s := serve(t, Options{Engine: f, Resume: time.Hour})
	id := introduce(t, at, "ben")
	x := s.byID(id)
	state := func() (lost, resumed int) {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.lost), len(x.resumed)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res := begin(ctx, t, http.MethodPost, at, "ben", id, call)
	defer res.Body.Close()
	within(t, f.running, "a running command")
	event := firstEvent(t, res.Body)
	hangUp()
	eventually(t, "the loss of the stream", func() bool { lost, _ := state(); return lost == 1 })

	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() { // answered with the first event
		defer close(gone)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		for k, v := range map[string]string{
			"Accept": "text/event-stream", "Authorization": "Bearer ben", headerID: id, headerEvent: event,
			"Mcp-Protocol-Version": "2025-11-25",
		} {
			r.Header.Set(k, v)
		}
		if res, err := http.DefaultTransport.RoundTrip(r); err == nil {
			res.Body.Close()
		}
	}()
	eventually(t, "the return of the client", func() bool { _, resumed := state(); return resumed == 1 })
	lost := x.lost[0]
	x.giveUp(lost) // too late: the client resumed
	if len(f.killed) != 0 {
		t.Error("the command of a client that resumed was ended, want it to run")
	}
	leave()
	<-gone
	eventually(t, "the client's leaving", func() bool { _, resumed := state(); return resumed == 0 })
	x.giveUp(lost)
	within(t, f.killed, "the end of the command")
}

// firstEvent returns the id of the first event of a stream.
func firstEvent(t *testing.T, r io.Reader) string {
	t.Helper()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			return id
		}
	}
	t.Fatal("the stream has no event with an id, want one")
	return ""
}

func TestOtherOriginsAreRefused(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f, Hosts: httpguard.Hosts{"ok.example", "proxied.example:8443"}})
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		header []string
		want   int
	}{
		"no origin":              {nil, http.StatusOK},
		"its own":                {[]string{"Origin", at}, http.StatusOK},
		"one that is configured": {[]string{"Origin", "https://ok.example"}, http.StatusOK},
		"another page":           {[]string{"Origin", "http://evil.example"}, http.StatusForbidden},
		"another port":           {[]string{"Origin", "http://" + u.Hostname() + ":1"}, http.StatusForbidden},
		"a null origin":          {[]string{"Origin", "null"}, http.StatusForbidden},
		"a rebound name": {[]string{"Host", "evil.example", "Origin", "http://evil.example"},
			http.StatusForbidden},
		"an allowed name":               {[]string{"Host", "ok.example", "Origin", "https://ok.example"}, http.StatusOK},
		"an allowed name and port":      {[]string{"Host", "proxied.example:8443"}, http.StatusOK},
		"an allowed name, another port": {[]string{"Host", "proxied.example:1"}, http.StatusForbidden},
		"a name without origin":         {[]string{"Host", "evil.example"}, http.StatusForbidden},
	} {
		if res, body := request(t, http.MethodPost, at, "ben", "", hello, c.header...); res.StatusCode != c.want {
			t.Errorf("%s: status %d %s, want %d", what, res.StatusCode, body, c.want)
		} else if c.want == http.StatusForbidden && (!strings.Contains(body, "allowed_hosts") ||
			res.Header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %s %s, want a problem that names allowed_hosts", what, res.Header.Get("Content-Type"), body)
		}
	}
}

func TestInvalidHTTPRequestsAreRefused(t *testing.T) {
	at, _ := serve(t, Options{Engine: newFake()})
	for what, c := range map[string]struct {
		query, body string
		want        int
		says        string
	}{
		"an unknown parameter": {"?workspce=x", hello, http.StatusBadRequest, "workspce"},
		"an invalid flag":      {"?read_only=perhaps", hello, http.StatusBadRequest, "read_only"},
		"a repeated parameter": {"?job=a&job=b", hello, http.StatusBadRequest, `"job" is given 2 times`},
		"a repeated name with a control character": {"?%1b=a&%1b=b", hello, http.StatusBadRequest,
			`"\x1b" is given 2 times`},
		"many parameters": {"?" + strings.Repeat("job=a&", maxParameters), hello, http.StatusBadRequest,
			"over 64 parameters"},
		"not JSON": {"", "{", http.StatusBadRequest, "malformed"},
		"no body":  {"", "", http.StatusBadRequest, "body"},
		"a large body": {"", `"` + strings.Repeat("x", maxMessage+1) + `"`, http.StatusRequestEntityTooLarge,
			"exceeds"},
	} {
		res, body := request(t, http.MethodPost, at+c.query, "ben", "", c.body)
		if res.StatusCode != c.want || !strings.Contains(body, c.says) {
			t.Errorf("%s: status %d %s; want %d with %q", what, res.StatusCode, body, c.want, c.says)
		}
	}
}

func TestSessionsPerCallerAreBounded(t *testing.T) {
	at, _ := serve(t, Options{Engine: newFake()})
	for range maxOfCaller {
		introduce(t, at, "eve")
	}
	_, body := request(t, http.MethodPost, at, "eve", "", hello)
	wantPart(t, "one more session", body, "too many sessions")
	introduce(t, at, "ben")
}

func TestStopEndsWaitingStreams(t *testing.T) {
	f := newFake()
	at, s := serve(t, Options{Engine: f})
	id := introduce(t, at, "ben")
	res := begin(t.Context(), t, http.MethodGet, at, "ben", id, "")
	defer res.Body.Close()
	s.Stop()
	if _, err := io.ReadAll(res.Body); err != nil {
		t.Errorf("reading the stream: %v, want its end", err)
	}
	_, body := request(t, http.MethodPost, at, "ben", "", hello)
	wantPart(t, "a new session", body, "stopping")
}

// The library keeps a bounded part of a session, whatever a client sends.
func TestKeptSessionStateIsBounded(t *testing.T) {
	at, s := serve(t, Options{Engine: newFake()})
	long := strings.Repeat("x", maxParams)
	big := strings.Replace(hello, `"capabilities":{}`, `"capabilities":{"experimental":{"x":"`+long+`"}}`, 1)
	if big == hello {
		t.Fatal("the greeting has no capabilities")
	}
	_, body := request(t, http.MethodPost, at, "ben", "", big)
	wantPart(t, "a large greeting", body, "parameters of")
	id := introduce(t, at, "ben")
	for method, params := range map[string]string{
		"logging/setLevel": `{"level":"` + long + `"}`, "resources/subscribe": `{"uri":"` + long + `"}`,
	} {
		_, body := request(t, http.MethodPost, at, "ben", id,
			`{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":`+params+`}`)
		wantPart(t, method, body, "parameters of")
	}
	call := `{"jsonrpc":"2.0","id":8,"method":"tools/call",` +
		`"params":{"name":"bash","arguments":{},"_meta":{"progressToken":"` + long + `"}}}`
	_, body = request(t, http.MethodPost, at, "ben", id, call)
	wantPart(t, "a long token", body, "progressToken is over")
	// Of many subscriptions, one is kept.
	for _, uri := range []string{"a", "b", "c"} {
		request(t, http.MethodPost, at, "ben", id,
			`{"jsonrpc":"2.0","id":9,"method":"resources/subscribe","params":{"uri":"`+uri+`:x"}}`)
	}
	kept := reflect.ValueOf(s.sdk).Elem().FieldByName("resourceSubscriptions")
	if !kept.IsValid() || kept.Len() != 1 {
		t.Errorf("the library keeps subscriptions %v, want 1", kept)
	}
}
