package webtool

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/browser"
)

func TestBrowserInputIsValidated(t *testing.T) {
	for input, want := range map[string]string{
		`{}`:                                "url is missing",
		`{"url": "file:///etc/x"}`:          "url has to begin with https:// or http://",
		`{"url": "javascript:1"}`:           "url has to begin with https:// or http://",
		`{"url": "https://u:p@a.example/"}`: "url has a user or a password before the host: leave it out",
		`{"url": "https://a.example/", "mode": "fast"}`:                           `mode is "fast": use real or simple`,
		`{"url": "https://a.example/", "screenshot": "all"}`:                      `screenshot is "all": use viewport or full`,
		`{"url": "https://a.example/", "screenshot": "full", "mode": "simple"}`:   "screenshot needs a browser: set mode to real",
		`{"url": "https://a.example/", "wait_ms": 99999999}`:                      "wait_ms is 99999999: from 0 to 60000",
		`{"url": "https://a.example/", "width": 9000}`:                            "width is 9000: from 64 to 1920",
		`{"url": "https://a.example/", "height": 9000}`:                           "height is 9000: from 64 to 6144 at this width",
		`{"url": "https://a.example/", "max_chars": 9999999}`:                     "max_chars is 9999999: from 1 to 1000000",
		`{"url": "https://a.example/", "timeout_ms": -1}`:                         "timeout_ms is negative",
		`{"url": "https://a.example/", "wait_for": "#a", "click": "#b"}`:          "click is unknown",
		`{"url": "https://a.example/", "screenshot": "full", "pdf": true}`:        "",
		`{"url": "http://bücher.example:8080/a?b#c", "mode": "simple"}`:           "",
		`{"url": "https://a.example/", "width": 1920, "height": 4096}`:            "",
		`{"url": "https://a.example/", "width": 1920, "height": 4097}`:            "height is 4097: from 64 to 4096 at this width",
		`{"url": "https://a.example/", "wait_for": "` + "\\u0000" + `#a, b > c"}`: "",
	} {
		_, err := browserOpen.Check(json.RawMessage(input))
		if got := text(err); got != want {
			t.Errorf("%s: %q, want %q", input, got, want)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// visits opens pages itself.
type visits struct {
	*exchanges
	sight Sight
	fault error
	seen  []Visit
}

func (b *visits) Open(_ context.Context, v Visit) (Sight, error) {
	b.seen = append(b.seen, v)
	return b.sight, b.fault
}

// Each fault of the browser has its error class. A denied host costs no visit.
func TestBrowserFaultsHaveClass(t *testing.T) {
	for kind, want := range map[string]error{
		web.FaultDenied: errdefs.ErrPermissionDenied, web.FaultName: errdefs.ErrNotFound,
		web.FaultContent: errdefs.ErrInvalidArgument, web.FaultTLS: errdefs.ErrUnavailable,
		browser.FaultSelector: errdefs.ErrInvalidArgument, browser.FaultCrashed: errdefs.ErrResourceExhausted,
		browser.FaultBusy: errdefs.ErrResourceExhausted,
		browser.FaultSize: errdefs.ErrResourceExhausted, browser.FaultBrowser: errdefs.ErrInternal,
	} {
		b := &visits{exchanges: newExchanges(t, ""), fault: &browser.Fault{Kind: kind, Message: "m"}}
		if _, _, err := browsed(t, b, `{"url": "https://a.example/"}`); !errors.Is(err, want) {
			t.Errorf("%s: browser.open = %v, want the class %v", kind, err, want)
		}
	}
	b := &visits{exchanges: newExchanges(t, ""), fault: &browser.Fault{Kind: web.FaultTimeout, Message: "m"}}
	_, o, err := browsed(t, b, `{"url": "https://a.example/", "timeout_ms": 2000}`)
	if err != nil || o.Ending != "timeout" || o.TimeoutMS != 2000 {
		t.Errorf("outcome = %+v, %v; want timeout after 2000 ms", o, err)
	}
	_, _, err = browsed(t, b, `{"url": "https://evil.example/"}`)
	if !errdefs.IsPermissionDenied(err) || len(b.seen) != 1 {
		t.Errorf("browser.open of a denied host = %v after %d visits, want PermissionDenied after 1", err, len(b.seen))
	}
	b = &visits{exchanges: newExchanges(t, ""), sight: Sight{Result: browser.Result{URL: "https://b.example/", Text: "t",
		Picture: []byte{1, 2, 3}, Width: 2, Height: 1}, Isolation: "i"}}
	got, _, err := browsed(t, b, `{"url": "https://a.example/", "screenshot": "full"}`)
	out, _ := got.(BrowserOutput)
	if err != nil || out.FinalURL != "https://b.example/" || out.Screenshot == nil || out.Screenshot.PNG != "AQID" ||
		out.Isolation != "i" || b.seen[0].Request.Picture != browser.FullPage {
		t.Errorf("browser.open = %+v, %v; want https://b.example/ with the picture AQID of the full page", got, err)
	}
}

func browsed(t *testing.T, b *visits, in string) (any, tool.Outcome, error) {
	t.Helper()
	p, err := browserOpen.Check(json.RawMessage(in))
	if err != nil {
		t.Fatal(err)
	}
	return p.Call.(tool.Run[Browser])(t.Context(), b.caps, Browser{Allowed: b.web.Fetch, Opener: b, Exchanger: b})
}
