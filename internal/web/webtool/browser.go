package webtool

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/browser"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
)

// Modes of browser.open.
const (
	Simple = "simple" // the page's text as the host sends it, without running scripts
	Real   = "real"   // the page as a browser renders it
)

// Limits of browser.open.
const (
	// BrowseText is the default number of characters in an answer.
	BrowseText   = 20_000
	maxSelector  = 1 << 10
	maxPageWait  = 60 * time.Second
	minBrowse    = time.Second
	answerSimple = "no scripts were run: the page was read as its host sends it"
)

// Opener opens pages in browsers.
type Opener interface {
	// Open opens one page in a separate, fresh sandbox. The error may be a *browser.Fault.
	Open(ctx context.Context, v Visit) (Sight, error)
}

// Browser is what a call of browser.open needs.
type Browser struct {
	// Allowed limits the hosts of pages for all callers.
	Allowed *reach.Limit
	// Opener serves mode real, and Exchanger mode simple.
	Opener    Opener
	Exchanger Exchanger
}

// Visit is a page to open in a browser, with the hosts that it may reach.
type Visit struct {
	Request browser.Request
	Scope   reach.Scope
}

// Sight is the result of a visit.
type Sight struct {
	browser.Result
	// Isolation describes the browser's isolation in a sentence.
	Isolation string
	// Blocked lists what the gateway refused during the visit.
	Blocked []Blocked
}

// Blocked is a host that the rules did not allow.
type Blocked struct {
	Host   string `json:"host"`
	Port   int    `json:"port"`
	Reason string `json:"reason"`
}

type browserInput struct {
	URL        string `json:"url" jsonschema:"the page"`
	Mode       string `json:"mode,omitempty" jsonschema:"real (a browser that runs scripts, the default) or simple (the page as its host sends it)"`
	WaitFor    string `json:"wait_for,omitempty" jsonschema:"a CSS selector: the page is looked at once something it selects is seen"`
	WaitMS     int64  `json:"wait_ms,omitempty" jsonschema:"leave the page alone for so many milliseconds after it was loaded"`
	Screenshot string `json:"screenshot,omitempty" jsonschema:"a picture: viewport (what a window shows) or full (the whole page)"`
	PDF        bool   `json:"pdf,omitempty" jsonschema:"the page as a PDF"`
	Width      int64  `json:"width,omitempty" jsonschema:"of the window, in pixels; 1280 unless set"`
	Height     int64  `json:"height,omitempty" jsonschema:"of the window, in pixels; 800 unless set"`
	MaxChars   int    `json:"max_chars,omitempty" jsonschema:"at most this many characters of content; 20000 unless set"`
	TimeoutMS  int64  `json:"timeout_ms,omitempty" jsonschema:"give up after this many milliseconds"`

	at *url.URL
}

// Picture is a PNG image.
type Picture struct {
	Width  int `json:"width"`
	Height int `json:"height"`
	// Cut reports that the page continues below.
	Cut bool   `json:"cut,omitempty"`
	PNG string `json:"png_base64"`
}

// BrowserOutput is the content of a page.
type BrowserOutput struct {
	URL       string `json:"url" jsonschema:"the address that was asked for"`
	FinalURL  string `json:"final_url" jsonschema:"where that led, by redirects and scripts"`
	Status    int64  `json:"status,omitempty"`
	MediaType string `json:"media_type,omitempty"`
	Title     string `json:"title"`
	Content   string `json:"content" jsonschema:"the text of the page as it is seen"`
	// Truncated reports that the page has more text than Content.
	Truncated bool           `json:"truncated"`
	Links     []browser.Link `json:"links,omitempty"`
	// Loaded is false if the page was still loading.
	Loaded     bool     `json:"loaded"`
	Screenshot *Picture `json:"screenshot,omitempty"`
	PDF        string   `json:"pdf_base64,omitempty"`
	// Errors are those of the page's scripts. Failed lists parts of the page that did not load.
	// Blocked lists hosts that the rules did not allow.
	Errors  []string          `json:"errors,omitempty"`
	Failed  []browser.Failure `json:"failed,omitempty"`
	Blocked []Blocked         `json:"blocked,omitempty"`
	Dialogs int               `json:"dialogs,omitempty" jsonschema:"how many alerts and questions it opened; all were dismissed"`
	// ScriptsStopped reports that scripts were stopped because they used all the time.
	ScriptsStopped bool   `json:"scripts_stopped,omitempty"`
	Mode           string `json:"mode"`
	Isolation      string `json:"isolation" jsonschema:"what was around what read the page"`
}

var browserOpen = tool.Define(tool.Tool{
	Name: "browser.open", Title: "Open a web page in a browser", Trust: 1, ReadOnly: true, Idempotent: true,
	Description: "Opens a page in a browser of its own, in a sandbox that is destroyed afterwards: " +
		"its text as it is seen, its links, a picture, a PDF. Only hosts that the rules allow are reached.",
	Effects: []tool.Effect{tool.CallsNetwork},
}, func(in *browserInput) (p tool.Prepared, err error) {
	if in.at, err = address(in.URL); err != nil {
		return p, err
	}
	return p, in.check()
}, func(ctx context.Context, caps tool.Caps, b Browser, in *browserInput) (BrowserOutput, tool.Outcome, error) {
	if in.Mode == Simple {
		return readPage(ctx, caps, b, in)
	}
	return openPage(ctx, caps, b, in)
})

func (in *browserInput) check() error {
	in.Mode = cmp.Or(in.Mode, Real)
	in.Width, in.Height = cmp.Or(in.Width, browser.DefaultWidth), cmp.Or(in.Height, browser.DefaultHeight)
	switch {
	case in.Mode != Simple && in.Mode != Real:
		return tool.Invalid("mode", "is %q: use real or simple", in.Mode)
	case len(in.WaitFor) > maxSelector || !utf8.ValidString(in.WaitFor):
		return tool.Invalid("wait_for", "is %d bytes long, or no text: at most %d", len(in.WaitFor), maxSelector)
	case in.WaitMS < 0 || in.WaitMS > maxPageWait.Milliseconds():
		return tool.Invalid("wait_ms", "is %d: from 0 to %d", in.WaitMS, maxPageWait.Milliseconds())
	case in.Screenshot != browser.NoPicture && in.Screenshot != browser.Viewport && in.Screenshot != browser.FullPage:
		return tool.Invalid("screenshot", "is %q: use viewport or full", in.Screenshot)
	case in.Width < browser.MinSide || in.Width > browser.MaxWidth:
		return tool.Invalid("width", "is %d: from %d to %d", in.Width, browser.MinSide, browser.MaxWidth)
	case in.Height < browser.MinSide || in.Height > browser.MaxPixels/in.Width:
		return tool.Invalid("height", "is %d: from %d to %d at this width", in.Height, browser.MinSide, browser.MaxPixels/in.Width)
	case in.MaxChars < 0 || in.MaxChars > browser.MaxText:
		return tool.Invalid("max_chars", "is %d: from 1 to %d", in.MaxChars, browser.MaxText)
	case in.TimeoutMS < 0:
		return tool.Invalid("timeout_ms", "is negative")
	}
	if in.Mode == Real {
		return nil
	}
	for field, asked := range map[string]bool{"wait_for": in.WaitFor != "", "wait_ms": in.WaitMS != 0,
		"screenshot": in.Screenshot != "", "pdf": in.PDF} {
		if asked {
			return tool.Invalid(field, "needs a browser: set mode to real")
		}
	}
	return nil
}

// readPage implements the simple mode: the web program reads the page.
func readPage(ctx context.Context, caps tool.Caps, b Browser, in *browserInput) (
	out BrowserOutput, o tool.Outcome, err error,
) {
	limit, err := timeout(caps, in.TimeoutMS, browser.DefaultTime)
	if err != nil {
		return out, o, err
	}
	most, err := textLimit(caps, "max_chars", in.MaxChars, BrowseText)
	if err != nil {
		return out, o, err
	}
	x := Exchange{Scope: reach.Within(b.Allowed, caps.Web), Request: web.Request{
		URL: in.at.String(), Method: http.MethodGet, TimeoutMS: limit.Milliseconds(),
		MaxBytes: cmp.Or(caps.Web.MaxBytes, web.MaxBody), MaxText: most, Form: web.Text,
		Redirects: web.Follow, MaxRedirects: web.MaxRedirects, Header: [][2]string{{"Accept", accepted}},
	}}
	if err := x.Scope.Check(in.at, http.MethodGet); err != nil {
		return out, o, err
	}
	began := time.Now()
	a, err := ask(ctx, b.Exchanger, x)
	if l := late(err, limit); l != nil {
		return out, *l, tool.ErrNoOutput
	}
	if err != nil {
		return out, o, err
	}
	return BrowserOutput{
		URL: in.URL, FinalURL: a.URL, Status: int64(a.Status), MediaType: a.MediaType, Title: a.Title, Content: a.Text,
		Truncated: a.Truncated, Loaded: true, Mode: Simple, Isolation: answerSimple,
	}, tool.Outcome{Duration: time.Since(began), Truncated: a.Truncated}, nil
}

// openPage implements the real mode.
func openPage(ctx context.Context, caps tool.Caps, b Browser, in *browserInput) (
	out BrowserOutput, o tool.Outcome, err error,
) {
	limit, err := timeout(caps, in.TimeoutMS, browser.DefaultTime)
	if err != nil {
		return out, o, err
	}
	if limit < minBrowse || limit > browser.MaxTime {
		return out, o, tool.Invalid("timeout_ms", "is %d: from %d to %d for a browser", limit.Milliseconds(),
			minBrowse.Milliseconds(), browser.MaxTime.Milliseconds())
	}
	most, err := textLimit(caps, "max_chars", in.MaxChars, BrowseText)
	if err != nil {
		return out, o, err
	}
	scope := reach.Within(b.Allowed, caps.Web)
	if err := scope.Check(in.at, http.MethodGet); err != nil { // before starting a sandbox for it
		return out, o, err
	}
	began := time.Now()
	s, err := b.Opener.Open(ctx, Visit{Scope: scope, Request: browser.Request{
		URL: in.at.String(), Time: limit, WaitFor: in.WaitFor, Wait: time.Duration(in.WaitMS) * time.Millisecond,
		Picture: in.Screenshot, PDF: in.PDF, Width: in.Width, Height: in.Height, MaxText: most,
	}})
	err = browserError(scope, err)
	if l := late(err, limit); l != nil {
		return out, *l, tool.ErrNoOutput
	}
	if err != nil {
		return out, o, err
	}
	for i := range s.Blocked {
		s.Blocked[i].Reason = scope.Reason(s.Blocked[i].Reason)
	}
	out = BrowserOutput{
		URL: in.URL, FinalURL: s.URL, Status: s.Status, MediaType: s.MediaType, Title: s.Title, Content: s.Text,
		Truncated: s.Truncated, Links: s.Links,
		Loaded: s.Loaded, PDF: base64.StdEncoding.EncodeToString(s.PDF), Errors: s.Errors, Failed: s.Failed,
		Blocked: s.Blocked, Dialogs: s.Dialogs, ScriptsStopped: s.Stopped,
		Mode: Real, Isolation: s.Isolation,
	}
	if s.Picture != nil {
		out.Screenshot = &Picture{Width: s.Width, Height: s.Height, Cut: s.PictureCut,
			PNG: base64.StdEncoding.EncodeToString(s.Picture)}
	}
	return out, tool.Outcome{Duration: time.Since(began), Truncated: s.Truncated}, nil
}

// browserError converts a browser fault to a tool error.
func browserError(scope reach.Scope, err error) error {
	f, ok := errors.AsType[*browser.Fault](err)
	if !ok {
		return err
	}
	switch f.Kind {
	case browser.FaultSelector:
		return tool.Invalid("wait_for", "%s", f.Message)
	case browser.FaultCrashed, browser.FaultBusy, browser.FaultSize:
		return usererror.Errorf(errdefs.ErrResourceExhausted, "%s", f.Message)
	case browser.FaultBrowser:
		return &web.Fault{Kind: web.FaultProgram, Message: f.Message}
	}
	return &web.Fault{Kind: f.Kind, Message: scope.Reason(f.Message)}
}
