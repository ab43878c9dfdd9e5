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

// AnswerError reports a provider response without results. Its text is safe for callers: it
// contains no text of the provider.
type AnswerError struct {
	Provider string
	Status   int
	Message  string
	// RetryAfter is how long the provider asks to wait; 0 if unknown.
	RetryAfter time.Duration
}

// Error implements error.
func (e *AnswerError) Error() string {
	s := "search provider " + e.Provider + " " + e.Message
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(": try again in %s", e.RetryAfter)
	}
	return s
}

// Unwrap returns the errdefs class.
func (e *AnswerError) Unwrap() error {
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusPaymentRequired:
		return errdefs.ErrResourceExhausted
	case http.StatusUnauthorized, http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	}
	return errdefs.ErrFailedPrecondition
}

// Read returns at most n results, and how many were dropped because they have no usable URL. The
// error is an *AnswerError.
func (p *Provider) Read(a web.Answer, n int) (list []Result, dropped int, err error) {
	if a.Status != http.StatusOK {
		return nil, 0, p.refused(a)
	}
	if a.Truncated {
		return nil, 0, &AnswerError{Provider: p.kind.name, Status: a.Status,
			Message: fmt.Sprintf("sent more than %d bytes", maxBody)}
	}
	all, err := p.kind.results(a.Body)
	if err != nil {
		return nil, 0, &AnswerError{Provider: p.kind.name, Status: a.Status,
			Message: "sent an unexpected response: see web.search.url"}
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
	e := &AnswerError{Provider: p.kind.name, Status: a.Status, Message: fmt.Sprintf("sent status %d", a.Status)}
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

// retryAfter parses Retry-After, or Brave's X-RateLimit-Reset: seconds until the end of several
// windows, the shortest first.
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

// clean bounds the texts of a result. The bool is false if the URL cannot be cited.
func (r Result) clean() (Result, bool) {
	u, err := url.Parse(r.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		len(r.URL) > maxURL {
		return r, false
	}
	r.URL = u.String()
	r.Title, r.Snippet, r.Age = text(r.Title, maxTitle), text(r.Snippet, maxSnippet), text(r.Age, 64)
	return r, true
}

// text returns one line of plain text, without the markup of matched words and control characters.
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
