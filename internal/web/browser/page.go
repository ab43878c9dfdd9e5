package browser

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Defaults and bounds of a Request.
const (
	DefaultTime   = 30 * time.Second
	MaxTime       = 2 * time.Minute
	DefaultWidth  = 1280
	DefaultHeight = 800
	MinSide       = 64
	MaxWidth      = 1920
	// MaxPixels bounds a picture; a page that is longer is cut off below.
	MaxPixels  = 1280 * 6144
	MaxPicture = 8 << 20 // bytes of a PNG
	MaxPDF     = 8 << 20
	MaxText    = 1_000_000 // characters
	MaxLinks   = 500
)

// What there can be of a picture.
const (
	NoPicture = ""
	Viewport  = "viewport"
	FullPage  = "full"
)

// Request is what to open, and what is wanted of it.
type Request struct {
	URL string
	// Time bounds everything.
	Time time.Duration
	// WaitFor is a CSS selector of what must be seen before the page is looked at.
	// Wait is how long it is left alone after it was loaded.
	WaitFor string
	Wait    time.Duration
	// Picture is NoPicture, Viewport or FullPage.
	Picture       string
	PDF           bool
	Width, Height int64
	// MaxText is how many characters of text are brought.
	MaxText int
}

// Link is one of a page.
type Link struct {
	URL  string `json:"url"`
	Text string `json:"text,omitempty"`
}

// Failure is a part of a page that could not be had.
type Failure struct {
	URL   string `json:"url"`
	Error string `json:"error"`
}

// Result is what a page shows.
type Result struct {
	// URL is the last one, after redirects by headers and by scripts.
	URL       string
	Status    int64
	MediaType string
	Title     string
	Text      string
	// Truncated: the page has more text than Text. TextLength is all of it, in
	// UTF-16 units.
	Truncated  bool
	TextLength int64
	Links      []Link
	// Loaded: the page was loaded whole when it was looked at.
	Loaded bool
	// Picture is a PNG of Width times Height pixels; PictureCut: the page is
	// longer.
	Picture       []byte
	Width, Height int
	PictureCut    bool
	PDF           []byte
	// Errors are those of the page's scripts, Failed its parts that could not be
	// had; both are bounded.
	Errors []string
	Failed []Failure
	// Dialogs is how many alerts and questions it opened, all of which were
	// dismissed. Stopped: its scripts were, for they left no time for anything else.
	Dialogs int
	Stopped bool
	// Refused is the address of a main document that the gateway did not let it
	// have, beside an error of that kind.
	Refused string
}

var errPageTime = errors.New("the page's time is over")

// visit is one page on its way.
type visit struct {
	*conn
	w       *watch
	r       Request
	frame   cdp.FrameID
	out     Result
	mu      sync.Mutex
	stopped bool
}

// Open opens a page and brings back what it shows. The Request must be in the
// bounds above.
func Open(ctx context.Context, dial Dial, r Request) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Time, errPageTime)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	w := newWatch()
	c, err := connect(ctx, dial, w.note)
	if err != nil {
		return Result{}, explain(ctx, err, "on the way to the browser")
	}
	v := &visit{conn: c, w: w, r: r}
	var works sync.WaitGroup
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer works.Wait()
	defer stop()
	defer c.ws.CloseNow() //nolint:errcheck // nothing is to be said to it any more
	works.Go(func() { c.read(reading) })
	works.Go(func() { v.attend(reading, giveUp) })
	err = v.open(ctx)
	v.sum()
	return v.out, err
}

// open is the order of a visit.
func (v *visit) open(ctx context.Context) error {
	if err := v.prepare(ctx); err != nil {
		return explain(ctx, err, "while the browser was prepared")
	}
	if err := v.navigate(ctx); err != nil {
		return err
	}
	if err := v.wait(ctx); err != nil {
		return err
	}
	if err := v.reached(); err != nil {
		return err
	}
	if err := v.extract(ctx); err != nil {
		return err
	}
	return v.capture(ctx)
}

// prepare switches on what is followed, and off what is not wanted.
func (v *visit) prepare(ctx context.Context) error {
	tree, err := call(ctx, v.conn, page.GetFrameTree, cdp.Empty{})
	if err != nil {
		return err
	}
	if tree.FrameTree == nil || tree.FrameTree.Frame == nil {
		return errors.New("the page has no frame")
	}
	v.frame = tree.FrameTree.Frame.ID
	v.w.follow(string(v.frame))
	none := int64(0)
	for _, step := range []struct {
		method string
		params any
	}{
		{page.Enable.Method, page.EnableParams{}},
		{runtime.Enable.Method, cdp.Empty{}},
		{log.Enable.Method, cdp.Empty{}},
		{inspector.Enable.Method, cdp.Empty{}},
		{network.Enable.Method, network.EnableParams{MaxTotalBufferSize: &none, MaxResourceBufferSize: &none}},
		{browser.SetDownloadBehavior.Method, browser.SetDownloadBehaviorParams{Behavior: browser.SetDownloadBehaviorBehaviorDeny}},
		{emulation.SetDeviceMetricsOverride.Method, emulation.SetDeviceMetricsOverrideParams{Width: v.r.Width, Height: v.r.Height, DeviceScaleFactor: 1}},
	} {
		if _, err := v.send(ctx, step.method, step.params); err != nil {
			return err
		}
	}
	return nil
}

// navigate goes there. It returns when the page has begun to come.
func (v *visit) navigate(ctx context.Context) error {
	doing := "opening " + about(v.r.URL)
	nav, err := call(ctx, v.conn, page.Navigate, page.NavigateParams{URL: v.r.URL})
	switch {
	case err != nil:
		return explain(ctx, err, doing)
	case nav.IsDownload:
		return fault(web.FaultContent, "%s is a download, no page", about(v.r.URL))
	case nav.ErrorText != "":
		v.out.Refused = v.address()
		return netFault(nav.ErrorText, about(v.out.Refused))
	}
	return nil
}

// address is where the browser is, or was about to be.
func (v *visit) address() string {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	if v.w.broken != "" {
		return v.w.broken
	}
	return v.r.URL
}

// about names the place of an address, without what may be secret in it.
func about(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "the page"
	}
	return clean(u.Host, 260)
}

const (
	// reserve is what is kept of a visit's time for looking at a page that never
	// comes to rest.
	reserve = 8 * time.Second
	// restTime is how long a loaded page must not go on elsewhere.
	restTime = 60 * time.Millisecond
	pollTime = 50 * time.Millisecond
)

// wait lets the page load, and then do what the request waits for.
func (v *visit) wait(ctx context.Context) error {
	until := v.r.Time - min(reserve, v.r.Time/2)
	waiting, cancel := context.WithTimeout(ctx, until)
	defer cancel()
	v.out.Loaded = v.rest(waiting)
	if v.r.Wait > 0 {
		select {
		case <-time.After(v.r.Wait):
		case <-waiting.Done():
		case <-v.ended:
		}
		v.out.Loaded = v.rest(waiting)
	}
	if v.r.WaitFor != "" {
		return v.waitFor(ctx, waiting)
	}
	return nil
}

// rest waits until the page was loaded and does not go on elsewhere; false: it
// did not come to that.
func (v *visit) rest(ctx context.Context) bool {
	for {
		s := v.w.state()
		var still <-chan time.Time
		if !s.loading && s.loads > 0 {
			left := restTime - time.Since(s.since)
			if left <= 0 {
				return true
			}
			still = time.After(left)
		}
		select {
		case <-s.changed:
		case <-still:
		case <-ctx.Done():
			return false
		case <-v.ended:
			return false
		}
	}
}

// reached refuses what is no page of the outside.
func (v *visit) reached() error {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	switch {
	case v.w.broken != "":
		v.out.Refused = v.w.broken
		return netFault(v.w.reason, about(v.w.broken))
	case v.w.refusal != "":
		v.out.Refused = v.w.url
		return fault(web.FaultDenied, "%s", v.w.refusal)
	case v.w.url == "about:blank" && !strings.HasPrefix(v.r.URL, "about:"):
		return fault(web.FaultContent, "%s shows no page", about(v.r.URL))
	}
	return nil
}

// sum brings what the events told.
func (v *visit) sum() {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	v.out.Status, v.out.MediaType = v.w.status, v.w.mime
	v.out.Errors, v.out.Failed, v.out.Dialogs = v.w.errors, v.w.failed, v.w.opened
	if v.out.URL == "" {
		v.out.URL = clean(v.w.url, noteLength)
	}
	v.mu.Lock()
	v.out.Stopped = v.stopped
	v.mu.Unlock()
}
