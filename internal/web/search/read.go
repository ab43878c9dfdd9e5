package search

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// AnswerError is an answer of a provider that holds no results. Its words are
// for callers: none of them are the provider's.
type AnswerError struct {
	Provider string
	Status   int
	Message  string
	// RetryAfter is how long the provider asks to wait, 0 if it says nothing.
	RetryAfter time.Duration
}

// Error names the provider and what it answered.
func (e *AnswerError) Error() string {
	s := "search provider " + e.Provider + " " + e.Message
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(": try again in %s", e.RetryAfter)
	}
	return s
}

// Unwrap gives the class.
func (e *AnswerError) Unwrap() error {
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusPaymentRequired:
		return errdefs.ErrResourceExhausted
	case http.StatusUnauthorized, http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	}
	return errdefs.ErrFailedPrecondition
}

// Read gives at most n results, and how many were dropped because they named
// no source. The error is an *AnswerError.
func (p *Provider) Read(a web.Answer, n int) (list []Result, dropped int, err error) {
	if a.Status != http.StatusOK {
		return nil, 0, p.refused(a)
	}
	if a.Truncated {
		return nil, 0, &AnswerError{Provider: p.kind.name, Status: a.Status, Message: fmt.Sprintf("answered more than %d bytes", maxBody)}
	}
	all, err := p.kind.results(a.Body)
	if err != nil {
		return nil, 0, &AnswerError{Provider: p.kind.name, Status: a.Status, Message: "answered something else than its JSON: see web.search.url"}
	}
	list = []Result{}
	for _, r := range all {
		r, ok := r.clean()
		switch {
		case !ok:
			dropped++
		case len(list) < n:
			list = append(list, r)
		}
	}
	return list, dropped, nil
}

func (p *Provider) refused(a web.Answer) error {
	e := &AnswerError{Provider: p.kind.name, Status: a.Status, Message: fmt.Sprintf("answered %d", a.Status)}
	if t := http.StatusText(a.Status); t != "" {
		e.Message += " " + t
	}
	if hint := p.kind.hint(a.Status); hint != "" {
		e.Message += " (" + hint + ")"
	}
	if a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable {
		e.RetryAfter = retryAfter(a.Header)
	}
	return e
}

// retryAfter reads Retry-After in seconds, or Brave's X-RateLimit-Reset: the
// seconds until each of several windows ends, the shortest first.
func retryAfter(header [][2]string) time.Duration {
	for _, name := range []string{"Retry-After", "X-RateLimit-Reset"} {
		for _, h := range header {
			if !strings.EqualFold(h[0], name) {
				continue
			}
			first, _, _ := strings.Cut(h[1], ",")
			if n, err := strconv.ParseUint(strings.TrimSpace(first), 10, 31); err == nil {
				return time.Duration(n) * time.Second
			}
			if at, err := http.ParseTime(h[1]); err == nil {
				return max(time.Until(at).Round(time.Second), 0)
			}
		}
	}
	return 0
}

// clean bounds a result; not ok: it has no address that could be cited.
func (r Result) clean() (Result, bool) {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || len(r.URL) > maxURL {
		return r, false
	}
	r.URL = u.String()
	r.Title, r.Snippet, r.Age = text(r.Title, maxTitle), text(r.Snippet, maxSnippet), text(r.Age, 64)
	return r, true
}

// text is plain text of one line: without the marks that providers put around
// the words that were found, and without control characters.
func text(s string, most int) string {
	if len(s) > 8*most {
		s = s[:8*most]
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	for _, mark := range []string{"<strong>", "</strong>", "<b>", "</b>", "<em>", "</em>"} {
		s = strings.ReplaceAll(s, mark, "")
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, html.UnescapeString(s))
	s = strings.Join(strings.Fields(s), " ")
	for i := range s {
		if most == 0 {
			return s[:i] + "…"
		}
		most--
	}
	return s
}
