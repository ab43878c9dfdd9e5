package program

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// body is the part of a response body that was read.
type body struct {
	data []byte
	// cut reports that the body was longer.
	cut       bool
	mediaType string // from the header; may be empty
	charset   string // from the header; may be empty
}

// hop is one request of an exchange.
type hop struct {
	method string
	url    *url.URL
	header http.Header
	body   []byte
}

// exchange sends requests until a response is not a redirect to follow, and fills in a. The body is
// nil if there is none to return. It may be returned with an error that concerns its end.
func exchange(ctx context.Context, req *web.Request, a *web.Answer) (*body, error) {
	place, err := parseURL(req.URL)
	if err != nil {
		return nil, err
	}
	client, err := newClient(req)
	if err != nil {
		return nil, err
	}
	chain := newRedirectChain(req)
	next := hop{method: req.Method, url: place, header: headerOf(req), body: req.Body}
	for {
		a.URL = next.url.String()
		chain.visit(&next)
		res, err := send(ctx, client, &next, chain.cookies)
		if err != nil {
			return nil, err
		}
		after, err := chain.after(&next, res, a)
		if after == nil {
			return finish(ctx, req, res, a, err)
		}
		res.Body.Close()
		next = *after
	}
}

// finish records the final response. err is the error of its redirect target.
func finish(ctx context.Context, req *web.Request, res *http.Response, a *web.Answer, err error) (*body, error) {
	defer res.Body.Close()
	a.Status, a.Header = res.StatusCode, fieldsOf(res.Header)
	if err != nil || a.RedirectURL != "" && req.Form != web.Raw {
		return nil, err
	}
	return readBody(ctx, res, req.MaxBytes, a)
}

// send sends one request. It returns a fault for responses of the gateway itself.
func send(ctx context.Context, client http.RoundTripper, h *hop, cookies jar) (*http.Response, error) {
	var content io.Reader
	if len(h.body) > 0 {
		content = bytes.NewReader(h.body)
	}
	r, err := http.NewRequestWithContext(ctx, h.method, h.url.String(), content)
	if err != nil {
		return nil, faultf(web.FaultURL, "cannot request %s: %v", h.url, err)
	}
	r.Header = h.header.Clone()
	cookies.set(r)
	res, err := client.RoundTrip(r)
	if err != nil {
		return nil, sendFault(ctx, h.url, err)
	}
	// Over TLS, the host could forge the header.
	if kind := res.Header.Get(web.RefusalHeader); kind != "" && h.url.Scheme == "http" {
		defer res.Body.Close()
		return nil, refusal(res)
	}
	cookies.take(h.url, res)
	return res, nil
}

// redirectChain is the state of following redirects.
type redirectChain struct {
	req     *web.Request
	cookies jar
	hops    int
	seen    map[string]bool
	known   int // number of cookies at the last visit
}

func newRedirectChain(req *web.Request) *redirectChain {
	return &redirectChain{req: req, cookies: jar{}, seen: map[string]bool{}}
}

// visit records a request. After a new cookie, URLs may be requested again: hosts redirect to test
// whether cookies are kept.
func (t *redirectChain) visit(h *hop) {
	if n := t.cookies.count(); n != t.known {
		t.known = n
		clear(t.seen)
	}
	t.seen[h.method+" "+h.url.String()] = true
}

// after returns the request that follows res, or nil if res is the answer. In that case it sets
// a.RedirectURL if res is a redirect.
func (t *redirectChain) after(h *hop, res *http.Response, a *web.Answer) (*hop, error) {
	location := res.Header.Get("Location")
	if location == "" || !redirects(res.StatusCode) {
		return nil, nil
	}
	to, err := h.url.Parse(encodeOdd(strings.TrimSpace(location)))
	if err != nil {
		return nil, faultf(web.FaultRedirect, "redirect to invalid URL %q", oneLine(location, 200))
	}
	if err := normalize(to); err != nil {
		return nil, faultf(web.FaultRedirect, "redirect to %q: %s", oneLine(location, 200), err.Error())
	}
	downgrade := h.url.Scheme == "https" && to.Scheme == "http"
	if t.req.Redirects == web.None || downgrade || t.req.Redirects == web.SameHost && !sameHost(h.url, to) {
		a.RedirectURL = to.String()
		return nil, nil
	}
	next := follow(h, res.StatusCode, to)
	t.hops++
	switch {
	case t.hops > t.req.MaxRedirects:
		a.RedirectURL = to.String()
		return nil, faultf(web.FaultRedirect, "more than %d redirects", t.req.MaxRedirects)
	case t.seen[next.method+" "+to.String()] && t.cookies.count() == t.known:
		a.RedirectURL = to.String()
		return nil, faultf(web.FaultRedirect, "redirect loop")
	}
	return next, nil
}

func redirects(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// follow returns the request for a redirect, with the method that browsers use. It removes secrets
// if the host changes.
func follow(h *hop, status int, to *url.URL) *hop {
	next := &hop{method: h.method, url: to, header: h.header.Clone(), body: h.body}
	post := h.method == http.MethodPost && (status == http.StatusMovedPermanently || status == http.StatusFound)
	other := h.method != http.MethodHead && h.method != http.MethodGet && status == http.StatusSeeOther
	if post || other {
		next.method, next.body = http.MethodGet, nil
		dropFields(next.header, bodyField)
	}
	// An upgrade to TLS on the same host keeps them.
	if !sameHost(h.url, to) || h.url.Scheme == "https" && to.Scheme == "http" {
		dropFields(next.header, secretField)
		if next.method != http.MethodGet && next.method != http.MethodHead {
			// A body may contain the same secrets as the header.
			next.method, next.body = http.MethodGet, nil
			dropFields(next.header, bodyField)
		}
	}
	return next
}

// jar holds the cookies set during an exchange, by origin. They are sent only to that origin.
type jar map[string]map[string]string

// maxCookies is the maximum number of cookies of an exchange.
const maxCookies = 100

func (j jar) count() int {
	n := 0
	for _, m := range j {
		n += len(m)
	}
	return n
}

func (j jar) take(u *url.URL, res *http.Response) {
	for _, c := range res.Cookies() {
		if j.count() >= maxCookies || len(c.Value) > 4096 {
			return
		}
		host := u.Scheme + "://" + u.Host
		if j[host] == nil {
			j[host] = map[string]string{}
		}
		j[host][c.Name] = c.Value
	}
}

// set adds the cookies of the origin. It keeps the header of the caller.
func (j jar) set(r *http.Request) {
	for name, value := range j[r.URL.Scheme+"://"+r.URL.Host] {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
}

// sendFault returns the fault for a request without a response.
func sendFault(ctx context.Context, u *url.URL, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	return connFault(u, err)
}
