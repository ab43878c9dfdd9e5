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

// body is what was read of one.
type body struct {
	data []byte
	// cut: there was more.
	cut       bool
	mediaType string // as the host says, may be empty
	charset   string // as the host says, may be empty
}

// hop is the next request of an exchange.
type hop struct {
	method string
	url    *url.URL
	header http.Header
	body   []byte
}

// exchange asks until an answer is no redirect that is to be followed, and fills
// in what it learns of it. The body is nil where there is none to give; it may
// come with an error, which is then about its end.
func exchange(ctx context.Context, req *web.Request, a *web.Answer) (*body, error) {
	place, err := parsePlace(req.URL)
	if err != nil {
		return nil, err
	}
	client, err := newClient(req)
	if err != nil {
		return nil, err
	}
	trail := newTrail(req)
	next := hop{method: req.Method, url: place, header: headerOf(req), body: req.Body}
	for {
		a.URL = next.url.String()
		trail.visit(&next)
		res, err := ask(ctx, client, &next, trail.cookies)
		if err != nil {
			return nil, err
		}
		after, err := trail.after(&next, res, a)
		if after == nil {
			return last(ctx, req, res, a, err)
		}
		res.Body.Close()
		next = *after
	}
}

// last takes down the answer after which nothing is asked. err is what is wrong
// with where it leads.
func last(ctx context.Context, req *web.Request, res *http.Response, a *web.Answer, err error) (*body, error) {
	defer res.Body.Close()
	a.Status, a.Header = res.StatusCode, fieldsOf(res.Header)
	if err != nil || a.RedirectURL != "" && req.Form != web.Raw {
		return nil, err
	}
	return readBody(ctx, res, req.MaxBytes, a)
}

// ask makes one request and returns the host's answer, never the gateway's own.
func ask(ctx context.Context, client http.RoundTripper, h *hop, cookies jar) (*http.Response, error) {
	var content io.Reader
	if len(h.body) > 0 {
		content = bytes.NewReader(h.body)
	}
	r, err := http.NewRequestWithContext(ctx, h.method, h.url.String(), content)
	if err != nil {
		return nil, faultf(web.FaultURL, "%s cannot be asked for: %v", h.url, err)
	}
	r.Header = h.header.Clone()
	cookies.set(r)
	res, err := client.RoundTrip(r)
	if err != nil {
		return nil, askFault(ctx, h.url, err)
	}
	// In a tunnel the host could say so itself.
	if kind := res.Header.Get(web.RefusalHeader); kind != "" && h.url.Scheme == "http" {
		defer res.Body.Close()
		return nil, refusal(res)
	}
	cookies.take(h.url, res)
	return res, nil
}

// trail is the way that redirects lead.
type trail struct {
	req     *web.Request
	cookies jar
	hops    int
	seen    map[string]bool
	known   int // cookies at the last visit
}

func newTrail(req *web.Request) *trail {
	return &trail{req: req, cookies: jar{}, seen: map[string]bool{}}
}

// visit notes that h is asked. What was seen before a cookie came may be asked
// again: that is how hosts try whether cookies are kept.
func (t *trail) visit(h *hop) {
	if n := t.cookies.count(); n != t.known {
		t.known = n
		clear(t.seen)
	}
	t.seen[h.method+" "+h.url.String()] = true
}

// after is the hop that follows from res, nil where none does: then res is the
// answer, and a.RedirectURL says where it would have led.
func (t *trail) after(h *hop, res *http.Response, a *web.Answer) (*hop, error) {
	location := res.Header.Get("Location")
	if location == "" || !redirects(res.StatusCode) {
		return nil, nil
	}
	to, err := h.url.Parse(encodeOdd(strings.TrimSpace(location)))
	if err != nil {
		return nil, faultf(web.FaultRedirect, "it redirects to %q, which is no URL", oneLine(location, 200))
	}
	if err := settle(to); err != nil {
		return nil, faultf(web.FaultRedirect, "it redirects to %q: %s", oneLine(location, 200), err.Error())
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
		return nil, faultf(web.FaultRedirect, "it redirects more than %d times", t.req.MaxRedirects)
	case t.seen[next.method+" "+to.String()] && t.cookies.count() == t.known:
		a.RedirectURL = to.String()
		return nil, faultf(web.FaultRedirect, "it redirects in a circle")
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

// follow is h asked of to, with the method that browsers would take, and without
// what is a secret between the caller and another host.
func follow(h *hop, status int, to *url.URL) *hop {
	next := &hop{method: h.method, url: to, header: h.header.Clone(), body: h.body}
	post := h.method == http.MethodPost && (status == http.StatusMovedPermanently || status == http.StatusFound)
	other := h.method != http.MethodHead && h.method != http.MethodGet && status == http.StatusSeeOther
	if post || other {
		next.method, next.body = http.MethodGet, nil
		dropFields(next.header, bodyField)
	}
	// An upgrade of the same host to TLS keeps them.
	if !sameHost(h.url, to) || h.url.Scheme == "https" && to.Scheme == "http" {
		dropFields(next.header, secretField)
		if next.method != http.MethodGet && next.method != http.MethodHead {
			// A body may hold what the header held.
			next.method, next.body = http.MethodGet, nil
			dropFields(next.header, bodyField)
		}
	}
	return next
}

// jar holds the cookies of an exchange's own redirects, by host name: what one
// host set no other gets.
type jar map[string]map[string]string

// maxCookies bounds those of one exchange.
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

// set adds the host's cookies; the caller's own header stays as it is.
func (j jar) set(r *http.Request) {
	for name, value := range j[r.URL.Scheme+"://"+r.URL.Host] {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
}

// askFault says why a request had no answer.
func askFault(ctx context.Context, u *url.URL, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	return connFault(u, err)
}
