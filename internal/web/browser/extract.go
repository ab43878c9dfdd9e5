package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

const (
	// answerTime is how long scripts of the page may delay a response.
	answerTime = 2 * time.Second
	linkText   = 200
	maxURL     = 8 << 10
)

// isolatedWorld is the name of the JavaScript world for our scripts. They see the document, but
// scripts of the page cannot change their environment.
const isolatedWorld = "orchestrator"

// lookScript returns the content of the page as JSON, bounded.
const lookScript = `((maxText, maxLinks, maxURL, linkText) => {
  const cut = (s, n) => { s = String(s ?? ""); return s.length > n ? s.slice(0, n) : s; };
  const root = document.body ?? document.documentElement;
  const text = String(root?.innerText ?? root?.textContent ?? "");
  const links = [];
  for (const a of document.links) {
    if (links.length >= maxLinks) break;
    if (a.href.length <= maxURL) links.push({url: a.href, text: cut(a.textContent, 4 * linkText)});
  }
  return JSON.stringify({url: cut(location.href, maxURL), title: cut(document.title, 1000), length: text.length,
    text: cut(text, maxText), links});
})`

// seenScript reports whether an element that matches a selector is visible.
const seenScript = `((selector) => {
  try {
    for (const e of document.querySelectorAll(selector)) {
      if (e.checkVisibility({visibilityProperty: true, opacityProperty: false})) return "seen";
    }
    return "not yet";
  } catch (e) { return e.name === "SyntaxError" ? "no selector" : "not yet"; }
})`

// links decodes the first MaxLinks entries of a JSON list. The rest is not decoded, because a
// hostile browser can send any number.
type links []Link

// UnmarshalJSON implements json.Unmarshaler.
func (l *links) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("want a list")
	}
	for d.More() && len(*l) < MaxLinks {
		var one Link
		if err := d.Decode(&one); err != nil {
			return err
		}
		*l = append(*l, one)
	}
	return nil
}

// evaluated is the part of a response to Runtime.evaluate that is used.
type evaluated struct {
	Result struct {
		Value json.RawMessage `json:"value"`
	} `json:"result"`
	ExceptionDetails json.RawMessage `json:"exceptionDetails"`
}

var evaluate = cdp.Command[runtime.EvaluateParams, evaluated]{Method: runtime.CommandEvaluate}

// extract reads the text and the links of the page.
func (v *visit) extract(ctx context.Context) error {
	// A character may be two UTF-16 units.
	script := fmt.Sprintf("%s(%d, %d, %d, %d)", lookScript, 2*v.r.MaxText, MaxLinks, maxURL, linkText)
	raw, err := v.evalScript(ctx, script)
	if err != nil {
		return explain(ctx, err, "reading the page")
	}
	var look struct {
		URL    string `json:"url"`
		Title  string `json:"title"`
		Text   string `json:"text"`
		Length int64  `json:"length"`
		Links  links  `json:"links"`
	}
	if err := json.Unmarshal([]byte(raw), &look); err != nil {
		return fault(FaultBrowser, "reading the page: the browser sent invalid JSON")
	}
	v.out.URL, v.out.Title = clean(look.URL, maxURL), clean(look.Title, 500)
	text := web.Plain(look.Text)
	v.out.Text, _ = clip.Runes(text, v.r.MaxText)
	v.out.Truncated, v.out.TextLength = len(v.out.Text) < len(text) || look.Length > int64(2*v.r.MaxText), look.Length
	seen := map[string]bool{}
	for _, l := range look.Links {
		u, err := url.Parse(l.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || seen[l.URL] {
			continue
		}
		seen[l.URL] = true
		v.out.Links = append(v.out.Links, Link{URL: clean(l.URL, maxURL), Text: clean(l.Text, linkText)})
	}
	return nil
}

// waitFor waits until an element that matches the selector is visible.
func (v *visit) waitFor(ctx, waiting context.Context) error {
	selector, err := json.Marshal(v.r.WaitFor)
	if err != nil {
		return err
	}
	for {
		answer, err := v.evalScript(ctx, seenScript+"("+string(selector)+")")
		switch {
		case err != nil:
			return explain(ctx, err, "waiting for the selector")
		case answer == "seen":
			return nil
		case answer == "no selector":
			return fault(FaultSelector, "is not a valid CSS selector")
		}
		select {
		case <-time.After(pollTime):
		case <-waiting.Done():
			if err := v.checkReached(); err != nil {
				return err
			}
			return fault(web.FaultTimeout, "no visible element matched %q in time", clean(v.r.WaitFor, 100))
		}
	}
}

var errBusy = errors.New("the page does not respond")

// evalScript runs a script in the page. If the page does not respond, it stops its scripts and
// tries once more.
func (v *visit) evalScript(ctx context.Context, script string) (string, error) {
	answer, err := v.askFor(ctx, answerTime, script)
	if !errors.Is(err, errBusy) {
		return answer, err
	}
	if err := v.stop(ctx); err != nil {
		return "", err
	}
	answer, err = v.askFor(ctx, answerTime, script)
	if errors.Is(err, errBusy) {
		err = fault(FaultBusy, "scripts of the page block the browser")
	}
	return answer, err
}

// stop disables the scripts of the page.
func (v *visit) stop(ctx context.Context) error {
	v.mu.Lock()
	v.stopped = true
	v.mu.Unlock()
	short, cancel := context.WithTimeoutCause(ctx, answerTime, errBusy)
	defer cancel()
	// Both calls interrupt a running script. If a call fails, the next evaluation shows it.
	_, off := v.send(short, emulation.SetScriptExecutionDisabled.Method,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	_, ended := v.send(short, runtime.TerminateExecution.Method, struct{}{})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, err := range []error{off, ended} {
		if lost := (*lostError)(nil); errors.As(err, &lost) {
			return err
		}
	}
	return nil
}

func (v *visit) askFor(ctx context.Context, within time.Duration, script string) (string, error) {
	short, cancel := context.WithTimeoutCause(ctx, within, errBusy)
	defer cancel()
	yes, no := true, false
	for {
		in, err := call(short, v.conn, page.CreateIsolatedWorld,
			page.CreateIsolatedWorldParams{FrameID: v.frame, WorldName: isolatedWorld})
		if err == nil {
			var r evaluated
			r, err = call(short, v.conn, evaluate,
				runtime.EvaluateParams{Expression: script, ContextID: in.ExecutionContextID, ReturnByValue: &yes,
					AwaitPromise: &no, Silent: &yes})
			if err == nil && r.ExceptionDetails == nil && r.Result.Value != nil {
				var s string
				if err := json.Unmarshal(r.Result.Value, &s); err != nil {
					return "", &lostError{err}
				}
				return s, nil
			}
		}
		if lost := (*lostError)(nil); errors.As(err, &lost) || short.Err() != nil {
			return "", err
		}
		// The page navigated during the call: evaluate again in the new document.
		select {
		case <-time.After(pollTime):
		case <-short.Done():
			return "", context.Cause(short)
		}
	}
}

// attend dismisses the dialogs of the page and allows it to navigate away, because an open dialog
// blocks everything. It stops the scripts of a page with too many dialogs, and gives up if that
// does not help or if the page crashed.
func (v *visit) attend(ctx context.Context, giveUp context.CancelCauseFunc) {
	var stopping sync.WaitGroup
	defer stopping.Wait()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-v.ended:
			return
		case <-v.w.crashed:
			giveUp(fault(FaultCrashed, "the page crashed: it may have used up the memory of the sandbox"))
			return
		case kind := <-v.w.dialogs:
			leave := kind == string(page.DialogTypeBeforeunload)
			if _, err := v.send(ctx, page.HandleJavaScriptDialog.Method,
				page.HandleJavaScriptDialogParams{Accept: leave}); err != nil && ctx.Err() != nil {
				return
			}
			switch n {
			case maxDialogs: // concurrently: it takes effect between two dialogs
				stopping.Go(func() { _ = v.stop(ctx) }) // a failure shows in the next dialogs
			case 10 * maxDialogs:
				giveUp(fault(FaultBusy, "the page opens too many dialogs"))
			}
		}
	}
}
