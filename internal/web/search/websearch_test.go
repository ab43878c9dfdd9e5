package search

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

const key = "key-that-nobody-may-see"

// exchange sends a request as guest-web and the gateway do: the gateway adds the secret.
func exchange(t *testing.T, p *Provider, r web.Request) web.Answer {
	t.Helper()
	if b, _ := json.Marshal(r); strings.Contains(string(b), key) {
		t.Fatalf("request in the sandbox = %s, want no key", b)
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := netpolicy.Compile(p.Rules())
	if err != nil {
		t.Fatal(err)
	}
	if d := rules.Decide(want(t, u, r.Method)); !d.Allowed {
		t.Fatalf("the rules of the provider deny its search: %s; want it allowed", d.Reason)
	}
	other := *u
	other.Path = "/account"
	if rules.Decide(want(t, u, "DELETE")).Allowed || rules.Decide(want(t, &other, r.Method)).Allowed {
		t.Fatal("the rules allow other requests than searches, want only those")
	}
	req, err := http.NewRequest(r.Method, r.URL, strings.NewReader(string(r.Body)))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range r.Header {
		req.Header.Set(h[0], h[1])
	}
	for _, s := range p.Secrets() {
		if s.For(u.Hostname()) {
			req.Header.Set(s.Header, s.Value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := web.Answer{URL: r.URL, Status: resp.StatusCode}
	for name, values := range resp.Header {
		a.Header = append(a.Header, [2]string{name, values[0]})
	}
	if a.Body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	return a
}

func want(t *testing.T, u *url.URL, method string) netpolicy.Want {
	t.Helper()
	w := netpolicy.Want{Host: u.Hostname(), Port: 80, Method: method, Path: u.Path}
	if u.Port() != "" {
		if _, err := fmt.Sscan(u.Port(), &w.Port); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// providers returns a server that speaks the documented protocol of every provider.
func providers() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /searx/search", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("format") != "json" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"query": %q, "number_of_results": 0, "results": [
			{"url": "https://a.example/x?y=1&z=2", "title": "A &amp; B", "content": "of\n the <strong>page</strong>",
				"engine": "x", "publishedDate": "2026-01-02T00:00:00"},
			{"url": "", "title": "no source"}, {"url": "javascript:alert(1)", "title": "no source either"},
			{"title": "nor this"}, {"url": "https://u:p@b.example/", "title": "with a password"},
			{"url": "http://c.example/", "title": "", "content": ""}], "suggestions": ["s"],
			"unresponsive_engines": []}`, r.FormValue("q"))
	})
	mux.HandleFunc("GET /res/v1/web/search", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Subscription-Token") != key {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		fmt.Fprintf(w, `{"type": "search", "query": {"original": %q}, "web": {"type": "search", "results": [
			{"title": "One", "url": "https://one.example/", "description": "count %s", "age": "2 days ago"}]}}`,
			r.FormValue("q"), r.FormValue("count"))
	})
	mux.HandleFunc("POST /search", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Q   string `json:"q"`
			Num int    `json:"num"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("X-API-KEY") != key ||
			r.Header.Get("Content-Type") != "application/json" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, `{"searchParameters": {"q": %q, "num": %d}, "organic": [
			{"title": "One", "link": "https://one.example/", "snippet": "num %d", "date": "Jan 2, 2026",
				"position": 1},
			{"title": "Two", "link": "ftp://two.example/", "position": 2}]}`, in.Q, in.Num, in.Num)
	})
	return mux
}

// Each provider gets requests in its documented form, and its responses are parsed.
func TestProviders(t *testing.T) {
	s := httptest.NewServer(providers())
	defer s.Close()
	for _, c := range []struct {
		name    string
		o       Options
		want    []Result
		dropped int
	}{
		{"searxng", Options{Kind: SearXNG, URL: s.URL + "/searx/"}, []Result{
			{"A & B", "https://a.example/x?y=1&z=2", "of the page", "2026-01-02T00:00:00"},
			{"", "http://c.example/", "", ""},
		}, 4},
		{"brave", Options{Kind: Brave, URL: "https" + strings.TrimPrefix(s.URL, "http") + "/res/v1", Key: key},
			[]Result{{"One", "https://one.example/", "count 7", "2 days ago"}}, 0},
		{"serper", Options{Kind: Serper, URL: "https" + strings.TrimPrefix(s.URL, "http"), Key: key},
			[]Result{{"One", "https://one.example/", "num 7", "Jan 2, 2026"}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := New(c.o)
			if err != nil {
				t.Fatal(err)
			}
			r, err := p.Request("a query & more", p.Results(7))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(r.URL, "http://127.0.0.1:") {
				t.Errorf("request URL %s, want plain HTTP inside the sandbox", r.URL)
			}
			got, dropped, err := p.Read(exchange(t, p, r), 7)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) || dropped != c.dropped {
				t.Errorf("Read = %+v, %d dropped, %v; want %+v, %d", got, dropped, err, c.want, c.dropped)
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	p, err := New(Options{Kind: Brave, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	x, err := New(Options{Kind: SearXNG, URL: "http://search.example:8888"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p     *Provider
		a     web.Answer
		says  string
		class error
	}{
		{p, web.Answer{Status: 429, Header: [][2]string{{"retry-after", "7"}}},
			"429 Too Many Requests: try again in 7s", errdefs.ErrResourceExhausted},
		{p, web.Answer{Status: 429, Header: [][2]string{{"X-RateLimit-Reset", "1, 1419704"}}}, "try again in 1s",
			errdefs.ErrResourceExhausted},
		{p, web.Answer{Status: 429,
			Header: [][2]string{{"Retry-After", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)}}},
			"429", errdefs.ErrResourceExhausted},
		{p, web.Answer{Status: 401, Body: []byte("says " + key)}, "rejects the key: see web.search.key_file",
			errdefs.ErrPermissionDenied},
		{p, web.Answer{Status: 422}, "key_file", errdefs.ErrFailedPrecondition},
		{p, web.Answer{Status: 500}, "500", errdefs.ErrFailedPrecondition},
		{p, web.Answer{Status: 302, RedirectURL: "https://elsewhere.example/"}, "302", errdefs.ErrFailedPrecondition},
		{p, web.Answer{Status: 200, Body: []byte("<html>")}, "an unexpected response", errdefs.ErrFailedPrecondition},
		{p, web.Answer{Status: 200, Body: []byte("{}"), Truncated: true}, "more than", errdefs.ErrFailedPrecondition},
		{x, web.Answer{Status: 403}, "add it to search.formats", errdefs.ErrPermissionDenied},
	} {
		_, _, err := c.p.Read(c.a, 5)
		e, ok := err.(*AnswerError)
		if !ok || !strings.Contains(err.Error(), c.says) || e.Unwrap() != c.class ||
			strings.Contains(err.Error(), key) {
			t.Errorf("Read with status %d = %v, want class %v and %q", c.a.Status, err, c.class, c.says)
		}
	}
	if got, _, err := p.Read(web.Answer{Status: 200, Body: []byte(`{"type": "search"}`)}, 5); err != nil ||
		got == nil || len(got) != 0 {
		t.Errorf("Read without results = %v, %v; want an empty list", got, err)
	}
}

func TestResultsAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	body, err := json.Marshal(map[string]any{"results": []map[string]any{
		{"url": "https://a.example/", "title": long, "content": "\x1b[31m" + long},
		{"url": "https://a.example/" + strings.Repeat("x", 5000), "title": "too long an address"},
		{"url": "https://b.example/"}, {"url": "https://c.example/"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Options{Kind: SearXNG, URL: "http://search.example"})
	if err != nil {
		t.Fatal(err)
	}
	got, dropped, err := p.Read(web.Answer{Status: 200, Body: body}, 2)
	if err != nil || len(got) != 2 || dropped != 1 || len([]rune(got[0].Title)) != maxTitle+1 ||
		len([]rune(got[0].Snippet)) > maxSnippet+1 || strings.ContainsRune(got[0].Snippet, 0x1b) {
		t.Errorf("Read = %d results, %d dropped, %v: %.80q; want 2, 1 and short texts without escapes", len(got), dropped,
			err, got)
	}
}

func TestNewErrors(t *testing.T) {
	for _, c := range []struct {
		o    Options
		says string
	}{
		{Options{Kind: "bing"}, `provider is "bing": use searxng, brave or serper`},
		{Options{Kind: SearXNG}, "url is missing"},
		{Options{Kind: SearXNG, URL: "search.example"}, "url must be an http"},
		{Options{Kind: SearXNG, URL: "https://u:p@search.example"}, "url has a user"},
		{Options{Kind: SearXNG, URL: "https://search.example/?q="}, "url has a query"},
		{Options{Kind: SearXNG, URL: "https://search.example", Key: key}, "key_file is not supported"},
		{Options{Kind: SearXNG, URL: "https://0x7f.1"}, "url cannot be used"},
		{Options{Kind: Brave}, "key_file is missing"},
		{Options{Kind: Brave, URL: "http://brave.example", Key: key}, "url is plain http"},
		{Options{Kind: Serper, Key: "a\r\nb: c"}, "key_file is not valid"},
		{Options{Kind: Serper, Key: key, Results: 21}, "results is 21"},
	} {
		if _, err := New(c.o); err == nil || !strings.HasPrefix(err.Error(), c.says) ||
			strings.Contains(err.Error(), key) {
			t.Errorf("New(%+v) = %v, want %s...", c.o, err, c.says)
		}
	}
}
