package webtool

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/passages"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
)

// Limits of web.fetch.
const (
	// FetchText is the default number of characters in an answer.
	FetchText = 10_000
	// cachedText is how many characters of a page are cached.
	cachedText = 1_000_000
	// FetchTimeout is the default time-out.
	FetchTimeout = 30 * time.Second
	maxPrompt    = 4 << 10
)

// Ways to make the content of a FetchOutput.
const (
	Whole    = "none"     // the text itself
	ByModel  = "model"    // written by a language model
	Passages = "passages" // the passages that match the prompt best
)

// cutMarker follows a truncated text.
const cutMarker = "\n... (content truncated)"

type fetchInput struct {
	URL       string `json:"url" jsonschema:"the page; http:// is upgraded to https://"`
	Prompt    string `json:"prompt,omitempty" jsonschema:"what is wanted of the page; without it the content is given as it is"`
	Form      string `json:"form,omitempty" jsonschema:"markdown (the whole page, the default), article (what is to be read of it) or text (without markup)"`
	MaxChars  int    `json:"max_chars,omitempty" jsonschema:"at most this many characters of content; 10000 unless set"`
	TimeoutMS int64  `json:"timeout_ms,omitempty" jsonschema:"give up after this many milliseconds"`
	Fresh     bool   `json:"fresh,omitempty" jsonschema:"fetch it again, even if it was fetched within the last 15 minutes"`

	at *url.URL
}

// FetchOutput is a page or a redirect.
type FetchOutput struct {
	URL string `json:"url" jsonschema:"the address that was asked"`
	// FinalURL is the page's URL after redirects within the host.
	FinalURL string `json:"final_url,omitempty" jsonschema:"the address of the page, after redirects within the host"`
	// RedirectURL is on another host, which was not contacted.
	RedirectURL string `json:"redirect_url,omitempty" jsonschema:"where the page is, on another host; fetch that to follow"`
	Status      int    `json:"status"`
	MediaType   string `json:"media_type,omitempty"`
	Title       string `json:"title,omitempty"`
	Byline      string `json:"byline,omitempty"`
	Content     string `json:"content"`
	// Truncated reports that the page has more text than Content.
	Truncated bool  `json:"truncated"`
	Bytes     int64 `json:"bytes" jsonschema:"of the body"`
	// Cached reports that the page was fetched AgeMS ago.
	Cached bool  `json:"cached"`
	AgeMS  int64 `json:"age_ms,omitempty"`
	// Extraction tells how Content was made.
	Extraction string `json:"extraction" jsonschema:"none (the page itself), model (written by a language model) or passages (those that match the prompt best)"`
	Note       string `json:"note,omitempty" jsonschema:"why the extraction is not the configured one"`
}

var webFetch = tool.Define(tool.Tool{
	Name: "web.fetch", Title: "Fetch a web page", Trust: 1, Cacheable: true, ReadOnly: true, Idempotent: true,
	Description: "Fetches a web page as Markdown, or what it says about a prompt. " +
		"Pages are kept for 15 minutes. A redirect to another host is reported and not followed.",
	Effects: []tool.Effect{tool.CallsNetwork},
}, func(in *fetchInput) (p tool.Prepared, err error) {
	if in.at, err = address(in.URL); err != nil {
		return p, err
	}
	switch {
	case len(in.Prompt) > maxPrompt:
		return p, tool.Invalid("prompt", "is %d bytes long: at most %d", len(in.Prompt), maxPrompt)
	case in.Form != "" && in.Form != web.Markdown && in.Form != web.Article && in.Form != web.Text:
		return p, tool.Invalid("form", "is %q: use markdown, article or text", in.Form)
	case in.MaxChars < 0 || in.MaxChars > reach.MaxText:
		return p, tool.Invalid("max_chars", "is %d: from 1 to %d", in.MaxChars, reach.MaxText)
	case in.TimeoutMS < 0:
		return p, tool.Invalid("timeout_ms", "is negative")
	}
	return p, nil
}, runFetch)

func runFetch(ctx context.Context, caps tool.Caps, w Web, in *fetchInput) (
	out FetchOutput, o tool.Outcome, err error,
) {
	limit, err := timeout(caps, in.TimeoutMS, FetchTimeout)
	if err != nil {
		return out, o, err
	}
	x := Exchange{Scope: reach.Within(w.Fetch, caps.Web), Request: web.Request{
		Method: http.MethodGet, TimeoutMS: limit.Milliseconds(), MaxBytes: cmp.Or(caps.Web.MaxBytes, web.MaxBody),
		MaxText: cachedText, Redirects: web.SameHost, MaxRedirects: web.MaxRedirects, Form: cmp.Or(in.Form, web.Markdown),
		Header: [][2]string{{"Accept", accepted}},
	}}
	u := secure(x.Scope, in.at)
	x.Request.URL = u.String()
	if err := x.Scope.Check(u, http.MethodGet); err != nil {
		return out, o, err
	}
	most, err := textLimit(caps, "max_chars", in.MaxChars, FetchText)
	if err != nil {
		return out, o, err
	}
	began := time.Now()
	key := strings.Join([]string{w.Owner, x.Scope.Mark(), x.Request.Form, strconv.FormatInt(x.Request.MaxBytes, 10),
		x.Request.URL}, "\x00")
	a, age, cached, err := fetch(ctx, w, x, in.Fresh, key)
	if l := late(err, limit); l != nil {
		return out, *l, tool.ErrNoOutput
	}
	if err != nil {
		return out, o, err
	}
	out = FetchOutput{URL: x.Request.URL, Status: a.Status, MediaType: a.MediaType, Title: a.Title, Byline: a.Byline,
		Bytes: a.Bytes, Cached: cached, AgeMS: age.Milliseconds(), Extraction: Whole}
	if a.URL != out.URL {
		out.FinalURL = a.URL
	}
	if a.RedirectURL != "" {
		out.RedirectURL, out.Content = a.RedirectURL, "Redirected to different host. Fetch: "+a.RedirectURL
	} else {
		within, cancel := context.WithTimeout(ctx, limit-time.Since(began))
		defer cancel()
		out.fill(within, w.Extract, in.Prompt, a, most)
	}
	return out, tool.Outcome{Duration: time.Since(began), Truncated: out.Truncated}, nil
}

// accepted lists the types that convert to Markdown.
const accepted = "text/html,application/xhtml+xml,text/markdown;q=0.9,text/plain;q=0.8,*/*;q=0.5"

// secure upgrades to TLS, except for hosts that the rules allow over plain HTTP.
func secure(s reach.Scope, u *url.URL) *url.URL {
	if u.Scheme != "http" || s.Decide(u, http.MethodGet).Allowed {
		return u
	}
	up := *u
	up.Scheme = "https"
	if up.Port() == "80" {
		up.Host = strings.TrimSuffix(up.Host, ":80")
	}
	return &up
}

// fetch returns a page from the cache, or fetches and caches it.
func fetch(ctx context.Context, w Web, x Exchange, fresh bool, key string) (
	a web.Answer, age time.Duration, cached bool, err error,
) {
	if !fresh {
		if a, age, ok := w.Cache.Get(key); ok {
			return a, age, true, nil
		}
	}
	if a, err = ask(ctx, w.Exchanger, x); err != nil {
		return a, 0, false, err
	}
	life := cache.Lifetime(a)
	a.Header = nil
	w.Cache.Put(w.Caller, key, a, life)
	return a, 0, false, nil
}

// fill sets the content: the text, or what it says about the prompt.
func (o *FetchOutput) fill(ctx context.Context, model Extractor, prompt string, a web.Answer, most int) {
	defer func() { o.cut(most) }()
	o.Content, o.Truncated = a.Text, a.Truncated
	if strings.TrimSpace(prompt) == "" {
		return
	}
	if model != nil {
		got, err := model.Extract(ctx, prompt, a.URL, a.Text)
		if err == nil {
			o.Content, o.Extraction = web.Plain(got), ByModel
			return
		}
		o.Note = err.Error() + "; the passages that match the prompt best are given instead"
	}
	best := passages.Best(a.Text, prompt, most)
	if !slices.ContainsFunc(best, func(p passages.Passage) bool { return p.Score > 0 }) {
		o.Note = strings.TrimPrefix(o.Note+"; no passage has a word of the prompt, so the page is given as it is", "; ")
		return
	}
	o.Content, o.Extraction = passages.Join(best), Passages
}

// cut truncates the content and marks it.
func (o *FetchOutput) cut(most int) {
	k := tool.NewKeeper(tool.Cut{Limit: int64(most), Unit: tool.Characters, Keep: tool.Head, Marker: cutMarker})
	k.Write([]byte(o.Content)) //nolint:errcheck // it cannot fail
	text, more := k.Text()
	if o.Truncated && !more && o.Extraction == Whole {
		text += cutMarker
	}
	o.Content, o.Truncated = text, o.Truncated || more
}
