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
	// MaxPixels bounds an image; longer pages are cut at the bottom.
	MaxPixels  = 1280 * 6144
	MaxPicture = 8 << 20 // bytes of a PNG
	MaxPDF     = 8 << 20
	MaxText    = 1_000_000 // characters
	MaxLinks   = 500
)

// Values of Request.Picture.
const (
	NoPicture = ""
	Viewport  = "viewport"
	FullPage  = "full"
)

// Request describes the page to open and the wanted results.
type Request struct {
	URL string
	// Time bounds the whole visit.
	Time time.Duration
	// WaitFor is a CSS selector; the page is read after a match is visible. Wait is an extra delay
	// after loading.
	WaitFor string
	Wait    time.Duration
	// Picture is NoPicture, Viewport or FullPage.
	Picture       string
	PDF           bool
	Width, Height int64
	// MaxText is the maximum number of characters of text to return.
	MaxText int
}

// Link is a link of a page.
type Link struct {
	URL  string `json:"url"`
	Text string `json:"text,omitempty"`
}

// Failure is a resource of a page that failed to load.
type Failure struct {
	URL   string `json:"url"`
	Error string `json:"error"`
}

// Result is the content of a page.
type Result struct {
	// URL is the final URL, after redirects by headers and scripts.
	URL       string
	Status    int64
	MediaType string
	Title     string
	Text      string
	// Truncated reports that the page has more text. TextLength is the length of all text, in
	// UTF-16 units.
	Truncated  bool
	TextLength int64
	Links      []Link
	// Loaded reports that the page was completely loaded when it was read.
	Loaded bool
	// Picture is a PNG of Width times Height pixels. PictureCut reports that the page is longer.
	Picture       []byte
	Width, Height int
	PictureCut    bool
	PDF           []byte
	// Errors are script errors of the page, Failed its resources that failed to load. Both are
	// bounded.
	Errors []string
	Failed []Failure
	// Dialogs is the number of dialogs that the page opened; all were dismissed. Stopped reports
	// that scripts were stopped because they blocked the browser.
	Dialogs int
	Stopped bool
	// Refused is the URL of the main document that the gateway denied, or "".
	Refused string
}

var errPageTime = errors.New("time of the page is over")

// visit is the state of opening one page.
type visit struct {
	*conn
	w       *watch
	r       Request
	frame   cdp.FrameID
	out     Result
	mu      sync.Mutex
	stopped bool
}

// Open opens a page and returns its content. The Request must be within the bounds above.
func Open(ctx context.Context, dial Dial, r Request) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Time, errPageTime)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	w := newWatch()
	c, err := connect(ctx, dial, w.handle)
	if err != nil {
		return Result{}, explain(ctx, err, "connecting to the browser")
	}
	v := &visit{conn: c, w: w, r: r}
	var works sync.WaitGroup
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer works.Wait()
	defer stop()
	defer c.ws.CloseNow() //nolint:errcheck // no close handshake needed
	works.Go(func() { c.read(reading) })
	works.Go(func() { v.attend(reading, giveUp) })
	err = v.open(ctx)
	v.collect()
	return v.out, err
}

// open runs the steps of a visit.
func (v *visit) open(ctx context.Context) error {
	if err := v.prepare(ctx); err != nil {
		return explain(ctx, err, "preparing the browser")
	}
	if err := v.navigate(ctx); err != nil {
		return err
	}
	if err := v.wait(ctx); err != nil {
		return err
	}
	if err := v.checkReached(); err != nil {
		return err
	}
	if err := v.extract(ctx); err != nil {
		return err
	}
	return v.capture(ctx)
}

// prepare enables the events that are needed and disables unwanted features.
func (v *visit) prepare(ctx context.Context) error {
	tree, err := call(ctx, v.conn, page.GetFrameTree, cdp.Empty{})
	if err != nil {
		return err
	}
	if tree.FrameTree == nil || tree.FrameTree.Frame == nil {
		return errors.New("page has no frame")
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
		{browser.SetDownloadBehavior.Method,
			browser.SetDownloadBehaviorParams{Behavior: browser.SetDownloadBehaviorBehaviorDeny}},
		{emulation.SetDeviceMetricsOverride.Method,
			emulation.SetDeviceMetricsOverrideParams{Width: v.r.Width, Height: v.r.Height, DeviceScaleFactor: 1}},
	} {
		if _, err := v.send(ctx, step.method, step.params); err != nil {
			return err
		}
	}
	return nil
}

// navigate opens the URL. It returns when the response starts.
func (v *visit) navigate(ctx context.Context) error {
	doing := "opening " + hostOf(v.r.URL)
	nav, err := call(ctx, v.conn, page.Navigate, page.NavigateParams{URL: v.r.URL})
	switch {
	case err != nil:
		return explain(ctx, err, doing)
	case nav.IsDownload:
		return fault(web.FaultContent, "%s is a download, not a page", hostOf(v.r.URL))
	case nav.ErrorText != "":
		v.out.Refused = v.address()
		return netFault(nav.ErrorText, hostOf(v.out.Refused))
	}
	return nil
}

// address returns the URL that the browser is at, or failed to open.
func (v *visit) address() string {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	if v.w.broken != "" {
		return v.w.broken
	}
	return v.r.URL
}

// hostOf returns the host of a URL, for messages: the rest may be secret.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "the page"
	}
	return clean(u.Host, 260)
}

const (
	// reserve is the part of the time kept for reading a page that never becomes idle.
	reserve = 8 * time.Second
	// restTime is how long a loaded page must not start to navigate.
	restTime = 60 * time.Millisecond
	pollTime = 50 * time.Millisecond
)

// wait waits until the page is loaded, and for the conditions of the request.
func (v *visit) wait(ctx context.Context) error {
	until := v.r.Time - min(reserve, v.r.Time/2)
	waiting, cancel := context.WithTimeout(ctx, until)
	defer cancel()
	v.out.Loaded = v.waitIdle(waiting)
	if v.r.Wait > 0 {
		select {
		case <-time.After(v.r.Wait):
		case <-waiting.Done():
		case <-v.ended:
		}
		v.out.Loaded = v.waitIdle(waiting)
	}
	if v.r.WaitFor != "" {
		return v.waitFor(ctx, waiting)
	}
	return nil
}

// waitIdle waits until the page is loaded and does not navigate further. It returns false on
// timeout.
func (v *visit) waitIdle(ctx context.Context) bool {
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

// checkReached returns a fault if no page of the outside was opened.
func (v *visit) checkReached() error {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	switch {
	case v.w.broken != "":
		v.out.Refused = v.w.broken
		return netFault(v.w.reason, hostOf(v.w.broken))
	case v.w.refusal != "":
		v.out.Refused = v.w.url
		return fault(web.FaultDenied, "%s", v.w.refusal)
	case v.w.url == "about:blank" && !strings.HasPrefix(v.r.URL, "about:"):
		return fault(web.FaultContent, "%s did not open a page", hostOf(v.r.URL))
	}
	return nil
}

// collect copies the results of events to the Result.
func (v *visit) collect() {
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
