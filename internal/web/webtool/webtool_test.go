package webtool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
)

// exchanges answers exchanges itself, and notes them.
type exchanges struct {
	caps   tool.Caps
	web    Web
	answer func(x Exchange) web.Answer
	asked  []Exchange
}

func (b *exchanges) Exchange(_ context.Context, x Exchange) (web.Answer, error) {
	b.asked = append(b.asked, x)
	return b.answer(x), nil
}

func compiled(t *testing.T, r reach.Hosts) *reach.Limit {
	t.Helper()
	got, err := r.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// newExchanges allows what a service allows by itself, and answers with a page.
func newExchanges(t *testing.T, text string) *exchanges {
	t.Helper()
	b := &exchanges{
		web: Web{Owner: "me", Host: Host{
			Fetch:   compiled(t, reach.Hosts{Allow: []string{"*"}, Deny: []string{"evil.example"}}).Named("web.fetch"),
			Request: compiled(t, reach.Hosts{Allow: []string{"*"}, HTTP: []string{"*"}}),
			Cache:   cache.New(10, 1<<20),
		}},
		answer: func(x Exchange) web.Answer {
			return web.Answer{URL: x.Request.URL, Status: 200, MediaType: "text/html", Title: "A page", Text: text,
				Body: []byte(text), Bytes: int64(len(text))}
		},
	}
	b.web.Exchanger = b
	return b
}

func try[T any](t *testing.T, tl *tool.Tool, b *exchanges, in string) (out T, o tool.Outcome, err error) {
	t.Helper()
	p, err := tl.Check(json.RawMessage(in))
	if err != nil {
		return out, o, err
	}
	if p.NeedsSandbox {
		t.Error("NeedsSandbox = true, want false")
	}
	got, o, err := p.Call.(tool.Run[Web])(t.Context(), b.caps, b.web)
	if got != nil {
		out = got.(T)
	}
	return out, o, err
}

func fetched(t *testing.T, b *exchanges, in string) FetchOutput {
	t.Helper()
	out, _, err := try[FetchOutput](t, webFetch, b, in)
	if err != nil {
		t.Fatalf("web.fetch(%s) = %v, want no error", in, err)
	}
	return out
}

func TestCacheIsPerOwnerAndRights(t *testing.T) {
	b := newExchanges(t, "text")
	first := fetched(t, b, `{"url": "http://a.example/x#part"}`)
	second := fetched(t, b, `{"url": "https://A.example/x", "prompt": "text"}`)
	if first.Cached || first.URL != "https://a.example/x" || !second.Cached || len(b.asked) != 1 {
		t.Errorf("web.fetch = %+v, then %+v after %d exchanges; want only the second cached, 1 exchange", first, second,
			len(b.asked))
	}
	for name, change := range map[string]func(){
		"another owner":     func() { b.web.Owner = "you" },
		"other rights":      func() { b.web.Fetch = compiled(t, reach.Hosts{Allow: []string{"a.example"}}) },
		"a profile's rules": func() { b.caps.Web.Limited = compiled(t, reach.Hosts{Allow: []string{"a.example"}}) },
		"another bound":     func() { b.caps.Web.MaxBytes = 1000 },
	} {
		b.asked = nil
		change()
		if out := fetched(t, b, `{"url": "https://a.example/x"}`); out.Cached || len(b.asked) != 1 {
			t.Errorf("%s: cached %v after %d exchanges, want a new exchange", name, out.Cached, len(b.asked))
		}
	}
	if out := fetched(t, b, `{"url": "https://a.example/x", "form": "article"}`); out.Cached {
		t.Error("web.fetch in another form: Cached = true, want false")
	}
	if out := fetched(t, b, `{"url": "https://a.example/x", "fresh": true}`); out.Cached {
		t.Error("web.fetch of a fresh page: Cached = true, want false")
	}
	b.answer = func(x Exchange) web.Answer {
		return web.Answer{URL: x.Request.URL, Status: 200, Text: "mine", Header: [][2]string{{"Set-Cookie", "a=b"}}}
	}
	for range 2 {
		if out := fetched(t, b, `{"url": "https://a.example/mine"}`); out.Cached {
			t.Error("web.fetch of a page with a cookie: Cached = true, want false")
		}
	}
}

func TestFetchExtractsContent(t *testing.T) {
	b := newExchanges(t, strings.Repeat("ä", 10_001))
	out := fetched(t, b, `{"url": "https://a.example/"}`)
	want := strings.Repeat("ä", 10_000) + "\n... (content truncated)"
	if !out.Truncated || out.Extraction != Whole || out.Content != want {
		t.Errorf("web.fetch = %d bytes, truncated %v, %s; want %d bytes, true, %s", len(out.Content), out.Truncated,
			out.Extraction, len(want), Whole)
	}
	b = newExchanges(t,
		"# Prices\n\nThe lamp costs twelve.\n\n# History\n\n"+strings.Repeat("Nothing of note happened then. ", 100))
	out = fetched(t, b, `{"url": "https://a.example/", "prompt": "What does the lamp cost?"}`)
	if out.Extraction != Passages || !strings.Contains(out.Content, "costs twelve") ||
		strings.Contains(out.Content, "Nothing of note") {
		t.Errorf("web.fetch with a question = %+v, want only the passage about the lamp", out)
	}
	out = fetched(t, b, `{"url": "https://a.example/", "prompt": "zzz"}`)
	if out.Extraction != Whole || out.Note == "" || !strings.Contains(out.Content, "costs twelve") {
		t.Errorf("web.fetch without a matching passage = %+v, want the whole page and a note", out)
	}
	b.web.Extract = model(func(prompt string) (string, error) { return "Twelve. " + prompt, nil })
	out = fetched(t, b, `{"url": "https://a.example/", "prompt": "lamp", "max_chars": 6}`)
	if want = "Twelve\n... (content truncated)"; out.Extraction != ByModel || out.Content != want || !out.Truncated ||
		!out.Cached {
		t.Errorf("web.fetch with a model = %+v, want %q, truncated and cached", out, want)
	}
	b.web.Extract = model(func(string) (string, error) { return "", errors.New("the model is away") })
	out = fetched(t, b, `{"url": "https://a.example/", "prompt": "lamp"}`)
	if out.Extraction != Passages || !strings.HasPrefix(out.Note, "the model is away; ") ||
		!strings.Contains(out.Content, "twelve") {
		t.Errorf("web.fetch with a failing model = %+v, want passages and its error in the note", out)
	}
	b.answer = func(x Exchange) web.Answer {
		return web.Answer{URL: x.Request.URL, Status: 302, RedirectURL: "https://b.example/y"}
	}
	out = fetched(t, b, `{"url": "https://c.example/"}`)
	if out.RedirectURL != "https://b.example/y" ||
		out.Content != "Redirected to different host. Fetch: https://b.example/y" || out.Cached {
		t.Errorf("web.fetch of a redirect = %+v, want https://b.example/y, not cached", out)
	}
}

// A call's limits are those of its profile and its own time limit.
func TestCallLimitsAreEnforced(t *testing.T) {
	b := newExchanges(t, "text")
	b.caps.Web.MaxText = 100
	for in, says := range map[string]string{
		`{"url": "https://a.example/", "max_chars": 101}`:                  "max_chars is 101: at most 100",
		`{"url": "https://a.example/", "timeout_ms": 300001}`:              "timeout_ms is 300001: at most 300000",
		`{"url": "https://a.example/", "timeout_ms": 9223372036854775807}`: "timeout_ms is 9223372036854775807: at most 300000",
		`{"url": "https://a.example/", "timeout_ms": 18446744073710}`:      "timeout_ms is 18446744073710: at most 300000",
	} {
		if _, _, err := try[FetchOutput](t, webFetch, b, in); text(err) != says || len(b.asked) != 0 {
			t.Errorf("web.fetch(%s) = %v after %d exchanges, want %q after 0", in, err, len(b.asked), says)
		}
	}
	_, _, err := browsed(t, &visits{exchanges: b}, `{"url": "https://a.example/", "max_chars": 101}`)
	if want := "max_chars is 101: at most 100"; text(err) != want {
		t.Errorf("browser.open = %v, want %q", err, want)
	}
	left := time.Duration(0)
	b.web.Extract = timed(func(ctx context.Context) (string, error) {
		end, _ := ctx.Deadline()
		left = time.Until(end)
		return "Twelve\x1b[2J.", nil
	})
	out := fetched(t, b, `{"url": "https://a.example/", "prompt": "lamp", "timeout_ms": 60000}`)
	if left <= 0 || left > time.Minute || out.Content != "Twelve[2J." {
		t.Errorf("the model has %s, answer %q; want up to a minute, no escape", left, out.Content)
	}
}

type timed func(context.Context) (string, error)

func (m timed) Name() string { return "test" }
func (m timed) Extract(ctx context.Context, _, _, _ string) (string, error) {
	return m(ctx)
}

type model func(prompt string) (string, error)

func (m model) Name() string { return "test" }
func (m model) Extract(_ context.Context, prompt, _, _ string) (string, error) {
	return m(prompt)
}

// A refused request costs no sandbox.
func TestDeniedRequestsAreRefused(t *testing.T) {
	for _, c := range []struct {
		tool  *tool.Tool
		in    string
		class error
		says  string
	}{
		{webFetch, `{"url": "https://evil.example/"}`, errdefs.ErrPermissionDenied, "evil.example"},
		{webFetch, `{"url": "https://a.example:8443/"}`, errdefs.ErrPermissionDenied, "in web.fetch"},
		{webFetch, `{"url": "https://93.184.216.34/"}`, errdefs.ErrPermissionDenied, "93.184.216.34"},
		{webFetch, `{"url": "https://[::1]/"}`, errdefs.ErrPermissionDenied, "::1"},
		{webFetch, `{"url": "ftp://a.example/"}`, errdefs.ErrInvalidArgument, "url has to begin with https://"},
		{webFetch, `{"url": "file:///etc/passwd"}`, errdefs.ErrInvalidArgument, "url has to begin"},
		{webFetch, `{"url": "https://user:pw@a.example/"}`, errdefs.ErrInvalidArgument, "url has a user"},
		{webFetch, `{"url": "https://a.example\\@b.example/"}`, errdefs.ErrInvalidArgument, "url has a space, a backslash"},
		{webFetch, `{"url": "https://2130706433/"}`, errdefs.ErrInvalidArgument, "url names a host"},
		{webFetch, `{"url": "https://0x7f.1/"}`, errdefs.ErrInvalidArgument, "url names a host"},
		{webFetch, `{"url": "https://a.example:0/"}`, errdefs.ErrInvalidArgument, "url has the port"},
		{webFetch, `{"url": "https://a.example:/"}`, errdefs.ErrInvalidArgument, "url has a colon"},
		{webFetch, `{"url": "https:///x"}`, errdefs.ErrInvalidArgument, "url names no host"},
		{webFetch, `{"url": "https://a.example/\u0000"}`, errdefs.ErrInvalidArgument, "url has a space"},
		{webFetch, `{"url": "https://a.example/", "form": "pdf"}`, errdefs.ErrInvalidArgument, "form"},
		{webFetch, `{"url": "https://a.example/", "timeout_ms": 400000}`, errdefs.ErrInvalidArgument,
			"timeout_ms is 400000: at most 300000"},
		{webFetch, `{"url": "https://a.example/", "max_chars": 999999}`, errdefs.ErrInvalidArgument, "max_chars"},
		{httpRequest, `{"url": "https://a.example/", "method": "TRACE"}`, errdefs.ErrInvalidArgument, "method"},
		{httpRequest, `{"url": "https://a.example/", "headers": {"Host": "b.example"}}`, errdefs.ErrInvalidArgument,
			"headers.Host is not yours"},
		{httpRequest, `{"url": "https://a.example/", "headers": {"orchestrator-refusal": "denied"}}`,
			errdefs.ErrInvalidArgument, "headers.orchestrator-refusal is not yours"},
		{httpRequest, `{"url": "https://a.example/", "headers": {"content-length": "1"}}`, errdefs.ErrInvalidArgument,
			"headers.content-length"},
		{httpRequest, `{"url": "https://a.example/", "headers": {"Proxy-Authorization": "x"}}`, errdefs.ErrInvalidArgument,
			"headers.Proxy-Authorization"},
		{httpRequest, `{"url": "https://a.example/", "headers": {"X": "a\r\nHost: b"}}`, errdefs.ErrInvalidArgument,
			"headers.X has a line break"},
		{httpRequest, `{"url": "https://a.example/", "headers": {"a b": "c"}}`, errdefs.ErrInvalidArgument,
			`headers has the name "a b"`},
		{httpRequest, `{"url": "https://a.example/", "headers": {"x-a": "1", "X-A": "2"}}`, errdefs.ErrInvalidArgument,
			"twice"},
		{httpRequest, `{"url": "https://a.example/", "body": "x"}`, errdefs.ErrInvalidArgument, "body is for methods"},
		{httpRequest, `{"url": "https://a.example/", "method": "POST", "body": "x", "body_base64": "eA=="}`,
			errdefs.ErrInvalidArgument, "body_base64"},
		{httpRequest, `{"url": "https://a.example/", "max_bytes": 99999999}`, errdefs.ErrInvalidArgument, "max_bytes"},
		{httpRequest, `{"url": "http://a.example:8080/"}`, errdefs.ErrPermissionDenied, "8080"},
		{webSearch, `{"query": " "}`, errdefs.ErrInvalidArgument, "query is empty"},
		{webSearch, `{"query": "` + strings.Repeat("x", 401) + `"}`, errdefs.ErrInvalidArgument, "query is 401 characters"},
		{webSearch, `{"query": "x", "count": 21}`, errdefs.ErrInvalidArgument, "count"},
		{webSearch, `{"query": "x"}`, errdefs.ErrFailedPrecondition, "web.search.provider"},
	} {
		b := newExchanges(t, "")
		_, _, err := try[any](t, c.tool, b, c.in)
		if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) || len(b.asked) > 0 {
			t.Errorf("%s: %v, %d asked; want %v: %q", c.in, err, len(b.asked), c.class, c.says)
		}
	}
	b := newExchanges(t, "")
	b.caps.Web.Limited = compiled(t, reach.Hosts{Allow: []string{"*.a.example"}, Methods: []string{"GET"}})
	for _, in := range []string{`{"url": "https://b.example/"}`, `{"url": "http://x.a.example/"}`,
		`{"url": "https://x.a.example/", "method": "PUT"}`} {
		if _, _, err := try[RequestOutput](t, httpRequest, b, in); !errdefs.IsPermissionDenied(err) || len(b.asked) > 0 {
			t.Errorf("http.request(%s) beyond a profile = %v after %d exchanges, want PermissionDenied after 0", in, err,
				len(b.asked))
		}
	}
}

func TestPlainHTTPOnlyForListedHosts(t *testing.T) {
	b := newExchanges(t, "text")
	b.web.Fetch = compiled(t, reach.Hosts{Allow: []string{"*"}, HTTP: []string{"old.example"}})
	for in, want := range map[string]string{
		"http://old.example/a": "http://old.example/a", "http://new.example/a": "https://new.example/a",
		"http://new.example:80/": "https://new.example/",
	} {
		if got := fetched(t, b, fmt.Sprintf(`{"url": %q}`, in)); got.URL != want {
			t.Errorf("web.fetch(%s) has the URL %s, want %s", in, got.URL, want)
		}
	}
}

func TestRequestAndAnswer(t *testing.T) {
	b := newExchanges(t, "")
	b.answer = func(x Exchange) web.Answer {
		return web.Answer{
			URL: "https://b.example/", Status: 404, Header: [][2]string{{"X-A", "1"}, {"x-a", "2"}, {"Content-Type",
				"text/plain"}}, Body: append([]byte("no"), x.Request.Body...), Bytes: 9,
		}
	}
	in := `{"url": "https://a.example/p", "method": "POST", "headers": {"X-B": "2", "X-A": "1"}, "body_base64": "eHk="}`
	out, _, err := try[RequestOutput](t, httpRequest, b, in)
	if err != nil || out.Status != 404 || out.URL != "https://b.example/" || out.Body != "noxy" ||
		out.Headers["x-a"] != "1, 2" || out.BodyBase64 != "" {
		t.Errorf("http.request = %+v, %v; want status 404 of https://b.example/ with noxy and x-a 1, 2", out, err)
	}
	r := b.asked[0].Request
	if r.Method != http.MethodPost || fmt.Sprint(r.Header) != "[[X-A 1] [X-B 2]]" || r.Redirects != web.Follow ||
		r.Form != web.Raw || r.MaxBytes != RequestBody || r.TimeoutMS != 30_000 {
		t.Errorf("request = %+v, want a POST with X-A and X-B, raw, %d bytes, 30 s", r, RequestBody)
	}
	b.answer = func(Exchange) web.Answer {
		return web.Answer{URL: "https://a.example/", Status: 200, Body: []byte{0xff, 0x00}, Bytes: 2}
	}
	out, _, err = try[RequestOutput](t, httpRequest, b, `{"url": "https://a.example/"}`)
	if err != nil || out.BodyBase64 != "/wA=" || out.Body != "" {
		t.Errorf("http.request of a binary body = %+v, %v; want only base64 /wA=", out, err)
	}
	b.answer = func(Exchange) web.Answer {
		return web.Answer{URL: "https://a.example/", Status: 200, Body: []byte("ä\xc3"), Bytes: 9, Truncated: true}
	}
	out, _, err = try[RequestOutput](t, httpRequest, b, `{"url": "https://a.example/"}`)
	if err != nil || out.Body != "ä" || !out.Truncated {
		t.Errorf("http.request of a truncated body = %+v, %v; want ä, truncated", out, err)
	}
}

// A fault is an error of its class, and being late is an ending.
func TestFaultsAreErrors(t *testing.T) {
	for kind, want := range map[string]error{
		web.FaultURL: errdefs.ErrInvalidArgument, web.FaultDenied: errdefs.ErrPermissionDenied,
		web.FaultName: errdefs.ErrNotFound, web.FaultConnect: errdefs.ErrUnavailable,
		web.FaultTLS: errdefs.ErrUnavailable, web.FaultProtocol: errdefs.ErrUnavailable,
		web.FaultRedirect: errdefs.ErrUnavailable, web.FaultContent: errdefs.ErrInvalidArgument,
	} {
		b := newExchanges(t, "")
		b.answer = func(Exchange) web.Answer { return web.Answer{Fault: &web.Fault{Kind: kind, Message: "because"}} }
		for _, tl := range []*tool.Tool{webFetch, httpRequest} {
			_, _, err := try[any](t, tl, b, `{"url": "https://a.example/"}`)
			if !errors.Is(err, want) || err.Error() != "because" {
				t.Errorf("%s of %s: %v, want the class %v and because", kind, tl.Name, err, want)
			}
		}
	}
	b := newExchanges(t, "")
	b.caps.Timeout = 7 * time.Second
	b.answer = func(Exchange) web.Answer {
		return web.Answer{Fault: &web.Fault{Kind: web.FaultTimeout, Message: "too late"}}
	}
	out, o, err := try[any](t, webFetch, b, `{"url": "https://a.example/"}`)
	if out != nil || err != nil || o.Ending != "timeout" || o.TimeoutMS != 7000 || o.Detail != "too late" {
		t.Errorf("web.fetch = %v, %+v, %v; want timeout after 7000 ms: too late", out, o, err)
	}
}

func TestSearchReachesOnlyItsProvider(t *testing.T) {
	p, err := search.New(search.Options{Kind: search.Brave, Key: "the-key"})
	if err != nil {
		t.Fatal(err)
	}
	b := newExchanges(t, "")
	b.web.Search = p
	b.answer = func(x Exchange) web.Answer {
		return web.Answer{URL: x.Request.URL, Status: 200,
			Body: []byte(
				`{"web": {"results": [{"title": "T", "url": "https://a.example/", "description": "D"}, {"title": "no source"}]}}`,
			)}
	}
	out, _, err := try[WebSearchOutput](t, webSearch, b, `{"query": "q", "count": 3}`)
	if err != nil || out.Count != 1 || out.Dropped != 1 || out.Provider != "brave" ||
		out.Results[0].URL != "https://a.example/" {
		t.Errorf("web.search = %+v, %v; want https://a.example/ of brave, 1 dropped", out, err)
	}
	x := b.asked[0]
	if len(x.Scope.Limit.Rules) != 1 || x.Scope.Limit.Rules[0].Host != "api.search.brave.com" || len(x.Secrets) != 1 ||
		strings.Contains(fmt.Sprintf("%+v", x), "the-key") {
		t.Errorf("exchange = %+v, want one rule for api.search.brave.com, one secret and no key", x)
	}
	b.answer = func(Exchange) web.Answer { return web.Answer{Status: 429, Header: [][2]string{{"Retry-After", "9"}}} }
	_, _, err = try[WebSearchOutput](t, webSearch, b, `{"query": "q"}`)
	if want := "try again in 9s"; !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("web.search = %v, want ResourceExhausted with %q", err, want)
	}
}
