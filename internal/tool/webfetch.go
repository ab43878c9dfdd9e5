package tool

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/passages"
)

// Limits of web.fetch.
const (
	// FetchText is the default number of characters in an answer.
	FetchText = 10_000
	// maxFetchText is the maximum number of characters in an answer.
	maxFetchText = 200_000
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

var webFetch = define(Tool{
	Name: "web.fetch", Title: "Fetch a web page", Trust: 1, Cacheable: true, ReadOnly: true, Idempotent: true,
	Description: "Fetches a web page as Markdown, or what it says about a prompt. Pages are kept for 15 minutes. A redirect to another host is reported and not followed.",
	Effects:     []Effect{CallsNetwork},
}, func(in *fetchInput) (p Prepared, err error) {
	if in.at, err = address(in.URL); err != nil {
		return p, err
	}
	switch {
	case len(in.Prompt) > maxPrompt:
		return p, invalid("prompt", "is %d bytes long: at most %d", len(in.Prompt), maxPrompt)
	case in.Form != "" && in.Form != web.Markdown && in.Form != web.Article && in.Form != web.Text:
		return p, invalid("form", "is %q: use markdown, article or text", in.Form)
	case in.MaxChars < 0 || in.MaxChars > maxFetchText:
		return p, invalid("max_chars", "is %d: from 1 to %d", in.MaxChars, maxFetchText)
	case in.TimeoutMS < 0:
		return p, invalid("timeout_ms", "is negative")
	}
	return p, nil
}, runFetch)

func runFetch(ctx context.Context, box Box, in *fetchInput) (out FetchOutput, o Outcome, err error) {
	caps, host := box.Caps(), box.WebHost()
	limit, err := caps.webTimeout(in.TimeoutMS, FetchTimeout)
	if err != nil {
		return out, o, err
	}
	x := Exchange{Request: web.Request{
		Method: http.MethodGet, TimeoutMS: limit.Milliseconds(), MaxBytes: cmp.Or(caps.Web.MaxBytes, web.MaxBody),
		MaxText:   cachedText,
		Redirects: web.SameHost, MaxRedirects: web.MaxRedirects, Form: cmp.Or(in.Form, web.Markdown),
		Header: [][2]string{{"Accept", accepted}},
	}}
	x.bind(host.Fetch, caps)
	u := x.secure(in.at)
	x.Request.URL = u.String()
	if err := x.allowed(u); err != nil {
		return out, o, err
	}
	most, err := caps.text("max_chars", in.MaxChars, FetchText)
	if err != nil {
		return out, o, err
	}
	began := time.Now()
	key := strings.Join([]string{host.Owner, x.mark(), x.Request.Form, strconv.FormatInt(x.Request.MaxBytes, 10),
		x.Request.URL}, "\x00")
	a, age, cached, err := fetch(ctx, box, &x, in.Fresh, key)
	if l := late(err, limit); l != nil {
		return out, *l, errNoOutput
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
		out.fill(within, host.Extract, in.Prompt, a, most)
	}
	return out, Outcome{Duration: time.Since(began), Truncated: out.Truncated}, nil
}

// accepted lists the types that convert to Markdown.
const accepted = "text/html,application/xhtml+xml,text/markdown;q=0.9,text/plain;q=0.8,*/*;q=0.5"

// secure upgrades to TLS, except for hosts that the rules allow over plain HTTP.
func (x *Exchange) secure(u *url.URL) *url.URL {
	if u.Scheme != "http" || x.decide(u).Allowed {
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
func fetch(ctx context.Context, box Box, x *Exchange, fresh bool, key string) (a web.Answer, age time.Duration,
	cached bool, err error) {
	pages := box.WebHost().Cache
	if !fresh {
		if a, age, ok := pages.Get(key); ok {
			return a, age, true, nil
		}
	}
	if a, err = ask(ctx, box, *x); err != nil {
		return a, 0, false, err
	}
	life := cache.Lifetime(a)
	a.Header = nil
	pages.Put(box.WebHost().Caller, key, a, life)
	return a, 0, false, nil
}

// ask makes the exchange and returns a fault as an error.
func ask(ctx context.Context, box Box, x Exchange) (web.Answer, error) {
	a, err := box.Web(ctx, x)
	if err == nil && a.Fault != nil {
		e := &WebError{Kind: a.Fault.Kind, Message: a.Fault.Message}
		if e.Kind == web.FaultDenied {
			e.Message = x.reason(e.Message)
		}
		err = e
	}
	return a, err
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
	k := NewKeeper(Cut{Limit: int64(most), Unit: Characters, Keep: Head, Marker: cutMarker})
	k.Write([]byte(o.Content)) //nolint:errcheck // it cannot fail
	text, more := k.Text()
	if o.Truncated && !more && o.Extraction == Whole {
		text += cutMarker
	}
	o.Content, o.Truncated = text, o.Truncated || more
}

// text returns the maximum number of characters for a call: the requested, the profile's or the
// usual one.
func (c Caps) text(field string, asked, usual int) (int, error) {
	if most := c.Web.MaxText; most > 0 && asked > most {
		return 0, invalid(field, "is %d: at most %d", asked, most)
	}
	return cmp.Or(asked, c.Web.MaxText, usual), nil
}

// webTimeout returns the time-out of a call: the requested, the profile's or the usual one.
func (c Caps) webTimeout(asked int64, usual time.Duration) (time.Duration, error) {
	limit := cmp.Or(c.MaxTimeout, maxWebTime)
	if asked == 0 {
		asked = cmp.Or(c.Timeout, usual).Milliseconds()
	}
	if most := limit.Milliseconds(); asked > most { // compare before converting: a Duration could overflow
		if !c.Clamp {
			return 0, invalid("timeout_ms", "is %d: at most %d", asked, most)
		}
		return limit, nil
	}
	return time.Duration(asked) * time.Millisecond, nil
}

const maxWebTime = 5 * time.Minute

// late returns the outcome of a call that timed out, or nil for any other error.
func late(err error, limit time.Duration) *Outcome {
	e, ok := errors.AsType[*WebError](err)
	if !ok || e.Kind != web.FaultTimeout {
		return nil
	}
	return &Outcome{Ending: "timeout", ExitCode: -1, Detail: e.Message, Duration: limit, TimeoutMS: limit.Milliseconds()}
}
